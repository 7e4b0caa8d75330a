"""Connections of a mirror to a Kafka cluster: its brokers, the partitions of one topic, record batches as stored.

aiokafka connects, speaks TLS, authenticates (SASL) and matches answers to requests. What this module adds is one
connection to each broker that leads a partition, and errors in our words:

    Unavailable     a broker does not answer, or a partition has no leader now: try again
    Misconfigured   authentication or authorization fails, a version is too old, there is no such topic: an operator
                    must act, and later tries may succeed

For one event loop. Must not know: the topic here.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiokafka import errors as kafka_errors
from aiokafka.conn import AIOKafkaConnection, create_conn

from api.broker.mirroring import protocol
from api.broker.mirroring.protocol import FetchedPartition, FetchPosition, TopicRequest
from api.broker.mirroring.source import MirrorSource
from storage.errors import Misconfigured, Unavailable

_REQUEST_MS = 30_000
_CLIENT_ID = "compactor-mirror"
_AUTHENTICATION = (
    kafka_errors.AuthenticationFailedError,
    kafka_errors.SaslAuthenticationFailed,
    kafka_errors.UnsupportedSaslMechanismError,
    kafka_errors.IllegalSaslStateError,
)


@dataclass(frozen=True)
class SourceTopic:
    """A topic of Kafka as a broker describes it. `leaders`: the id of the leading broker by partition number."""

    cluster_id: str
    topic_id: bytes
    leaders: Mapping[int, int]

    @property
    def uid(self) -> str:
        """Return the topic's id in Kafka as hexadecimal text."""
        return self.topic_id.hex()


