"""Lookup: which service has a topic, how many partitions it has, which topics a namespace has.

A topic is where its writer's lease is, or its open segment; if it is nowhere, it is whoever was asked that has it, and
the first producer or consumer makes it so. For threads: it reads SQL.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, cast

import re2

from api.gateway.commands import Refused
from api.gateway.pulsar_api_pb2 import CommandGetTopicsOfNamespace, ServerError
from api.http.owner_proxy import NotTheOwner
from api.service import Service
from storage.errors import NotFound, TopicNotFound
from storage.metadata.records import ServiceRecord, TopicRecord
from storage.model import DOMAIN, TopicName


def parse_name(text: str) -> TopicName:
    """A topic's name as clients send it. Raises Refused for one that is not persistent, InvalidTopicName."""
    domain, separator, _ = text.partition("://")
    if separator and domain != DOMAIN:
        raise Refused(
            ServerError.NotAllowedError,
            f"{text} is not a persistent topic: only persistent:// topics are served, and only they can be read "
            "compacted",
        )
    return TopicName.parse(text)


@dataclass(frozen=True)
class LookupResult:
    """Where a topic is served. An empty URL: not without TLS, or not with it."""

    url: str
    tls_url: str


def find_or_create(parts: Service, name: TopicName, create: bool) -> tuple[TopicRecord, bool]:
    """The topic, made if that is allowed, and whether it was made. Raises Refused (TopicNotFound), also for a
    partitioned topic as a whole."""
    metadata = parts.environment.metadata
    try:
        return metadata.topics.get(name), False
    except TopicNotFound:
        if metadata.partitions.find(name) is not None:
            raise Refused(
                ServerError.NotAllowedError, f"{name} is a partitioned topic: use its partitions, as clients do"
            ) from None
        if not create:
            raise _not_created(name) from None
        whole = None if name.whole is None else metadata.partitions.find(name.whole)
        if whole is not None and name.partition >= whole.partitions:
            raise Refused(
                ServerError.TopicNotFound, f"{name} does not exist: {name.whole} has {whole.partitions} partitions"
            ) from None
    try:
        metadata.tenancy.namespace(f"{name.tenant}/{name.namespace}")
    except NotFound as error:
        raise Refused(ServerError.TopicNotFound, f"Namespace not found: {error.message}") from error
    return metadata.tenancy.ensure_topic(name), True


def _not_created(name: TopicName) -> Refused:
    return Refused(
        ServerError.TopicNotFound,
        f"{name} does not exist, and is not made on first use (broker.auto-topic-creation, or the client's own wish): "
        f"make it with `pulsar-admin topics create {name}`",
    )


def owner_of(parts: Service, record: TopicRecord) -> ServiceRecord | None:
    """The service that has a topic; None: this one may. Raises RestException (503)."""
    if parts.producers.is_open(record):
        return None
    try:
        parts.forwarding.for_writing(record)
    except NotTheOwner as other:
        return other.service
    return None


def look_up(parts: Service, name: TopicName, ours: LookupResult, create: bool) -> LookupResult:
    """Where a topic is served. Raises Refused (TopicNotFound) unless it may be created."""
    try:
        record = parts.environment.metadata.topics.get(name)
    except TopicNotFound:
        if not create and parts.environment.metadata.partitions.find(name) is None:
            raise _not_created(name) from None
        return ours
    owner = owner_of(parts, record)
    if owner is None:
        return ours
    if owner.broker_service_url is None and owner.broker_service_url_tls is None:
        raise Refused(
            ServerError.ServiceNotReady,
            f"{name} is written by {owner.name}, which does not speak Pulsar's protocol: end it, or set its "
            "broker-service-port",
        )
    return LookupResult(owner.broker_service_url or "", owner.broker_service_url_tls or "")


def partitions_of(parts: Service, name: TopicName) -> int:
    """The number of a topic's partitions; 0: it is not partitioned, or there is none of that name."""
    found = parts.environment.metadata.partitions.find(name)
    return 0 if found is None else found.partitions


def topics_of(parts: Service, namespace: str, mode: CommandGetTopicsOfNamespace.Mode) -> list[str]:
    """The topics of a namespace, partitions one by one."""
    if mode == CommandGetTopicsOfNamespace.NonPersistent:
        return []
    parts.environment.metadata.tenancy.namespace(namespace)
    return [str(item.name) for item in parts.environment.metadata.topics.in_namespace(namespace)]


MOST_PATTERN_CHARACTERS = 1_000
_QUIET = re2.Options()
_QUIET.log_errors = False


class Pattern(Protocol):
    """A compiled pattern, as RE2 has it: matching takes time that grows with the text alone, whatever a client asks."""

    def fullmatch(self, text: str) -> object | None:
        """Something if all of `text` fits."""


@dataclass(frozen=True)
class Watched:
    """What a client watches: the topics of a namespace whose names fit a pattern, and which they were last."""

    namespace: str
    pattern: Pattern
    topics: frozenset[str]


def pattern_of(text: str) -> Pattern:
    """A pattern of topics' names, without their domain, in RE2's language. Raises Refused."""
    try:
        if len(text) > MOST_PATTERN_CHARACTERS:
            raise re2.error(f"it has more than {MOST_PATTERN_CHARACTERS} characters")
        return cast(Pattern, re2.compile(text.removeprefix(f"{DOMAIN}://"), _QUIET))
    except re2.error as error:
        raise Refused(ServerError.NotAllowedError, f"{text[:100]!r} is no pattern (RE2): {_text_of(error)}") from error


def _text_of(error: Exception) -> str:
    found = error.args[0] if error.args else ""
    return found.decode(errors="replace") if isinstance(found, bytes) else str(found)


def matching(pattern: Pattern, names: Iterable[str]) -> list[str]:
    """The names, in full, that a pattern fits; partitions go by the name of the whole."""
    prefix = f"{DOMAIN}://"
    return [name for name in names if pattern.fullmatch(re.sub(r"-partition-\d+$", "", name.removeprefix(prefix)))]


def hash_of(names: Iterable[str]) -> str:
    """Pulsar's hash of a list of topics: a checksum of the sorted names, in hex."""
    return f"{zlib.crc32(','.join(sorted(names)).encode()):08x}"
