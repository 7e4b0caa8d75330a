"""`compactor-admin topics`: subscriptions and their messages."""

from __future__ import annotations

import base64
import itertools
import json
import time
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.admin.requests import TOPIC, Command, Count, RequestOption, Subscription, delete, flag, get, post, put
from api.cli.admin.session import Session, parse_key_values, session_of, topic_path
from api.cli.kit.quantity_parsers import parse_duration
from api.cli.kit.shared_arguments import TypedTopic
from api.formats.text_encoding import TextEncoding
from storage.errors import InvalidInput, InvalidMessageId, NotFound
from storage.model import MessageId, TopicName

if TYPE_CHECKING:
    import httpx

_LAST = 2**63 - 1
_RARE_FIELDS = {
    "is-encrypted": "is_encrypted",
    "property-chunk-id": "chunk",
    "property-total-chunks": "chunks",
}
"""Fields of encrypted messages and of chunks, by the headers that have them."""
_SUBSCRIPTION = f"{TOPIC}/subscription/{{subscription}}"

Properties = Annotated[
    list[str] | None, typer.Option("-p", "--property", metavar="KEY=VALUE", help="A property; may be repeated.")
]


def create_subscription(
    context: typer.Context,
    topic: TypedTopic,
    subscription: Subscription,
    message_id: Annotated[
        str, typer.Option("-m", "--message-id", "--messageId", metavar="POSITION", help="Where it begins.")
    ] = "latest",
    properties: Properties = None,
) -> None:
    """Create a subscription, at latest, earliest, or a message ledger:entry."""
    admin = session_of(context)
    body: dict[str, Any] = _position_body(topic, message_id)
    if properties:
        body["properties"] = parse_key_values("--property", properties)
    admin.service.request("PUT", topic_path(topic, "subscription", subscription), body=body)
    admin.report_change(f"subscription {subscription} of {topic} created")


def reset_cursor(
    context: typer.Context,
    topic: TypedTopic,
    subscription: Subscription,
    message_id: Annotated[
        str | None,
        typer.Option("-m", "--message-id", "--messageId", metavar="POSITION", help="latest, earliest or ledger:entry."),
    ] = None,
    back: Annotated[
        str | None, typer.Option("-t", "--time", metavar="TIME", help="Time before now: 100m, 3h, 2d.")
    ] = None,
    exclude: Annotated[
        bool, typer.Option("-e", "--exclude-reset-position", help="Begin with the message after it.")
    ] = False,
) -> None:
    """Move a subscription to a message, or to a time."""
    if (message_id is None) == (back is None):
        raise InvalidInput("reset-cursor takes one of a message and a time", "give --message-id or --time")
    admin = session_of(context)
    reset = topic_path(topic, "subscription", subscription, "resetcursor")
    if back is not None:
        moment = int(time.time() * 1000) - parse_duration("--time", back)
        admin.service.request("POST", f"{reset}/{moment}")
    else:
        assert message_id is not None
        admin.service.request("POST", reset, body={**_position_body(topic, message_id), "isExcluded": exclude})
    admin.report_change(f"subscription {subscription} of {topic} moved")


def peek_messages(context: typer.Context, topic: TypedTopic, subscription: Subscription, count: Count = 1) -> None:
    """Show the next messages of a subscription, without moving it."""
    admin = session_of(context)
    # The service creates a missing subscription when it is asked for a message, as a broker does.
    admin.service.get(topic_path(topic, "subscription", subscription, "properties"))
    messages: list[dict[str, Any]] = []
    for position in itertools.count(1):
        entry = topic_path(topic, "subscription", subscription, "position", str(position))
        try:
            messages += _messages_of_entry(admin, topic, admin.service.send("GET", entry))
        except NotFound:  # the subscription has fewer messages left than `count`
            break
        if len(messages) >= count:
            break
    if not messages:
        admin.report_change(f"subscription {subscription} of {topic} has no messages left")
    admin.show(messages[:count])


def show_message_by_id(
    context: typer.Context,
    topic: TypedTopic,
    ledger: Annotated[int, typer.Option("-l", "--ledger-id", "--ledgerId", metavar="LEDGER", min=0, help="Ledger.")],
    entry: Annotated[int, typer.Option("-e", "--entry-id", "--entryId", metavar="ENTRY", min=0, help="Entry.")],
) -> None:
    """Show a message, or each message of a batch."""
    admin = session_of(context)
    path = topic_path(topic, "ledger", str(ledger), "entry", str(entry))
    admin.show(_messages_of_entry(admin, topic, admin.service.send("GET", path)))


def _position_body(topic: str, text: str) -> dict[str, Any]:
    """Parse latest, earliest or a message id to a request body of Pulsar's REST API. Raises InvalidInput."""
    if text in ("latest", "earliest"):
        number = _LAST if text == "latest" else -1
        return {"ledgerId": number, "entryId": number, "partitionIndex": -1}
    try:
        message = MessageId.parse(text)
    except InvalidMessageId as error:
        raise InvalidInput(
            f"{text!r} is no position in {topic}", "give latest, earliest, or a message id as ledger:entry"
        ) from error
    return {"ledgerId": message.ledger_id, "entryId": message.entry_id, "partitionIndex": message.partition}