class KafkaCluster:
    """A client of the Kafka cluster that has the source topic of a mirror: one connection to each broker."""

    def __init__(self, source: MirrorSource) -> None:
        self.source = source
        self._addresses: dict[int, tuple[str, int]] = {}
        self._connections: dict[int, AIOKafkaConnection] = {}

    async def describe_topic(self) -> SourceTopic:
        """Ask a broker for the id and partition leaders of the source topic; keep the addresses of all brokers.

        Raises Unavailable, Misconfigured.
        """
        response = await self._request_metadata()
        self._addresses = {node: (host, port) for node, host, port, _, _ in response.brokers}
        if not response.topics:
            raise Unavailable(f"Kafka says nothing about the topic {self.source.topic}", "try again", is_public=True)
        code, _, topic_id, _, partitions, _, _ = response.topics[0]
        if code == protocol.UNKNOWN_TOPIC:
            raise Misconfigured(
                f"the topic {self.source.topic} does not exist in Kafka at {self.source.url}",
                "check its name, or create it; then the mirror goes on by itself",
                is_public=True,
            )
        self._raise_for_code(code, "the topic")
        leaders = {number: leader for _, number, leader, *_ in partitions}
        return SourceTopic(response.cluster_id or "", topic_id, dict(sorted(leaders.items())))

    async def earliest_or_latest_offset(self, leader: int, partition: int, end: int) -> int:
        """Ask the leader of a Kafka partition for its first offset, or for the offset after its last record.

        `end`: EARLIEST or LATEST. Raises Unavailable, Misconfigured.
        """
        response = await self._send(leader, protocol.offsets_request(self.source.topic, partition, end))
        _, code, _, offset, *_ = response.topics[0][1][0]
        self._raise_for_code(code, f"partition {partition}")
        return int(offset)

    async def fetch(
        self, leader: int, topic_id: bytes, positions: Mapping[int, FetchPosition], max_bytes: int, max_wait_ms: int
    ) -> Sequence[FetchedPartition]:
        """Fetch record batches from the leader of some partitions; wait `max_wait_ms` at most for records.

        `positions`: the position to fetch from, by partition. Raises Unavailable, Misconfigured.
        """
        response = await self._send(leader, protocol.fetch_request(topic_id, positions, max_bytes, max_wait_ms))
        self._raise_for_code(response.error_code, "the topic")
        return protocol.fetched_partitions(response)

    def check_partition(self, fetched: FetchedPartition) -> None:
        """Raise Unavailable or Misconfigured if a fetch response has an error code for a partition."""
        self._raise_for_code(fetched.error_code, f"partition {fetched.number}")

    async def close(self) -> None:
        """Close the connections to all brokers."""
        connections, self._connections = list(self._connections.values()), {}
        for connection in connections:
            connection.close()
        await asyncio.sleep(0)

    async def _request_metadata(self) -> Any:
        """Return the Metadata response of the first broker that answers. Raises Unavailable, Misconfigured."""
        request = protocol.metadata_request(self.source.topic)
        for node in list(self._connections):
            try:
                return await self._send(node, request)
            except Unavailable:
                continue
        error: Unavailable | None = None
        for host, port in self.source.brokers:
            try:
                connection = await self._connect(host, port)
            except Unavailable as refused:
                error = refused
                continue
            try:
                return await self._send_over_connection(connection, request)
            except Unavailable as refused:
                error = refused
            finally:
                connection.close()
        assert error is not None, "a source has a broker"
        raise error

    async def _send(self, node: int, request: TopicRequest) -> Any:
        connection = self._connections.get(node)
        if connection is None or not connection.connected():
            address = self._addresses.get(node)
            if address is None:
                raise Unavailable(
                    f"no broker leads a partition of {self.source.topic} now",
                    "the mirror tries again by itself",
                    is_public=True,
                )
            connection = self._connections[node] = await self._connect(*address)
        return await self._send_over_connection(connection, request)

    async def _connect(self, host: str, port: int) -> AIOKafkaConnection:
        options = self.source.options
        password = options.password() if options.sasl else None
        context = options.ssl_context()
        try:
            return await create_conn(
                host,
                port,
                client_id=_CLIENT_ID,
                request_timeout_ms=_REQUEST_MS,
                ssl_context=context,
                security_protocol=options.security_protocol,
                sasl_mechanism=options.sasl or None,
                sasl_plain_username=options.username or None,
                sasl_plain_password=password,
            )
        except _AUTHENTICATION as error:
            raise Misconfigured(
                f"Kafka at {host}:{port} refuses the user {options.username!r} by {options.sasl} "
                f"({type(error).__name__})",
                "check user, password and mechanism; the mirror tries again by itself",
                is_public=True,
            ) from error
        except ssl.SSLCertVerificationError as error:
            raise Misconfigured(
                f"the certificate of Kafka at {host}:{port} is not accepted ({error.verify_message})",
                "name its authority (tls-ca), and the host name that is in it",
                is_public=True,
            ) from error
        except (kafka_errors.KafkaError, OSError, TimeoutError, EOFError) as error:
            raise _unreachable_error(host, port, error) from error

    async def _send_over_connection(self, connection: AIOKafkaConnection, request: TopicRequest) -> Any:
        try:
            return await connection.send(request)
        except NotImplementedError as error:
            raise Misconfigured(
                f"Kafka at {connection.host}:{connection.port} is older than 3.1", "upgrade its brokers", is_public=True
            ) from error
        except (kafka_errors.KafkaError, OSError, TimeoutError, EOFError, ValueError) as error:
            connection.close()
            raise _unreachable_error(connection.host, connection.port, error) from error

    def _raise_for_code(self, code: int, subject: str) -> None:
        """Raise Unavailable or Misconfigured for an error code of Kafka; return for NO_ERROR.

        `subject`: the topic or partition that the code is about, for the message.
        """
        if code == protocol.NO_ERROR:
            return
        kind = kafka_errors.for_code(code)
        what = f"Kafka answers {kind.__name__} for {subject} of {self.source.topic}"
        if code == protocol.TOPIC_NOT_AUTHORIZED:
            raise Misconfigured(what, "permit the mirror's user to read and describe the topic", is_public=True)
        raise Unavailable(what, "the mirror tries again by itself", is_public=True)


def _unreachable_error(host: str, port: int, error: BaseException) -> Unavailable:
    cause = str(error) or type(error).__name__
    return Unavailable(
        f"Kafka at {host}:{port} does not answer ({cause})", "the mirror tries again by itself", is_public=True
    )
