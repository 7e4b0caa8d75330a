"""`compactor-admin topics`: topics themselves, their partitions, properties and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated

import typer

from api.cli.admin.requests import TOPIC, Command, RequestOption, delete, flag, get, option, post, put
from api.cli.admin.session import parse_key_values, session_of, topic_path
from api.cli.kit.shared_arguments import TypedTopic

Partitions = Annotated[int, typer.Option("-p", "--partitions", metavar="N", min=1, help="How many partitions.")]
Metadata = Annotated[
    list[str] | None, typer.Option("-m", "--metadata", metavar="KEY=VALUE,…", help="Properties of the topic.")
]
_IN_NAMESPACE = "/admin/v2/persistent/{namespace}"
_FORCE = {"force": flag("-f", "--force", help="Also while a process other than a service writes it.", query="force")}


def create_partitioned_topic(
    context: typer.Context, topic: TypedTopic, partitions: Partitions, metadata: Metadata = None
) -> None:
    """Create a partitioned topic."""
    admin = session_of(context)
    body = {"partitions": partitions, "properties": parse_key_values("--metadata", metadata or ())}
    content_type = "application/vnd.partitioned-topic-metadata+json"
    admin.service.send("PUT", topic_path(topic, "partitions"), body=body, Content_Type=content_type)
    admin.report_change(f"topic {topic} of {partitions} partitions created")


COMMANDS: Mapping[str, Command] = {
    "list": get(_IN_NAMESPACE, "List the topics of a namespace, partitions one by one."),
    "list-partitioned-topics": get(f"{_IN_NAMESPACE}/partitioned", "List the partitioned topics of a namespace."),
    "create": put(
        TOPIC,
        "Make a topic without partitions.",
        "topic {topic} created",
        {
            "metadata": RequestOption(
                Metadata, None, parse=lambda pairs: parse_key_values("--metadata", pairs) if pairs else None
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
                parse=partial(parse_key_values, "--property"),
            )
        },
    ),
    "remove-properties": delete(
        f"{TOPIC}/properties",
        "Remove a property of a topic.",
        "property {key} of {topic} removed",
        {"key": option(str, "-k", "--key", metavar="KEY", help="The property.", query="key")},
    ),
    "stats": get(
        f"{TOPIC}/stats",
        "Show the statistics of a topic.",
        options={
            "precise": flag(
                "-gpb", "--get-precise-backlog", help="Count the backlog exactly.", query="getPreciseBacklog"
            ),
            "backlog_size": flag(
                "-sbs",
                "--get-subscription-backlog-size",
                help="Also the bytes of the backlog.",
                query="subscriptionBacklogSize",
            ),
        },
    ),
    "stats-internal": get(f"{TOPIC}/internalStats", "Show the ledgers and cursors of a topic."),
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
