"""`compactor-admin topics`: topics themselves, their partitions, properties and numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from api.cli.admin.arguments import Namespace, Topic
from api.cli.admin.session import (
    Session,
    key_values,
    namespace_parts,
    path,
    session,
    topic_path,
)
from storage.errors import NotFound

Partitions = Annotated[int, typer.Option("-p", "--partitions", metavar="N", min=1, help="How many partitions.")]
Metadata = Annotated[
    list[str] | None, typer.Option("-m", "--metadata", metavar="KEY=VALUE,…", help="Properties of the topic.")
]
Force = Annotated[bool, typer.Option("-f", "--force", help="Also while one writes it that is no service.")]
Precise = Annotated[bool, typer.Option("-gpb", "--get-precise-backlog", help="Count what is left exactly.")]
BacklogSize = Annotated[
    bool, typer.Option("-sbs", "--get-subscription-backlog-size", help="Also the bytes that are left.")
]


def list_topics(context: typer.Context, namespace: Namespace) -> None:
    """List the topics of a namespace, partitions one by one."""
    admin = session(context)
    admin.show(admin.service.get(path("admin", "v2", "persistent", *namespace_parts(namespace))))


def list_partitioned_topics(context: typer.Context, namespace: Namespace) -> None:
    """List the partitioned topics of a namespace."""
    admin = session(context)
    admin.show(admin.service.get(path("admin", "v2", "persistent", *namespace_parts(namespace), "partitioned")))


def create_topic(context: typer.Context, topic: Topic, metadata: Metadata = None) -> None:
    """Make a topic without partitions."""
    admin = session(context)
    admin.service.put(topic_path(topic), key_values("--metadata", metadata) if metadata else None)
    admin.done(f"topic {topic} created")


def create_partitioned_topic(
    context: typer.Context, topic: Topic, partitions: Partitions, metadata: Metadata = None
) -> None:
    """Make a topic of some partitions."""
    admin = session(context)
    if metadata:
        body = {"partitions": partitions, "properties": key_values("--metadata", metadata)}
        content_type = "application/vnd.partitioned-topic-metadata+json"
        admin.service.ask("PUT", topic_path(topic, "partitions"), body=body, Content_Type=content_type)
    else:
        admin.service.put(topic_path(topic, "partitions"), partitions)
    admin.done(f"topic {topic} of {partitions} partitions created")


def update_partitioned_topic(context: typer.Context, topic: Topic, partitions: Partitions) -> None:
    """Give a partitioned topic more partitions."""
    admin = session(context)
    admin.service.post(topic_path(topic, "partitions"), partitions)
    admin.done(f"topic {topic} has {partitions} partitions")


def get_partitioned_topic_metadata(context: typer.Context, topic: Topic) -> None:
    """Show how many partitions a topic has; 0: it is not partitioned."""
    admin = session(context)
    admin.show(admin.service.get(topic_path(topic, "partitions")))


def delete_topic(context: typer.Context, topic: Topic, force: Force = False) -> None:
    """Delete a topic, and all that it holds."""
    admin = session(context)
    admin.service.delete(topic_path(topic), force=force or None)
    admin.done(f"topic {topic} deleted")


def delete_partitioned_topic(context: typer.Context, topic: Topic, force: Force = False) -> None:
    """Delete a partitioned topic, and all that its partitions hold."""
    admin = session(context)
    admin.service.delete(topic_path(topic, "partitions"), force=force or None)
    admin.done(f"topic {topic} and its partitions deleted")


def get_properties(context: typer.Context, topic: Topic) -> None:
    """Show the properties of a topic."""
    admin = session(context)
    admin.show(admin.service.get(topic_path(topic, "properties")))


def update_properties(
    context: typer.Context,
    topic: Topic,
    properties: Annotated[
        list[str], typer.Option("-p", "--property", metavar="KEY=VALUE", help="One to set; may be repeated.")
    ],
) -> None:
    """Set properties of a topic; the others stay."""
    admin = session(context)
    admin.service.put(topic_path(topic, "properties"), key_values("--property", properties))
    admin.done(f"properties of {topic} set")


def remove_properties(
    context: typer.Context,
    topic: Topic,
    key: Annotated[str, typer.Option("-k", "--key", metavar="KEY", help="The property.")],
) -> None:
    """Remove a property of a topic."""
    admin = session(context)
    admin.service.delete(topic_path(topic, "properties"), key=key)
    admin.done(f"property {key} of {topic} removed")


def stats(context: typer.Context, topic: Topic, precise: Precise = False, backlog_size: BacklogSize = False) -> None:
    """Show the numbers of a topic."""
    admin = session(context)
    query = {"getPreciseBacklog": precise or None, "subscriptionBacklogSize": backlog_size or None}
    with _partitioned_told(admin, topic, "partitioned-stats"):
        found = admin.service.get(topic_path(topic, "stats"), **query)
    admin.show(found)


def stats_internal(context: typer.Context, topic: Topic) -> None:
    """Show the ledgers and cursors of a topic."""
    admin = session(context)
    with _partitioned_told(admin, topic, "partitioned-stats-internal"):
        found = admin.service.get(topic_path(topic, "internalStats"))
    admin.show(found)


def partitioned_stats(
    context: typer.Context,
    topic: Topic,
    per_partition: Annotated[bool, typer.Option("--per-partition", help="Also of each partition.")] = False,
) -> None:
    """Show the numbers of a partitioned topic."""
    admin = session(context)
    admin.show(admin.service.get(topic_path(topic, "partitioned-stats"), perPartition=per_partition))


def partitioned_stats_internal(context: typer.Context, topic: Topic) -> None:
    """Show the ledgers and cursors of each partition of a topic."""
    admin = session(context)
    admin.show(admin.service.get(topic_path(topic, "partitioned-internalStats")))


def info_internal(context: typer.Context, topic: Topic) -> None:
    """Show what is stored about the ledgers and cursors of a topic."""
    admin = session(context)
    admin.show(admin.service.get(topic_path(topic, "internal-info")))


def lookup(context: typer.Context, topic: Topic) -> None:
    """Show the service process that has a topic."""
    admin = session(context)
    there = topic_path(topic).removeprefix("/admin/v2")
    admin.show(admin.service.get(f"/lookup/v2/topic{there}"))


def unload(context: typer.Context, topic: Topic) -> None:
    """Let the service forget what it holds of a topic in memory; nothing is lost."""
    admin = session(context)
    admin.service.put(topic_path(topic, "unload"))
    admin.done(f"topic {topic} unloaded")


def truncate(context: typer.Context, topic: Topic) -> None:
    """Move all subscriptions of a topic to its end, and delete what is before."""
    admin = session(context)
    admin.service.delete(topic_path(topic, "truncate"))
    admin.done(f"topic {topic} truncated")


@contextmanager
def _partitioned_told(admin: Session, topic: str, instead: str) -> Iterator[None]:
    """Inside it, a topic that is not found because it has partitions is told as one."""
    try:
        yield
    except NotFound as error:
        found = admin.service.get(topic_path(topic, "partitions"))
        if not isinstance(found, dict) or not found.get("partitions"):
            raise
        count = found["partitions"]
        raise NotFound(
            f"{topic} is a topic of {count} partitions", f"ask for its {instead}, or for {topic}-partition-0"
        ) from error
