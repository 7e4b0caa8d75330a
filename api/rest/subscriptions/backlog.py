"""Routes of backlogs, by Pulsar's calls: their size and their analysis; clear them and unsubscribe by namespace.

A call on a namespace executes one operation for each topic, in the service that has the topic's messages and clients,
so it sends parts to other services. A failure ends the call; the operations before it stay, and the same call continues
with the others.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, NamedTuple

from fastapi import Body, Path, Request

from api.broker import names, subscriptions
from api.broker.refusals import NotTheOwner
from api.broker.threads import WaitsFor
from api.http.access import AuthAction
from api.http.context import context_of
from api.http.dependencies import Broker
from api.http.paths import NAMESPACE_PATH, TOPIC_PATH, Namespace, Topic, encode_path_segment
from api.http.problems import RestException, reword_errors
from api.http.router import Routes
from api.rest.models import PulsarAnswer
from api.rest.subscriptions.requests import CURSOR_PATH, ResetCursorData, Subscription
from api.rest.tenancy.bundles import bundle_of, parse_bundle
from storage.errors import NotFound
from storage.metadata.records import COMPACTION_CURSOR, TopicRecord
from storage.model import TopicName

router = Routes("backlog")

_BUNDLE = NAMESPACE_PATH + "/{bundle}"
Bundle = Annotated[str, Path(description="Only the topics of this bundle of the namespace.")]


class _SubscriptionOperation(NamedTuple):
    """An operation on one subscription: `run`, and the route that executes it in another service. `path`: below the
    path of the subscription."""

    run: Callable[[Broker, TopicName, str], None]
    waits_for: WaitsFor
    method: str
    path: str = ""


_CLEAR = _SubscriptionOperation(subscriptions.clear_backlog, WaitsFor.STORE, "POST", "/skip_all")
_DELETE = _SubscriptionOperation(subscriptions.delete, WaitsFor.DATABASE, "DELETE")


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
def get_backlog_size_by_message_id(broker: Broker, topic: Topic, position: Annotated[ResetCursorData, Body()]) -> int:
    """Return the approximate number of bytes of a topic from a message on; of all messages for -1:-1."""
    with reword_errors(partitioned="calculate backlog size is not allowed for partitioned-topic"):
        return subscriptions.backlog_size(broker, topic, position.message_id)


@router.post(
    CURSOR_PATH + "/analyzeBacklog",
    AuthAction.CONSUME,
    refuses=(405,),
    waits_for=WaitsFor.STORE,
    response_model_exclude_none=True,
)
def analyze_subscription_backlog(
    broker: Broker, topic: Topic, subscription: Subscription, start: Annotated[ResetCursorData | None, Body()] = None
) -> AnalyzedBacklog:
    """Read and count the backlog of a subscription, from its position or from a message on.

    At most 10,000 entries are read; `aborted`: there are more.
    """
    reason = "Analyze backlog on a partitioned topic is not allowed, please try do it on specific topic partition"
    with reword_errors(partitioned=reason):
        content = subscriptions.analyze(broker, topic, subscription, None if start is None else start.message_id)
    return AnalyzedBacklog(
        entries=content.entries,
        messages=content.messages,
        filter_accepted_entries=content.entries,
        filter_accepted_messages=content.messages,
        aborted=content.is_cut_off,
        first_message_id=_entry_id_text(content.first_entry),
        last_message_id=_entry_id_text(content.last_entry),
    )


def _entry_id_text(entry: tuple[int, int] | None) -> str | None:
    return None if entry is None else f"{entry[0]}:{entry[1]}"


@router.post(NAMESPACE_PATH + "/clearBacklog", AuthAction.CONSUME, refuses=(409, 507))
async def clear_namespace_backlog(broker: Broker, request: Request, namespace: Namespace) -> None:
    """Acknowledge all messages of all topics of a namespace for each subscription but `__compaction`."""
    await _run_on_subscriptions(broker, request, _CLEAR, namespace)


@router.post(NAMESPACE_PATH + "/clearBacklog/{subscription}", AuthAction.CONSUME, refuses=(409, 507))
async def clear_namespace_backlog_for_subscription(
    broker: Broker, request: Request, namespace: Namespace, subscription: Subscription
) -> None:
    """Acknowledge all messages of all topics of a namespace for the subscriptions of one name."""
    await _run_on_subscriptions(broker, request, _CLEAR, namespace, subscription=subscription)


@router.post(_BUNDLE + "/clearBacklog", AuthAction.CONSUME, refuses=(409, 507))
async def clear_namespace_bundle_backlog(
    broker: Broker, request: Request, namespace: Namespace, bundle: Bundle
) -> None:
    """Acknowledge all messages of a bundle's topics for each subscription but `__compaction`."""
    await _run_on_subscriptions(broker, request, _CLEAR, namespace, bundle)


