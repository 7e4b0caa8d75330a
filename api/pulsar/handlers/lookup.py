"""Requests of clients that look for topics: LOOKUP, partitions, the topics of a namespace, and watching them."""

from __future__ import annotations

from api.broker.threads import WaitsFor
from api.http.access import AuthAction
from api.pulsar import lookup
from api.pulsar.codec import requests, responses
from api.pulsar.errors import Refused, ServerError
from api.pulsar.lookup import parse_name
from api.pulsar.session import Session
from api.pulsar.topic_patterns import Matches
from api.pulsar.watching import WatchedTopics
from storage.model import TopicName


def look_up(session: Session, request: requests.Lookup) -> None:
    session.begin(request, _look_up(session, request))


async def _look_up(session: Session, request: requests.Lookup) -> responses.LookupResponse:
    name = await _allowed_name(session, request)
    if request.advertised_listener_name:
        raise Refused(
            ServerError.MetadataError,
            f"this service has no listener {request.advertised_listener_name!r}: leave out listenerName",
        )
    context = session.context
    result = await session.identity.threads[WaitsFor.DATABASE].run(
        lookup.look_up, context.broker, name, context.address, session.settings.auto_create
    )
    return responses.LookupResponse(request.request_id, result.url or None, result.tls_url or None)


def partitioned_metadata(session: Session, request: requests.PartitionedMetadata) -> None:
    session.begin(request, _partitioned_metadata(session, request))


async def _partitioned_metadata(
    session: Session, request: requests.PartitionedMetadata
) -> responses.PartitionedMetadataResponse:
    name = await _allowed_name(session, request)
    create = request.metadata_auto_creation_enabled and session.settings.auto_create
    partitions = await session.identity.threads[WaitsFor.DATABASE].run(
        lookup.partitions_of, session.context.broker, name, create
    )
    return responses.PartitionedMetadataResponse(request.request_id, partitions)


async def _allowed_name(session: Session, request: requests.Lookup | requests.PartitionedMetadata) -> TopicName:
    """Return the name of the topic, on which the client may produce or consume. Raise Refused and RestException."""
    name = parse_name(request.topic)
    session.identity.check_original_principal(request.original_principal)
    await session.identity.allow(name, AuthAction.PRODUCE, AuthAction.CONSUME)
    return name


def list_topics(session: Session, request: requests.GetTopicsOfNamespace) -> None:
    async def respond() -> responses.GetTopicsOfNamespaceResponse:
        await session.identity.allow_namespace(request.namespace, AuthAction.PRODUCE, AuthAction.CONSUME)
        topics: list[str] = []
        if request.mode != requests.TopicMode.NON_PERSISTENT:
            topics = await session.identity.threads[WaitsFor.DATABASE].run(
                lookup.topics_of, session.context.broker, request.namespace
            )
        return responses.GetTopicsOfNamespaceResponse(request.request_id, topics)

    session.begin(request, respond())


def watch(session: Session, request: requests.WatchTopicList) -> None:
    session.begin(request, _watch(session, request))


async def _watch(session: Session, request: requests.WatchTopicList) -> responses.WatchTopicListSuccess:
    namespace, pattern, watcher_id = request.namespace, request.topics_pattern, request.watcher_id
    await session.identity.allow_namespace(namespace, AuthAction.PRODUCE, AuthAction.CONSUME)
    session.watchers.reserve(watcher_id)
    try:
        names = tuple(await session.context.topics_of(namespace))
        matches = await session.identity.threads[WaitsFor.PARSING].run(Matches.of, pattern, names)
    except BaseException:
        session.watchers.remove(watcher_id)
        raise
    session.watchers.set(watcher_id, WatchedTopics(namespace, pattern, names, matches))
    return responses.WatchTopicListSuccess(request.request_id, watcher_id, matches.topics, matches.hash)


def unwatch(session: Session, request: requests.WatchTopicListClose) -> None:
    session.watchers.remove(request.watcher_id)
    session.send(responses.Success(request.request_id))
