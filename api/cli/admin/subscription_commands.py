"""`compactor-admin topics`: subscriptions, and the messages that they are at."""

from __future__ import annotations

import base64
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.admin.arguments import Count, Subscription, Topic
from api.cli.admin.session import key_values, session, topic_path
from api.cli.kit.durations import parse_duration
from storage.errors import InvalidInput, NotFound
from storage.model import MessageId

if TYPE_CHECKING:
    import httpx

_LAST = 2**63 - 1

Properties = Annotated[
    list[str] | None, typer.Option("-p", "--property", metavar="KEY=VALUE", help="A property; may be repeated.")
]
Force = Annotated[bool, typer.Option("-f", "--force", help="__compaction also where keys are lost with it.")]


def list_subscriptions(context: typer.Context, topic: Topic) -> None:
    """List the subscriptions of a topic."""
    admin = session(context)
    admin.show(admin.service.get(topic_path(topic, "subscriptions")))


def create_subscription(
    context: typer.Context,
    topic: Topic,
    subscription: Subscription,
    message_id: Annotated[
        str, typer.Option("-m", "--message-id", "--messageId", metavar="POSITION", help="Where it begins.")
    ] = "latest",
    properties: Properties = None,
) -> None:
    """Make a subscription, at latest, earliest, or a message ledger:entry."""
    admin = session(context)
    body: dict[str, Any] = _position(message_id)
    if properties:
        body["properties"] = key_values("--property", properties)
    admin.service.put(topic_path(topic, "subscription", subscription), body)
    admin.done(f"subscription {subscription} of {topic} created")


def unsubscribe(context: typer.Context, topic: Topic, subscription: Subscription, force: Force = False) -> None:
    """Delete a subscription."""
    admin = session(context)
    admin.service.delete(topic_path(topic, "subscription", subscription), force=force or None)
    admin.done(f"subscription {subscription} of {topic} deleted")


def get_subscription_properties(context: typer.Context, topic: Topic, subscription: Subscription) -> None:
    """Show the properties of a subscription."""
    admin = session(context)
    admin.show(admin.service.get(topic_path(topic, "subscription", subscription, "properties")))


def update_subscription_properties(
    context: typer.Context, topic: Topic, subscription: Subscription, properties: Properties = None
) -> None:
    """Replace the properties of a subscription by these."""
    admin = session(context)
    body = key_values("--property", properties or ())
    admin.service.put(topic_path(topic, "subscription", subscription, "properties"), body)
    admin.done(f"properties of subscription {subscription} of {topic} replaced")


def reset_cursor(
    context: typer.Context,
    topic: Topic,
    subscription: Subscription,
    message_id: Annotated[
        str | None,
        typer.Option("-m", "--message-id", "--messageId", metavar="POSITION", help="latest, earliest or ledger:entry."),
    ] = None,
    back: Annotated[
        str | None, typer.Option("-t", "--time", metavar="TIME", help="So long before now: 100m, 3h, 2d.")
    ] = None,
    exclude: Annotated[
        bool, typer.Option("-e", "--exclude-reset-position", help="Begin with the message behind that.")
    ] = False,
) -> None:
    """Move a subscription to a message, or to a time."""
    if (message_id is None) == (back is None):
        raise InvalidInput("reset-cursor takes one of a message and a time", "give --message-id or --time")
    admin = session(context)
    if back is not None:
        moment = int(time.time() * 1000) - parse_duration("--time", back)
        admin.service.post(topic_path(topic, "subscription", subscription, "resetcursor", str(moment)))
    else:
        assert message_id is not None
        body = {**_position(message_id), "isExcluded": exclude}
        admin.service.post(topic_path(topic, "subscription", subscription, "resetcursor"), body)
    admin.done(f"subscription {subscription} of {topic} moved")


def skip(context: typer.Context, topic: Topic, subscription: Subscription, count: Count = 1) -> None:
    """Let a subscription skip its next messages."""
    admin = session(context)
    admin.service.post(topic_path(topic, "subscription", subscription, "skip", str(count)))
    admin.done(f"subscription {subscription} of {topic} moved")


def skip_all(context: typer.Context, topic: Topic, subscription: Subscription) -> None:
    """Let a subscription skip all that is left."""
    admin = session(context)
    admin.service.post(topic_path(topic, "subscription", subscription, "skip_all"))
    admin.done(f"subscription {subscription} of {topic} is at the end")


def peek_messages(context: typer.Context, topic: Topic, subscription: Subscription, count: Count = 1) -> None:
    """Show the next messages of a subscription, which stays where it is."""
    admin = session(context)
    found = []
    for position in range(1, count + 1):
        there = topic_path(topic, "subscription", subscription, "position", str(position))
        try:
            found.append(_message(admin.service.ask("GET", there)))
        except NotFound:
            if found:
                break  # fewer are left than were asked for
            raise
    admin.show(found)


def get_message_by_id(
    context: typer.Context,
    topic: Topic,
    ledger: Annotated[int, typer.Option("-l", "--ledger-id", "--ledgerId", metavar="LEDGER", min=0, help="Ledger.")],
    entry: Annotated[int, typer.Option("-e", "--entry-id", "--entryId", metavar="ENTRY", min=0, help="Entry.")],
) -> None:
    """Show a message."""
    admin = session(context)
    there = topic_path(topic, "ledger", str(ledger), "entry", str(entry))
    admin.show(_message(admin.service.ask("GET", there)))


def last_message_id(context: typer.Context, topic: Topic) -> None:
    """Show the id of the last message of a topic."""
    admin = session(context)
    admin.show(admin.service.get(topic_path(topic, "lastMessageId")))


def _position(text: str) -> dict[str, Any]:
    """A position as Pulsar's bodies have it."""
    if text == "latest":
        ledger = entry = _LAST
    elif text == "earliest":
        ledger = entry = -1
    else:
        one = MessageId.parse(text)
        return {"ledgerId": one.ledger_id, "entryId": one.entry_id, "partitionIndex": one.partition}
    return {"ledgerId": ledger, "entryId": entry, "partitionIndex": -1}


def _message(answer: httpx.Response) -> dict[str, Any]:
    """A message of an answer: bytes are its value, headers are what else it has."""
    head = {
        name.removeprefix("x-pulsar-"): value for name, value in answer.headers.items() if name.startswith("x-pulsar-")
    }
    try:
        value = {"value": answer.content.decode()}
    except UnicodeDecodeError:
        value = {"value_base64": base64.b64encode(answer.content).decode()}
    return {**head, **value}