@router.post(_BUNDLE + "/clearBacklog/{subscription}", AuthAction.CONSUME, refuses=(409, 507))
async def clear_namespace_bundle_backlog_for_subscription(
    broker: Broker, request: Request, namespace: Namespace, bundle: Bundle, subscription: Subscription
) -> None:
    """Acknowledge all messages of a bundle's topics for the subscriptions of one name."""
    await _run_on_subscriptions(broker, request, _CLEAR, namespace, bundle, subscription)


@router.post(NAMESPACE_PATH + "/unsubscribe/{subscription}", AuthAction.CONSUME)
async def unsubscribe_namespace(
    broker: Broker, request: Request, namespace: Namespace, subscription: Subscription
) -> None:
    """Delete the subscriptions of one name from all topics of a namespace."""
    await _run_on_subscriptions(broker, request, _DELETE, namespace, subscription=subscription)


@router.post(_BUNDLE + "/unsubscribe/{subscription}", AuthAction.CONSUME)
async def unsubscribe_namespace_bundle(
    broker: Broker, request: Request, namespace: Namespace, bundle: Bundle, subscription: Subscription
) -> None:
    """Delete the subscriptions of one name from a bundle's topics."""
    await _run_on_subscriptions(broker, request, _DELETE, namespace, bundle, subscription)


async def _run_on_subscriptions(
    broker: Broker,
    request: Request,
    operation: _SubscriptionOperation,
    namespace: str,
    bundle: str | None = None,
    subscription: str | None = None,
) -> None:
    """Execute an operation on the subscriptions of each topic of a namespace, or of one bundle: on those with the name
    `subscription`, or on all but `__compaction`.

    Each is a call of its own, with its own deadline; the owner of a topic executes it. Raise RestException (412) for
    the name `__compaction`, a topic's horizon (A4).
    """
    if subscription == COMPACTION_CURSOR:
        raise RestException(
            412, f"{COMPACTION_CURSOR} is the compaction horizon of each topic: delete it topic by topic"
        )
    database = broker.pools[WaitsFor.DATABASE]
    for record in await database.run(_topics_in_bundle, broker, namespace, bundle):
        for name in await database.run(subscriptions.names_without_compaction, broker.environment, record):
            if subscription not in (None, name):
                continue
            try:
                await broker.pools[operation.waits_for].run(
                    _run_unless_missing, operation.run, broker, record.name, name
                )
            except NotTheOwner as other:
                path = f"subscription/{encode_path_segment(name)}{operation.path}"
                await context_of(request).proxy.send_to_owner(request, other, operation.method, path)


def _run_unless_missing(
    operation: Callable[[Broker, TopicName, str], None], broker: Broker, name: TopicName, subscription: str
) -> None:
    with suppress(NotFound):
        operation(broker, name, subscription)


def _topics_in_bundle(broker: Broker, namespace: str, bundle: str | None) -> list[TopicRecord]:
    """Return the topics of a bundle of a namespace, or of all its bundles. Raise NotFound without the namespace,
    RestException (412) for an unknown bundle."""
    names.namespace(broker.environment, namespace)
    bundle_filter = None if bundle is None else parse_bundle(bundle)
    records = broker.environment.metadata.topics.in_namespace(namespace)
    return [item for item in records if bundle_filter is None or bundle_of(item.name) == bundle_filter]
