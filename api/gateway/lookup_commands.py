"""Commands of clients that look for topics: LOOKUP, partitions, the topics of a namespace, and watching them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from api.gateway import lookup
from api.gateway.commands import Refused, success
from api.gateway.lookup import parse_name
from api.gateway.pulsar_api_pb2 import (
    BaseCommand,
    CommandLookupTopic,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadata,
    CommandPartitionedTopicMetadataResponse,
    ServerError,
)
from api.http.access import AuthAction
from api.http.thread_pools import WaitsFor

if TYPE_CHECKING:
    from api.gateway.connection import Connection

MOST_WATCHERS = 100
"""Namespaces that one connection watches."""


def look_up(connection: Connection, command: BaseCommand, _: bytes) -> None:
    request = command.lookup_topic
    connection.begin(request.request_id, _looked_up(connection, request), command.type)


async def _looked_up(connection: Connection, request: CommandLookupTopic) -> BaseCommand:
    name = parse_name(request.topic)
    await connection.allow(name, AuthAction.PRODUCE, AuthAction.CONSUME)
    result = await connection.pools[WaitsFor.DATABASE].run(
        lookup.look_up, connection.parts, name, connection.gateway.address, connection.settings.auto_create
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
    await connection.allow(name, AuthAction.PRODUCE, AuthAction.CONSUME)
    answer = BaseCommand(type=BaseCommand.PARTITIONED_METADATA_RESPONSE)
    response = answer.partition_metadata_response
    response.request_id = request.request_id
    response.partitions = await connection.pools[WaitsFor.DATABASE].run(lookup.partitions_of, connection.parts, name)
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
            await connection.pools[WaitsFor.DATABASE].run(lookup.topics_of, connection.parts, wish.namespace, wish.mode)
        )
        return answer

    connection.begin(wish.request_id, listed(), command.type)


def watch(connection: Connection, command: BaseCommand, _: bytes) -> None:
    wish = command.watch_topic_list

    async def watched() -> BaseCommand:
        await connection.allow_namespace(wish.namespace, AuthAction.PRODUCE, AuthAction.CONSUME)
        if len(connection.watchers) >= MOST_WATCHERS:
            raise Refused(
                ServerError.TooManyRequests,
                f"this connection has {MOST_WATCHERS} watchers: close some, or connect again",
            )
        pattern = lookup.pattern_of(wish.topics_pattern)
        names = await connection.gateway.topics_of(wish.namespace)
        found = await connection.pools[WaitsFor.PARSING].run(lookup.matching, pattern, names)
        connection.watchers[wish.watcher_id] = lookup.Watched(wish.namespace, pattern, frozenset(found))
        answer = BaseCommand(type=BaseCommand.WATCH_TOPIC_LIST_SUCCESS)
        response = answer.watch_topic_list_success
        response.request_id, response.watcher_id = wish.request_id, wish.watcher_id
        response.topic.extend(found)
        response.topics_hash = lookup.hash_of(found)
        return answer

    connection.begin(wish.request_id, watched())


def unwatch(connection: Connection, command: BaseCommand, _: bytes) -> None:
    wish = command.watch_topic_list_close
    connection.watchers.pop(wish.watcher_id, None)
    connection.send(success(wish.request_id))


async def notify_watchers(connection: Connection, topics_of: Callable[[str], Awaitable[list[str]]]) -> None:
    """Tell a client what has changed in the namespaces that it watches."""
    for watcher_id, watched in list(connection.watchers.items()):
        names = await topics_of(watched.namespace)
        found = await connection.pools[WaitsFor.PARSING].run(lookup.matching, watched.pattern, names)
        now = frozenset(found)
        if now == watched.topics or connection.watchers.get(watcher_id) is not watched:
            continue
        connection.watchers[watcher_id] = replace(watched, topics=now)
        command = BaseCommand(type=BaseCommand.WATCH_TOPIC_UPDATE)
        update = command.watch_topic_update
        update.watcher_id = watcher_id
        update.new_topics.extend(sorted(now - watched.topics))
        update.deleted_topics.extend(sorted(watched.topics - now))
        update.topics_hash = lookup.hash_of(found)
        connection.send(command)
