"""Commands of clients that look for topics: LOOKUP, partitions, the topics of a namespace, and watching them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from api.broker.threads import WaitsFor
from api.http.access import AuthAction
from api.pulsar import lookup
from api.pulsar.errors import Refused, success
from api.pulsar.lookup import parse_name
from api.pulsar.pulsar_api_pb2 import (
    BaseCommand,
    CommandLookupTopic,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadata,
    CommandPartitionedTopicMetadataResponse,
    CommandWatchTopicList,
    ServerError,
)
from api.pulsar.topic_patterns import Matches
from api.pulsar.watching import Watched

if TYPE_CHECKING:
    from api.pulsar.connection import Connection


def look_up(connection: Connection, command: BaseCommand, _: bytes) -> None:
    request = command.lookup_topic
    connection.begin(request.request_id, _looked_up(connection, request), command.type)


async def _looked_up(connection: Connection, request: CommandLookupTopic) -> BaseCommand:
    name = parse_name(request.topic)
    connection.check_original_principal(request.original_principal)
    await connection.allow(name, AuthAction.PRODUCE, AuthAction.CONSUME)
    if request.advertised_listener_name:
        raise Refused(
            ServerError.MetadataError,
            f"this service has no listener {request.advertised_listener_name!r}: leave out listenerName",
        )
    result = await connection.pools[WaitsFor.DATABASE].run(
        lookup.look_up, connection.broker, name, connection.gateway.address, connection.settings.auto_create
    )
    answer = BaseCommand(type=BaseCommand.LOOKUP_RESPONSE)
    response = answer.lookup_topic_response
    response.request_id = request.request_id
    response.response = CommandLookupTopicResponse.Connect
    response.authoritative = True
    if result.url:
        response.broker_service_url = result.url
    if result.tls_url:
        response.broker_service_url_tls = result.tls_url
    return answer


def partitioned_metadata(connection: Connection, command: BaseCommand, _: bytes) -> None:
    request = command.partition_metadata
    connection.begin(request.request_id, _counted(connection, request), command.type)


async def _counted(connection: Connection, request: CommandPartitionedTopicMetadata) -> BaseCommand:
    name = parse_name(request.topic)
    connection.check_original_principal(request.original_principal)
    await connection.allow(name, AuthAction.PRODUCE, AuthAction.CONSUME)
    answer = BaseCommand(type=BaseCommand.PARTITIONED_METADATA_RESPONSE)
    response = answer.partition_metadata_response
    response.request_id = request.request_id
    create = request.metadata_auto_creation_enabled and connection.settings.auto_create
    response.partitions = await connection.pools[WaitsFor.DATABASE].run(
        lookup.partitions_of, connection.broker, name, create
    )
    response.response = CommandPartitionedTopicMetadataResponse.Success
    return answer


def list_topics(connection: Connection, command: BaseCommand, _: bytes) -> None:
    wish = command.get_topics_of_namespace

    async def listed() -> BaseCommand:
        answer = BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE)
        response = answer.get_topics_of_namespace_response
        response.request_id = wish.request_id
        await connection.allow_namespace(wish.namespace, AuthAction.PRODUCE, AuthAction.CONSUME)
        response.topics.extend(
            await connection.pools[WaitsFor.DATABASE].run(
                lookup.topics_of, connection.broker, wish.namespace, wish.mode
            )
        )
        return answer

    connection.begin(wish.request_id, listed(), command.type)


def watch(connection: Connection, command: BaseCommand, _: bytes) -> None:
    request = command.watch_topic_list
    connection.begin(request.request_id, _watched(connection, request), command.type)


async def _watched(connection: Connection, request: CommandWatchTopicList) -> BaseCommand:
    await connection.allow_namespace(request.namespace, AuthAction.PRODUCE, AuthAction.CONSUME)
    connection.watchers.reserve(request.watcher_id)
    try:
        names = tuple(await connection.gateway.topics_of(request.namespace))
        matches = await connection.pools[WaitsFor.PARSING].run(Matches.of, request.topics_pattern, names)
    except BaseException:
        connection.watchers.remove(request.watcher_id)
        raise
    connection.watchers.set(request.watcher_id, Watched(request.namespace, request.topics_pattern, names, matches))
    answer = BaseCommand(type=BaseCommand.WATCH_TOPIC_LIST_SUCCESS)
    response = answer.watch_topic_list_success
    response.request_id, response.watcher_id = request.request_id, request.watcher_id
    response.topic.extend(matches.topics)
    response.topics_hash = matches.hash
    return answer


def unwatch(connection: Connection, command: BaseCommand, _: bytes) -> None:
    request = command.watch_topic_list_close
    connection.watchers.remove(request.watcher_id)
    connection.send(success(request.request_id))
