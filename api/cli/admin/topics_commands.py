"""`compactor-admin topics`: topics themselves, their partitions, properties and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated

import typer

from api.cli.admin.requests import TOPIC, Command, RequestOption, delete, flag, get, option, post, put
from api.cli.admin.session import key_values, session, topic_path
from api.cli.kit.shared_arguments import TypedTopic
from storage.errors import NotFound

Partitions = Annotated[int, typer.Option("-p", "--partitions", metavar="N", min=1, help="How many partitions.")]
Metadata = Annotated[
    list[str] | None, typer.Option("-m", "--metadata", metavar="KEY=VALUE,…", help="Properties of the topic.")
]
Precise = Annotated[bool, typer.Option("-gpb", "--get-precise-backlog", help="Count the backlog exactly.")]
BacklogSize = Annotated[
    bool, typer.Option("-sbs", "--get-subscription-backlog-size", help="Also the bytes of the backlog.")
]
_IN_NAMESPACE = "/admin/v2/persistent/{namespace}"
_FORCE = {"force": flag("-f", "--force", help="Also while a process other than a service writes it.", query="force")}


def create_partitioned_topic(
    context: typer.Context, topic: TypedTopic, partitions: Partitions, metadata: Metadata = None
) -> None:
    """Make a partitioned topic."""
    admin = session(context)
    body = {"partitions": partitions, "properties": key_values("--metadata", metadata or ())}
    content_type = "application/vnd.partitioned-topic-metadata+json"
    admin.service.ask("PUT", topic_path(topic, "partitions"), body=body, Content_Type=content_type)
    admin.done(f"topic {topic} of {partitions} partitions created")


def stats(
    context: typer.Context, topic: TypedTopic, precise: Precise = False, backlog_size: BacklogSize = False
) -> None:
    """Show the statistics of a topic."""
    query = {"getPreciseBacklog": precise, "subscriptionBacklogSize": backlog_size}
    _show_statistics(context, topic, "stats", "partitioned-stats", query)


def stats_internal(context: typer.Context, topic: TypedTopic) -> None:
    """Show the ledgers and cursors of a topic."""
    _show_statistics(context, topic, "internalStats", "partitioned-stats-internal", {})


def _show_statistics(
    context: typer.Context, topic: str, resource: str, of_partitions: str, query: Mapping[str, object]
) -> None:
    """Show statistics of a topic. For a partitioned topic, which the service answers by 404, name the right command."""
    admin = session(context)
    try:
        answer = admin.service.get(topic_path(topic, resource), **query)
    except NotFound as error:
        metadata = admin.service.get(topic_path(topic, "partitions"))
        if not isinstance(metadata, dict) or not metadata.get("partitions"):
            raise
        raise NotFound(
            f"{topic} is a topic of {metadata['partitions']} partitions",
            f"ask for its {of_partitions}, or for {topic}-partition-0",
        ) from error
    admin.show(answer)


COMMANDS: Mapping[str, Command] = {
    "list": get(_IN_NAMESPACE, "List the topics of a namespace, partitions one by one."),
    "list-partitioned-topics": get(f"{_IN_NAMESPACE}/partitioned", "List the partitioned topics of a namespace."),
    "create": put(
        TOPIC,
        "Make a topic without partitions.",
        "topic {topic} created",
        {
            "metadata": RequestOption(
                Metadata, None, parse=lambda pairs: key_values("--metadata", pairs) if pairs else None
            )
        },
    ),
    "create-partitioned-topic": create_partitioned_topic,
    "update-partitioned-topic": post(
        f"{TOPIC}/partitions",
        "Give a partitioned topic more partitions.",
        "topic {topic} has {partitions} partitions",
        {"partitions": RequestOption(Partitions)},
    ),
    "get-partitioned-topic-metadata": get(
        f"{TOPIC}/partitions", "Show how many partitions a topic has; 0: it is not partitioned."
    ),
    "delete": delete(TOPIC, "Delete a topic with its messages, cursors and policies.", "topic {topic} deleted", _FORCE),
    "delete-partitioned-topic": delete(
        f"{TOPIC}/partitions",
        "Delete a partitioned topic with its partitions.",
        "topic {topic} and its partitions deleted",
        _FORCE,
    ),
    "get-properties": get(f"{TOPIC}/properties", "Show the properties of a topic."),
    "update-properties": put(
        f"{TOPIC}/properties",
        "Set properties of a topic; the others stay.",
        "properties of {topic} set",
        {
            "properties": option(
                list[str],
                "-p",
                "--property",
                metavar="KEY=VALUE",
                help="A property; may be repeated.",
                parse=partial(key_values, "--property"),
            )
        },
    ),
    "remove-properties": delete(
        f"{TOPIC}/properties",
        "Remove a property of a topic.",
        "property {key} of {topic} removed",
        {"key": option(str, "-k", "--key", metavar="KEY", help="The property.", query="key")},
    ),
    "stats": stats,
    "stats-internal": stats_internal,
    "info-internal": get(f"{TOPIC}/internal-info", "Show the stored metadata of the ledgers and cursors of a topic."),
    "partitioned-stats": get(
        f"{TOPIC}/partitioned-stats",
        "Show the statistics of a partitioned topic.",
        options={"per_partition": flag("--per-partition", help="Also of each partition.", query="perPartition")},
    ),
    "partitioned-stats-internal": get(
        f"{TOPIC}/partitioned-internalStats", "Show the ledgers and cursors of each partition of a topic."
    ),
    "lookup": get("/lookup/v2/topic/persistent/{topic}", "Show the service process that owns a topic."),
    "unload": put(
        f"{TOPIC}/unload",
        "Release the writer's lease of a topic and its memory; clients look the topic up again, and nothing is lost.",
        "topic {topic} unloaded",
    ),
    "truncate": delete(
        f"{TOPIC}/truncate",
        "Move all subscriptions of a topic to its end, and delete the messages before it.",
        "topic {topic} truncated",
    ),
}
