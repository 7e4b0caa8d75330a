"""Requests of clients that look for topics: LOOKUP, partitions, the topics of a namespace, and watching them."""

from __future__ import annotations

from api.broker import names
from api.broker.threads import WaitsFor
from api.http.access import AuthAction
from api.pulsar.codec import requests, responses
from api.pulsar.errors import Refused, ServerError
from api.pulsar.session import Session
from api.pulsar.topic_patterns import Matches
from api.pulsar.watching import WatchedTopics
from storage.model import TopicName


async def look_up(session: Session, request: requests.Lookup) -> responses.LookupResponse:
    """Return the URLs of the service that owns the topic; of this service if none does.

    Raise Refused for another listener name, and if the owner does not speak Pulsar's protocol.
    """
    name = await _permitted_topic(session, request)
    if request.advertised_listener_name:
        raise Refused(
            ServerError.MetadataError,
            f"this service has no listener {request.advertised_listener_name!r}: leave out listenerName",
        )
    broker = session.context.broker
    owner = await session.identity.threads[WaitsFor.DATABASE].run(
        names.other_owner, broker, name, session.settings.broker_auto_topic_creation
    )
    if owner is not None and owner.broker_service_url is None and owner.broker_service_url_tls is None:
        raise Refused(
            ServerError.ServiceNotReady,
            f"{name} is owned by {owner.name}, which does not speak Pulsar's protocol: stop that service, or set its "
            "broker-service-port",
        )
    service = owner or broker.settings
    return responses.LookupResponse(request.request_id, service.broker_service_url, service.broker_service_url_tls)


async def partitioned_metadata(
    session: Session, request: requests.PartitionedMetadata
) -> responses.PartitionedMetadataResponse:
    """Return the number of a topic's partitions; 0 also for a missing topic that the client may create."""
    name = await _permitted_topic(session, request)
    create = request.metadata_auto_creation_enabled and session.settings.broker_auto_topic_creation
    partitioned = await session.identity.threads[WaitsFor.DATABASE].run(
        names.find_partitioned, session.context.broker.environment, name, create
    )
    return responses.PartitionedMetadataResponse(request.request_id, partitioned.partitions if partitioned else 0)


async def _permitted_topic(session: Session, request: requests.Lookup | requests.PartitionedMetadata) -> TopicName:
    """Return the name of a request's topic. Raise Refused or RestException unless the client may produce or consume."""
    session.identity.check_original_principal(request.original_principal)
    return await session.identity.permitted_topic(request.topic, AuthAction.PRODUCE, AuthAction.CONSUME)


async def list_topics(
    session: Session, request: requests.GetTopicsOfNamespace
) -> responses.GetTopicsOfNamespaceResponse:
    """Return the topics of a namespace; none if the client asks for non-persistent topics alone."""
    await session.identity.require_namespace_permission(request.namespace, AuthAction.PRODUCE, AuthAction.CONSUME)
    topics: list[str] = []
    if request.mode != requests.ONLY_NON_PERSISTENT:
        topics = await session.context.topics_of(request.namespace, session.identity.threads)
    return responses.GetTopicsOfNamespaceResponse(request.request_id, topics)


async def watch(session: Session, request: requests.WatchTopicList) -> responses.WatchTopicListSuccess:
    """Watch the topics that match a pattern, and return the present ones; NamespaceWatch sends the changes."""
    namespace, pattern, watcher_id = request.namespace, request.topics_pattern, request.watcher_id
    await session.identity.require_namespace_permission(namespace, AuthAction.PRODUCE, AuthAction.CONSUME)
    session.watchers.reserve(watcher_id)
    try:
        topics = tuple(await session.context.topics_of(namespace, session.identity.threads))
        matches = await session.identity.threads[WaitsFor.PARSING].run(Matches.of, pattern, topics)
    except BaseException:
        session.watchers.remove(watcher_id)
        raise
    session.watchers.note_sent(watcher_id, WatchedTopics(namespace, pattern, topics, matches))
    return responses.WatchTopicListSuccess(request.request_id, watcher_id, matches.topics, matches.hash)


def unwatch(session: Session, request: requests.WatchTopicListClose) -> responses.Success:
    """Close a watcher; an unknown one is a success."""
    session.watchers.remove(request.watcher_id)
    return responses.Success(request.request_id)
