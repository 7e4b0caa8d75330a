"""A producer of a session: what its topic sends becomes responses."""

from __future__ import annotations

from api.broker.serving.producer import AccessMode, Producer, ProducerOptions
from api.broker.serving.topic import PersistentTopic
from api.pulsar.codec import requests, responses
from api.pulsar.errors import ServerError, refusal
from api.pulsar.session import Session
from storage.errors import ChecksumMismatch
from storage.model import MessageId


class ConnectedProducer:
    """The channel of one producer (serving/channel.py), with the producer and its topic."""

    def __init__(self, session: Session, topic: PersistentTopic, request: requests.Producer, name: str) -> None:
        self.connection = session
        self.topic = topic
        self._producer_id = request.producer_id
        self._send = session.channel.send
        self.note_queued = session.pending_publishes.add
        options = ProducerOptions(
            name,
            request.producer_id,
            request.epoch,
            AccessMode(request.producer_access_mode),
            request.topic_epoch,
            request.metadata,
        )
        self.producer: Producer = topic.new_producer(self, options)

    @property
    def address(self) -> str:
        return self.connection.channel.address

    @property
    def client_version(self) -> str:
        return self.connection.client_version

    def send_receipt(self, sequence_id: int, highest_sequence_id: int, message_id: MessageId) -> None:
        self._send(responses.SendReceipt(self._producer_id, sequence_id, highest_sequence_id, message_id))

    def send_error(self, sequence_id: int, error: BaseException) -> None:
        reason = refusal(error)
        code = ServerError.ChecksumError if isinstance(error, ChecksumMismatch) else reason.error
        self._send(responses.SendError(self._producer_id, sequence_id, code, reason.message))

    def disconnect(self) -> None:
        self.connection.close_producer(self)

    async def is_alive(self) -> bool:
        return await self.connection.is_alive()
