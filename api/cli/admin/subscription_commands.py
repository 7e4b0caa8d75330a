"""`compactor-admin topics`: subscriptions and their messages."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.admin.requests import TOPIC, Command, Count, RequestOption, Subscription, delete, flag, get, post, put
from api.cli.admin.session import key_values, session, topic_path
from api.cli.kit.quantity_parsers import parse_duration
from api.cli.kit.shared_arguments import TypedTopic
from storage.errors import InvalidInput, InvalidMessageId, NotFound
from storage.model import MessageId

if TYPE_CHECKING:
    import httpx

_LAST = 2**63 - 1
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
    """Make a subscription, at latest, earliest, or a message ledger:entry."""
    admin = session(context)
    body: dict[str, Any] = _position(topic, message_id)
    if properties:
        body["properties"] = key_values("--property", properties)
    admin.service.request("PUT", topic_path(topic, "subscription", subscription), body=body)
    admin.done(f"subscription {subscription} of {topic} created")


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
    admin = session(context)
    reset = topic_path(topic, "subscription", subscription, "resetcursor")
    if back is not None:
        moment = int(time.time() * 1000) - parse_duration("--time", back)
        admin.service.request("POST", f"{reset}/{moment}")
    else:
        assert message_id is not None
        admin.service.request("POST", reset, body={**_position(topic, message_id), "isExcluded": exclude})
    admin.done(f"subscription {subscription} of {topic} moved")


def peek_messages(context: typer.Context, topic: TypedTopic, subscription: Subscription, count: Count = 1) -> None:
    """Show the next messages of a subscription, without moving it."""
    admin = session(context)
    messages: list[dict[str, Any]] = []
    for position in range(1, count + 1):
        message = topic_path(topic, "subscription", subscription, "position", str(position))
        try:
            messages.append(_message(admin.service.ask("GET", message)))
        except NotFound:
            if messages:
                break  # the subscription has fewer messages left than `count`
            raise
    admin.show(messages)


def get_message_by_id(
    context: typer.Context,
    topic: TypedTopic,
    ledger: Annotated[int, typer.Option("-l", "--ledger-id", "--ledgerId", metavar="LEDGER", min=0, help="Ledger.")],
    entry: Annotated[int, typer.Option("-e", "--entry-id", "--entryId", metavar="ENTRY", min=0, help="Entry.")],
) -> None:
    """Show a message."""
    admin = session(context)
    message = topic_path(topic, "ledger", str(ledger), "entry", str(entry))
    admin.show(_message(admin.service.ask("GET", message)))


def _position(topic: str, text: str) -> dict[str, Any]:
    """Return a position in the form of Pulsar's bodies. Raises InvalidInput."""
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


def _message(answer: httpx.Response) -> dict[str, Any]:
    """Return the message of an answer: the body is its value, the headers are its other fields."""
    head = {
        name.removeprefix("x-pulsar-"): value for name, value in answer.headers.items() if name.startswith("x-pulsar-")
    }
    try:
        value = {"value": answer.content.decode()}
    except UnicodeDecodeError:
        value = {"value_base64": base64.b64encode(answer.content).decode()}
    return {**head, **value}


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
        {"properties": RequestOption(Properties, None, parse=lambda pairs: key_values("--property", pairs or ()))},
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
    "get-message-by-id": get_message_by_id,
    "last-message-id": get(f"{TOPIC}/lastMessageId", "Show the id of the last message of a topic."),
}
HIDDEN = {"clear-backlog"}
"""Other names that pulsar-admin has for a command."""
