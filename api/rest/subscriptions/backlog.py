"""Backlogs of subscriptions by Pulsar's calls: their size, their analysis, and clearing them by namespace.

A call on a namespace runs topic by topic, each on the service that has its messages, so a service forwards parts to
others. A failure ends the call; finished topics stay as they are, and the same call continues with the rest.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import Annotated, Any

from fastapi import Body, Path, Request

from api.broker import names
from api.broker.refusals import NotTheOwner
from api.broker.threads import WaitsFor
from api.http.access import AuthAction
from api.http.context import context_of
from api.http.dependencies import Broker
from api.http.paths import NAMESPACE_PATH, TOPIC_PATH, Namespace, Topic, decoded, segment
from api.http.problems import RestException, reported_as
from api.http.router import Routes
from api.rest.messages.entry_response import MOST_ENTRIES, entries
from api.rest.models import PulsarAnswer
from api.rest.subscriptions.cursor_access import (
    ONE,
    ResetCursorData,
    Subscription,
    delete_cursor,
    next_of,
    opened,
    subscription_of,
)
from api.rest.subscriptions.cursors import clear_backlog
from api.rest.tenancy.bundles import bundle_of, check_bundle
from compactor.maintenance.backlog_limits import bytes_from, extents
from storage.cursor import Cursor
from storage.errors import NotFound
from storage.metadata.records import COMPACTION_CURSOR, TopicRecord
from storage.model import EARLIEST, MessageId
from storage.positions import StartOffset

router = Routes("backlog")

_BUNDLE = NAMESPACE_PATH + "/{bundle}"
Bundle = Annotated[str, Path(description="One of the namespace's bundles: only its topics.")]


class AnalyzedBacklog(PulsarAnswer):
    """A subscription's backlog in numbers, in a broker's order of fields; there are no filters."""

    entries: int = 0
    messages: int = 0
    marker_messages: int = 0
    filter_rejected_entries: int = 0
    filter_accepted_entries: int = 0
    filter_rescheduled_entries: int = 0
    filter_rejected_messages: int = 0
    filter_accepted_messages: int = 0
    filter_rescheduled_messages: int = 0
    aborted: bool = False
    first_message_id: str | None = None
    last_message_id: str | None = None


@router.put(TOPIC_PATH + "/backlogSize", AuthAction.CONSUME, refuses=(405,), waits_for=WaitsFor.STORE)
def get_backlog_size_by_message_id(broker: Broker, topic: Topic, place: Annotated[ResetCursorData, Body()]) -> int:
    """About how many bytes are at a message or behind it; -1:-1: how many there are."""
    with reported_as(partitioned="calculate backlog size is not allowed for partitioned-topic"):
        names.check_not_partitioned(broker.environment, topic)
    record = names.local_topic(broker, topic)
    environment = broker.environment
    some = extents(environment.metadata.snapshot(record.id), environment.log)
    if place.message_id == EARLIEST:
        return bytes_from(some, 0)
    first = opened(broker, record).first_at(place.message_id)
    return 0 if first is None else bytes_from(some, first.offset)


@router.post(
    ONE + "/analyzeBacklog",
    AuthAction.CONSUME,
    refuses=(405,),
    waits_for=WaitsFor.STORE,
    response_model_exclude_none=True,
)
def analyze_subscription_backlog(
    broker: Broker, topic: Topic, subscription: Subscription, place: Annotated[ResetCursorData | None, Body()] = None
) -> AnalyzedBacklog:
    """Read and count what a subscription has before it, from its position or a message on, to 10,000 entries."""
    reason = "Analyze backlog on a partitioned topic is not allowed, please try do it on specific topic partition"
    with reported_as(partitioned=reason):
        names.check_not_partitioned(broker.environment, topic)
    name, record = decoded(subscription), names.local_topic(broker, topic)
    with subscription_of(record, name):
        mark = broker.environment.metadata.cursors.get(record.id, name).mark_delete
    source = opened(broker, record)
    start: StartOffset | MessageId = next_of(mark) if place is None else place.message_id
    cursor = None
    if name != COMPACTION_CURSOR:
        end = source.snapshot_reader().end
        cursor = Cursor(broker.environment.metadata, broker.environment.clock, record, name, source.locate, lambda: end)
    backlog = AnalyzedBacklog()
    for rows in islice(entries(source, start), MOST_ENTRIES + 1):
        remaining = [row for row in rows if cursor is None or not cursor.is_acknowledged(row["offset"])]
        if not remaining:
            continue
        if backlog.entries == MOST_ENTRIES:
            backlog.aborted = True
            break
        backlog.entries += 1
        backlog.messages += len(remaining)
        backlog.first_message_id = backlog.first_message_id or _entry_id(remaining[0])
        backlog.last_message_id = _entry_id(remaining[-1])
    backlog.filter_accepted_entries, backlog.filter_accepted_messages = backlog.entries, backlog.messages
    return backlog


def _entry_id(row: dict[str, Any]) -> str:
    return f"{row['ledger_id']}:{row['entry_id']}"


@router.post(NAMESPACE_PATH + "/clearBacklog", AuthAction.CONSUME, refuses=(409, 507))
async def clear_namespace_backlog(broker: Broker, request: Request, namespace: Namespace) -> None:
    """Acknowledge all that there is for all subscriptions of all topics; `__compaction` stays where it is."""
    await _clear(broker, request, namespace, None, None)


@router.post(NAMESPACE_PATH + "/clearBacklog/{subscription}", AuthAction.CONSUME, refuses=(409, 507))
async def clear_namespace_backlog_for_subscription(
    broker: Broker, request: Request, namespace: Namespace, subscription: Subscription
) -> None:
    """The same for the subscriptions of that name."""
    await _clear(broker, request, namespace, None, subscription)


@router.post(_BUNDLE + "/clearBacklog", AuthAction.CONSUME, refuses=(409, 507))
async def clear_namespace_bundle_backlog(
    broker: Broker, request: Request, namespace: Namespace, bundle: Bundle
) -> None:
    """The same for the topics of one bundle."""
    await _clear(broker, request, namespace, bundle, None)


@router.post(_BUNDLE + "/clearBacklog/{subscription}", AuthAction.CONSUME, refuses=(409, 507))
async def clear_namespace_bundle_backlog_for_subscription(
    broker: Broker, request: Request, namespace: Namespace, bundle: Bundle, subscription: Subscription
) -> None:
    """The same for the subscriptions of that name, of the topics of one bundle."""
    await _clear(broker, request, namespace, bundle, subscription)


@router.post(NAMESPACE_PATH + "/unsubscribe/{subscription}", AuthAction.CONSUME)
async def unsubscribe_namespace(
    broker: Broker, request: Request, namespace: Namespace, subscription: Subscription
) -> None:
    """Delete the subscriptions of that name of all topics."""
    await _unsubscribe(broker, request, namespace, None, subscription)


@router.post(_BUNDLE + "/unsubscribe/{subscription}", AuthAction.CONSUME)
async def unsubscribe_namespace_bundle(
    broker: Broker, request: Request, namespace: Namespace, bundle: Bundle, subscription: Subscription
) -> None:
    """The same for the topics of one bundle."""
    await _unsubscribe(broker, request, namespace, bundle, subscription)


async def _clear(
    broker: Broker, request: Request, namespace: str, bundle: str | None, subscription: str | None
) -> None:
    name_filter = None if subscription is None else _no_compaction(subscription)
    database, store = broker.pools[WaitsFor.DATABASE], broker.pools[WaitsFor.STORE]
    for record in await database.run(_topics, broker, namespace, bundle):
        for name in await database.run(_subscriptions, broker, record, name_filter):
            try:
                await store.run(_clear_here, broker, record, name)
            except NotTheOwner as other:
                await _forward(broker, request, other, "POST", record, "subscription", name, "skip_all")


def _clear_here(broker: Broker, record: TopicRecord, name: str) -> None:
    """Clear a backlog whose topic this service owns; a deleted topic has none. Raises NotTheOwner."""
    try:
        broker.ownership.check_for_reading(record)
        clear_backlog(broker, record, name)
    except NotFound:
        return


async def _unsubscribe(broker: Broker, request: Request, namespace: str, bundle: str | None, subscription: str) -> None:
    name, database = _no_compaction(subscription), broker.pools[WaitsFor.DATABASE]
    for record in await database.run(_topics, broker, namespace, bundle):
        try:
            await database.run(_delete, broker, record, name)
        except NotTheOwner as other:
            await _forward(broker, request, other, "DELETE", record, "subscription", name)


def _delete(broker: Broker, record: TopicRecord, name: str) -> None:
    """Delete a subscription, unless there is none. Raises NotTheOwner: its consumers are connected there."""
    with suppress(NotFound):
        broker.environment.metadata.cursors.get(record.id, name)
        broker.ownership.check_for_clients(record)
        delete_cursor(broker, record, name, False)


async def _forward(
    broker: Broker, request: Request, other: NotTheOwner, method: str, record: TopicRecord, *path: str
) -> None:
    """Send a part of a request to the service that has the topic. Raises RestException for an error but 404."""
    where = (record.name.tenant, record.name.namespace, record.name.topic, *path)
    target = "/".join(("/admin/v2/persistent", *map(segment, where)))
    answer = await context_of(request).proxy.send(request, other.service, method, target, b"")
    if answer.status_code not in (204, 404):
        raise RestException(answer.status_code, f"{record.name}: {answer.text[:500]}") from other


def _topics(broker: Broker, namespace: str, bundle: str | None) -> list[TopicRecord]:
    names.namespace(broker.environment, namespace)
    bundle_filter = None if bundle is None else check_bundle(bundle)
    records = broker.environment.metadata.topics.in_namespace(namespace)
    return [item for item in records if bundle_filter is None or bundle_of(item.name) == bundle_filter]


def _subscriptions(broker: Broker, record: TopicRecord, name_filter: str | None) -> list[str]:
    names = (item.name for item in broker.environment.metadata.cursors.of_topic(record.id))
    return [name for name in names if name != COMPACTION_CURSOR and name_filter in (None, name)]


def _no_compaction(subscription: str) -> str:
    """Return the name of a subscription in a path.

    Raises RestException (412) for `__compaction`: it is a topic's horizon (A4).
    """
    name = decoded(subscription)
    if name == COMPACTION_CURSOR:
        raise RestException(
            412, f"{COMPACTION_CURSOR} is the compaction horizon of each topic: delete it topic by topic"
        )
    return name