def _messages_of_entry(admin: Session, topic: str, answer: httpx.Response) -> list[dict[str, Any]]:
    """Return the messages of an entry, in the form of `topics read`.

    The body of one message is its value, and the headers are its other fields. A batch is read again, message by
    message: its body has keys and properties in the encoding of Pulsar's clients.
    """
    head = {
        name.removeprefix("x-pulsar-"): value for name, value in answer.headers.items() if name.startswith("x-pulsar-")
    }
    entry = MessageId.parse(head["message-id"])
    messages: list[dict[str, Any]]
    if "num-batch-message" in head:
        messages = _read_batch_messages(admin, topic, entry, int(head["num-batch-message"]))
    else:
        key = head["partition-key"].encode() if "partition-key" in head else None
        if key is not None and head.get("partition-key-b64-encoded") == "true":
            key = base64.b64decode(key)
        messages = [
            {
                "message_id": str(MessageId(entry.ledger_id, entry.entry_id, TopicName.parse(topic).partition)),
                **_text_field("key", key),
                **_text_field("value", None if "null-value" in head else answer.content),
                "publish_time": _parse_pulsar_time(head["publish-time"]),
            }
        ]
        if "event-time" in head:
            messages[0]["event_time"] = _parse_pulsar_time(head["event-time"])
        if "property" in head:
            messages[0]["properties"] = json.loads(head["property"])
        messages[0] |= {field: head[name] for name, field in _RARE_FIELDS.items() if name in head}
    if "producer-name" in head:
        messages = [{**message, "producer": head["producer-name"]} for message in messages]
    return messages


def _read_batch_messages(admin: Session, topic: str, entry: MessageId, count: int) -> list[dict[str, Any]]:
    """Read the messages of a batch from the service. `entry`: the id of its entry; `count`: the number of its
    messages."""
    query = {
        "stream": True,
        "start": f"{entry.ledger_id}:{entry.entry_id}",
        "limit": count,
        "keyEncoding": TextEncoding.BASE64,
        "valueEncoding": TextEncoding.BASE64,
    }
    answer = admin.service.send("GET", topic_path(topic, "messages"), query, Accept="application/x-ndjson")
    messages = []
    for line in answer.content.splitlines():
        message = json.loads(line)
        read = MessageId.parse(message["message_id"])
        if (read.ledger_id, read.entry_id) != (entry.ledger_id, entry.entry_id):
            break  # some messages of the batch cannot be read, because the producer removed them
        fields: dict[str, Any] = {}
        for name, value in message.items():
            if name in ("key", "value"):
                fields |= _text_field(name, None if value is None else base64.b64decode(value))
            elif name != "offset":
                fields[name] = value
        messages.append(fields)
    return messages


def _text_field(name: str, data: bytes | None) -> dict[str, str | None]:
    """Return a field with a key or value as text; if it is not UTF-8, a field `NAME_base64`."""
    try:
        return {name: None if data is None else data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data or b"").decode()}


def _parse_pulsar_time(moment: str) -> int:
    """Parse a time in a header of Pulsar, ISO 8601 or a number, to milliseconds since 1970. The service sends a number
    for a time that no calendar has."""
    return int(moment) if moment.lstrip("-").isdecimal() else round(datetime.fromisoformat(moment).timestamp() * 1000)


_SKIP_ALL = post(
    f"{_SUBSCRIPTION}/skip_all",
    "Skip all remaining messages of a subscription.",
    "subscription {subscription} of {topic} is at the end",
)

COMMANDS: Mapping[str, Command] = {
    "subscriptions": get(f"{TOPIC}/subscriptions", "List the subscriptions of a topic."),
    "create-subscription": create_subscription,
    "unsubscribe": delete(
        _SUBSCRIPTION,
        "Delete a subscription.",
        "subscription {subscription} of {topic} deleted",
        {"force": flag("-f", "--force", help="__compaction also where keys are lost with it.", query="force")},
    ),
    "get-subscription-properties": get(f"{_SUBSCRIPTION}/properties", "Show the properties of a subscription."),
    "update-subscription-properties": put(
        f"{_SUBSCRIPTION}/properties",
        "Replace the properties of a subscription by these.",
        "properties of subscription {subscription} of {topic} replaced",
        {
            "properties": RequestOption(
                Properties, None, parse=lambda pairs: parse_key_values("--property", pairs or ())
            )
        },
    ),
    "reset-cursor": reset_cursor,
    "skip": post(
        f"{_SUBSCRIPTION}/skip/{{count}}",
        "Skip the next messages of a subscription.",
        "subscription {subscription} of {topic} moved",
    ),
    "skip-all": _SKIP_ALL,
    "clear-backlog": _SKIP_ALL,
    "peek-messages": peek_messages,
    "get-message-by-id": show_message_by_id,
    "last-message-id": get(f"{TOPIC}/lastMessageId", "Show the id of the last message of a topic."),
}
HIDDEN = {"clear-backlog"}
"""Other names that pulsar-admin has for a command."""
