"""`compactor topics create`, `delete` and `release-lease`: the beginning and the end of a topic, and of its writer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.kit.names import Topic
from api.cli.kit.stderr import counted, say, size
from api.cli.kit.terminal import put
from api.components import open_environment, open_for_writing
from storage.errors import InvalidInput
from storage.model import TopicName

if TYPE_CHECKING:
    from storage.metadata.records import TopicRecord
    from storage.metadata.store import MetadataStore


def create_topic(
    context: typer.Context,
    topic: Topic,
    properties: Annotated[
        list[str] | None, typer.Option("--property", metavar="NAME=VALUE", help="A property of it; may be repeated.")
    ] = None,
    partitions: Annotated[int | None, typer.Option(min=1, help="Make it a partitioned topic of N partitions.")] = None,
) -> None:
    """Create a topic, which must not exist; its tenant and namespace are made with it."""
    name = TopicName.parse(topic)
    given = dict(map(_property, properties or ()))
    with open_for_writing(context.obj) as environment:
        environment.metadata.tenancy.ensure_namespace(name)
        if partitions is None:
            environment.metadata.tenancy.create_topic(name, given)
        else:
            environment.metadata.partitions.create(name, partitions, given)
    of = "" if partitions is None else f" of {counted(partitions, 'partition')}"
    put(f"Topic {name}{of} created")


def delete_topic(
    context: typer.Context,
    topic: Topic,
    yes: Annotated[
        bool, typer.Option("--yes", help="Delete it; without this, only report what would be lost.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Also while a process writes it.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Report what would be lost; so does leaving out --yes.")
    ] = False,
) -> None:
    """Delete a topic, or a partitioned topic with its partitions, for good.

    Its messages, compacted ledger, cursors, policies and runs go at once; a compaction that is under way publishes
    nothing. Objects go with a later `compactor gc`, after file.delete.delay.ms. A topic that is created again under the
    name is another one.
    """
    name = TopicName.parse(topic)
    if dry_run and yes:
        raise InvalidInput("--yes and --dry-run do not go together", "leave one of them out")
    with (open_for_writing if yes else open_environment)(context.obj) as environment:
        partitioned = environment.metadata.partitions.find(name)
        records = _records(environment.metadata, name)
        messages, logical_bytes, cursors = 0, 0, 0
        for record in records:
            snapshot = environment.metadata.snapshot(record.id)
            messages += sum(ledger.messages for ledger in snapshot.ledgers)
            messages += sum(segment.content.messages for segment in snapshot.segments if segment.content)
            logical_bytes += sum(ledger.logical_bytes for ledger in snapshot.ledgers)
            cursors += len(environment.metadata.cursors.of_topic(record.id))
        if yes and partitioned is not None:
            environment.metadata.partitions.delete(name, force)
        elif yes:
            environment.metadata.tenancy.delete_topic(records[0].id, force=force)
    partitions = "" if partitioned is None else f" of {counted(partitioned.partitions, 'partition')}"
    lost = f"{counted(messages, 'message')} ({size(logical_bytes)} in ledgers), {counted(cursors, 'cursor')}"
    put(f"Topic {name}{partitions} {'deleted' if yes else 'would be deleted'}: {lost}")
    if not yes:
        say("Nothing was deleted: give --yes")


def release_lease(
    context: typer.Context,
    topic: Topic,
    yes: Annotated[bool, typer.Option("--yes", help="Release it; without this, only show who owns it.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also if its owner is alive.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show who owns it; so does leaving out --yes.")] = False,
) -> None:
    """Release the writer's lease of a topic, or of each partition, whose owner died on another machine.

    Another writer need not wait for its end then. An owner that lives all the same is fenced: what it appends from
    then on fails, and nothing is written twice.
    """
    name = TopicName.parse(topic)
    if dry_run and yes:
        raise InvalidInput("--yes and --dry-run do not go together", "leave one of them out")
    with (open_for_writing if yes else open_environment)(context.obj) as environment:
        from storage.metadata.leases import shown_time

        held = False
        for record in _records(environment.metadata, name):
            lease = environment.metadata.leases.end(record.id, force=force, dry_run=not yes)
            if lease is None:
                put(f"Topic {record.name}: no process owns its lease")
                continue
            held = True
            verb = "released" if yes else "would be released"
            put(f"Topic {record.name}: the lease of {lease.owner}, until {shown_time(lease.expires_at)}, {verb}")
    if held and not yes:
        say("Nothing was released: make sure that the owner is dead, and give --yes")


def _records(metadata: MetadataStore, name: TopicName) -> list[TopicRecord]:
    """The topic, or the partitions of the partitioned topic of that name. Raises TopicNotFound."""
    if metadata.partitions.find(name) is None:
        return [metadata.topics.get(name)]
    return [
        record
        for record in metadata.topics.in_namespace(f"{name.tenant}/{name.namespace}")
        if _is_of(record.name, name)
    ]


def _is_of(partition: TopicName, name: TopicName) -> bool:
    return partition.partition >= 0 and partition.topic == f"{name.topic}-partition-{partition.partition}"


def _property(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise InvalidInput(f"{text!r} is no property", "give NAME=VALUE")
    return key, value
