"""`compactor topics list`, `stats`, `create`, `delete`, `trim` and `release-lease`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from api.cli.kit import exit_codes
from api.cli.kit.output import show, show_table
from api.cli.kit.program import reject_yes_with_dry_run
from api.cli.kit.quantity_parsers import parse_pair
from api.cli.kit.reports import TRIM_COLUMNS, trim_lines
from api.cli.kit.shared_arguments import DryRun, Output, OutputFormat, Topic, TrimBefore, TrimForce, Yes
from api.cli.kit.stderr import counted, say, size
from api.cli.kit.terminal import print_line
from api.cli.local.opening import open_topic
from api.components import open_existing_for_writing, open_for_reading, open_for_writing
from api.formats.position_text import parse_trim_position
from api.observability.error_text import one_line
from api.observability.redaction import redacted
from api.reports import redacted_error_text, statistics_document, trim_document
from storage.errors import LeaseHeld, SegmentNotLocal

if TYPE_CHECKING:
    from compactor.scheduling.backlog import UnsealedBacklog
    from storage.metadata.records import TopicSnapshot

T = TypeVar("T")
_COLUMNS = ("topic", "messages", "unsealed", "size", "compacted ledger")


def list_topics(
    context: typer.Context,
    namespace: Annotated[
        str | None, typer.Argument(metavar="[TENANT/NAMESPACE]", help="Only the topics of this namespace.")
    ] = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """List topics, all or those of a namespace.

    Columns: messages, unsealed messages, logical bytes, and the compacted ledger.
    """
    with open_for_reading(context.obj) as environment:
        from storage.log.open_segments import add_open_segments

        metadata = environment.metadata
        ids = None
        if namespace is not None:
            metadata.tenancy.namespace(namespace)  # raises NotFound
            ids = [record.id for record in metadata.topics.in_namespace(namespace)]
        summaries = add_open_segments(metadata, environment.log, metadata.topics.summaries(ids))
    documents = [
        {
            "topic": str(summary.name),
            "ledgers": summary.ledgers,
            "messages": summary.all_messages,
            "logical_bytes": summary.all_bytes,
            "unsealed_messages": summary.unsealed_messages,
            "compacted_ledger": summary.compacted_ledger_id,
        }
        for summary in summaries
    ]
    if not documents and namespace is not None:
        say(f"The namespace {namespace} has no topics.")
    elif not documents:
        say(f"There are no topics in {redacted(context.obj.database_url)}: --data or --database names another place")
    if output is OutputFormat.JSON:
        show(documents, output)
    else:
        rows = (
            {
                "topic": str(summary.name),
                "unsealed": f"{summary.unsealed_messages:,}",
                "messages": f"{summary.all_messages:,}",
                "size": size(summary.all_bytes),
                "compacted ledger": summary.compacted_ledger_id,
            }
            for summary in summaries
        )
        show_table(rows, _COLUMNS)


def show_stats(context: typer.Context, topic: Topic, output: Output = OutputFormat.TABLE) -> None:
    """Show one topic.

    Its raw ledgers, compacted ledger and horizon, the backlog, the last run, and the last message ids.
    """
    from compactor.scheduling.backlog import unsealed_backlog

    with open_for_reading(context.obj) as environment:
        opened = open_topic(environment, topic)
        reader = opened.snapshot_reader()
        snapshot, end = reader.snapshot, _value_if_log_is_local(lambda: reader.end)
        last = _value_if_log_is_local(lambda: str(opened.last_message_id(read_compacted=False)))
        last_compacted = _value_if_log_is_local(lambda: str(opened.last_message_id(read_compacted=True)))
        tail = unsealed_backlog(environment.log, snapshot)
        other_logs = {segment.log_uid for segment in snapshot.segments} - {environment.log.known_uid}
    document = stats_document(snapshot, reader.first_offset, end, tail) | {
        "last_message_id": last,
        "last_compacted_message_id": last_compacted,
    }
    for log_uid in sorted(other_logs):
        say(f"Messages of {topic} that are not sealed yet are in the log directory {log_uid}, which is not here")
    show(document, output)


def create_topic(
    context: typer.Context,
    topic: Topic,
    properties: Annotated[
        list[str] | None, typer.Option("--property", metavar="NAME=VALUE", help="A property of it; may be repeated.")
    ] = None,
    partitions: Annotated[int | None, typer.Option(min=1, help="Make it a partitioned topic of N partitions.")] = None,
) -> None:
    """Create a topic, which must not exist, and its tenant and namespace if they do not exist."""
    properties_by_name = dict(parse_pair(text, "give NAME=VALUE") for text in properties or ())
    from api.broker import partitioned_topics, topics

    with open_for_writing(context.obj) as environment:
        environment.metadata.tenancy.ensure_namespace(topic)
        if partitions is None:
            topics.create(environment, topic, properties_by_name)
        else:
            partitioned_topics.create(environment, topic, partitions, properties_by_name)
    size_text = "" if partitions is None else f" of {counted(partitions, 'partition')}"
    print_line(f"Topic {topic}{size_text} created")


def delete_topic(
    context: typer.Context,
    topic: Topic,
    yes: Yes = False,
    force: Annotated[bool, typer.Option("--force", help="Also while a process writes it.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Delete a topic, or a partitioned topic with its partitions, for good.

    Its messages, compacted ledger, cursors, policies and runs are deleted at once; an active compaction publishes
    nothing. A later `compactor gc` deletes the objects, after file.delete.delay.ms. A new topic of the same name shares
    nothing with it.
    """
    reject_yes_with_dry_run(yes, dry_run)
    with open_existing_for_writing(context.obj, dry_run=not yes) as environment:
        from api.broker import names
        from compactor.scheduling.backlog import unsealed_backlog

        partitioned = environment.metadata.partitions.find(topic)
        if partitioned is None:
            records = [names.topic(environment, topic)]
        else:
            records = names.partitions(environment, partitioned)
        messages, logical_bytes, cursors = 0, 0, 0
        refusal: LeaseHeld | None = None
        try:
            if not yes and not force:
                environment.metadata.tenancy.check_no_writer([record.id for record in records])
        except LeaseHeld as error:
            refusal = error
        for record in records:
            snapshot = environment.metadata.topic_snapshot(record.id)
            messages += sum(ledger.messages for ledger in snapshot.ledgers)
            tail = unsealed_backlog(environment.log, snapshot)
            messages += tail.messages
            logical_bytes += sum(ledger.logical_bytes for ledger in snapshot.ledgers) + tail.bytes
            cursors += len(environment.metadata.cursors.of_topic(record.id))
        if yes and partitioned is not None:
            environment.metadata.partitions.delete(topic, force)
        elif yes:
            environment.metadata.tenancy.delete_topic(records[0].id, force=force)
    partitions = "" if partitioned is None else f" of {counted(partitioned.partitions, 'partition')}"
    lost = f"{counted(messages, 'message')} ({size(logical_bytes)}), {counted(cursors, 'cursor')}"
    print_line(f"Topic {topic}{partitions} {'deleted' if yes else 'would be deleted'}: {lost}")
    if refusal is not None:
        say(f"Nothing was deleted: --yes would be refused: {one_line(refusal)} (give --force)")
    elif not yes:
        say("Nothing was deleted: give --yes")


def release_lease(
    context: typer.Context,
    topic: Topic,
    yes: Yes = False,
    force: Annotated[bool, typer.Option("--force", help="Also if its owner is alive.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Release the writer's lease of a topic, or of each partition, whose owner died on another machine.

    Without --yes nothing is released: the owners are only shown. After a release another writer need not wait until the
    lease expires. An owner that is alive is fenced: its later appends fail, and nothing is written twice.
    """
    reject_yes_with_dry_run(yes, dry_run)
    with open_existing_for_writing(context.obj, dry_run=not yes) as environment:
        from api.broker import topics
        from storage.metadata.leases import time_text

        leases = topics.revoke_leases(environment, topic, force=force, dry_run=not yes)
        for record, lease in leases:
            if lease is None:
                print_line(f"Topic {record.name}: no process owns its lease")
                continue
            verb = "released" if yes else "would be released"
            print_line(f"Topic {record.name}: the lease of {lease.owner}, until {time_text(lease.expires_at)}, {verb}")
    if not yes and any(lease is not None for _, lease in leases):
        say("Nothing was released: make sure that the owner is dead, and give --yes")


def trim_topic(
    context: typer.Context,
    topic: Topic,
    before: TrimBefore = None,
    force: TrimForce = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Trim old raw ledgers.

    Without --before, those that the topic's cleanup policies allow now. Without --yes nothing is trimmed: they are only
    listed. Trimmed ledgers disappear from listings at once; a later `compactor gc` deletes their objects, after
    file.delete.delay.ms.
    """
    position = None if before is None else parse_trim_position(before)
    reject_yes_with_dry_run(yes, dry_run)
    with open_existing_for_writing(context.obj, dry_run=not yes) as environment:
        from api.broker import compaction

        record = open_topic(environment, topic).record
        trimmed = compaction.trim_topic(environment, record, position, dry_run=not yes, force=force)
        if position is None:
            resolved = environment.metadata.policies.resolve_policies(record)
            if (unreadable := resolved.unreadable.get("cleanup.policy")) is not None:
                say(f"Nothing of {topic} goes: its cleanup.policy cannot be read ({unreadable.stored.reason})")
            elif not resolved.policies.cleanup_policy:
                say(
                    f"The cleanup.policy of {topic} is nothing: set one (`compactor topics policies`), or give --before"
                )
    report = trim_document(trimmed)
    if output is OutputFormat.JSON:
        show(report, output)
    elif report["ledgers"]:
        show(report["ledgers"], output, TRIM_COLUMNS)
    for line in trim_lines(report):
        say(line)
    if not yes and not dry_run and report["ledgers"]:
        say("Nothing was trimmed: give --yes")
    if position is not None and report["held"] is not None:
        raise typer.Exit(exit_codes.CONFLICT)


def _value_if_log_is_local(value: Callable[[], T]) -> T | None:
    """Return a value; None if it depends on messages in a log directory of another machine."""
    try:
        return value()
    except SegmentNotLocal:
        return None


def stats_document(
    snapshot: TopicSnapshot, first_offset: int, next_offset: int | None, unsealed: UnsealedBacklog
) -> dict[str, Any]:
    """Return the statistics of a topic's snapshot as plain values, as `topics stats --output json` prints them.

    `first_offset`: of the first raw message. `next_offset`: of the next message to be appended; None: its log is on
    another machine. `unsealed`: the unsealed messages, which are part of the backlog, because the next run seals them
    first.
    """
    horizon = snapshot.horizon
    backlog = [ledger for ledger in snapshot.ledgers if horizon is None or ledger.last_offset > horizon.offset]
    compacted, run = snapshot.compacted, snapshot.last_run
    return {
        "topic": str(snapshot.topic.name),
        "raw": {
            "ledgers": len(snapshot.ledgers),
            "messages": sum(ledger.messages for ledger in snapshot.ledgers),
            "logical_bytes": sum(ledger.logical_bytes for ledger in snapshot.ledgers),
            "stored_bytes": sum(ledger.rows.size + ledger.index.length for ledger in snapshot.ledgers),
            "start_offset": snapshot.topic.start_offset,
            "first_offset": first_offset,
            "next_offset": next_offset,
        },
        "tail": {
            "segments": len(snapshot.segments),
            "messages": unsealed.messages,
            "logical_bytes": unsealed.bytes,
            "given_up": sum(segment.has_exceeded_sealing_tries for segment in snapshot.segments),
        },
        "compacted": None
        if compacted is None
        else {
            "ledger": compacted.ledger_id,
            "generation": compacted.generation,
            "messages": compacted.messages,
            "logical_bytes": compacted.logical_bytes,
            "stored_bytes": compacted.stored_bytes,
            "horizon": None if horizon is None else str(horizon.message_id),
            "horizon_offset": None if horizon is None else horizon.offset,
        },
        "backlog": {
            "ledgers": len(backlog),
            "messages": sum(ledger.messages for ledger in backlog) + unsealed.messages,
            "logical_bytes": sum(ledger.logical_bytes for ledger in backlog) + unsealed.bytes,
        },
        "last_run": None
        if run is None
        else {
            "run": run.run_id,
            "status": run.state.value,
            "phase": run.phase,
            "error": redacted_error_text(run.error),
            **statistics_document(run),
        },
    }
