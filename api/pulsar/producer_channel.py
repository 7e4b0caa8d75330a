"""A producer on a connection: receipts and errors of its entries become commands of the protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from api.broker.serving.producer import AccessMode, Producer, ProducerOptions
from api.broker.serving.topic import PersistentTopic
from api.pulsar.errors import id_data, refusal
from api.pulsar.pulsar_api_pb2 import BaseCommand, CommandProducer, ServerError
from storage.errors import ChecksumMismatch
from storage.model import MessageId

if TYPE_CHECKING:
    from api.pulsar.connection import Connection


class ConnectedProducer:
    """The channel of one producer, with the producer and its topic."""

    def __init__(self, connection: Connection, topic: PersistentTopic, command: CommandProducer, name: str) -> None:
        self.connection = connection
        self.topic = topic
        self.producer: Producer = topic.new_producer(self, _options(command, name))

    @property
    def address(self) -> str:
        return self.connection.address

    @property
    def client_version(self) -> str:
        return self.connection.client_version

    def queued(self, entries: int, size: int) -> None:
        self.connection.publishing(entries, size)

    def send_receipt(self, sequence_id: int, highest_sequence_id: int, message_id: MessageId) -> None:
        command = BaseCommand(type=BaseCommand.SEND_RECEIPT)
        receipt = command.send_receipt
        receipt.producer_id, receipt.sequence_id = self.producer.options.producer_id, sequence_id
        receipt.message_id.CopyFrom(id_data(message_id, message_id.partition))
        if highest_sequence_id:
            receipt.highest_sequence_id = highest_sequence_id
        self.connection.send(command)

    def send_error(self, sequence_id: int, error: BaseException) -> None:
        reason = refusal(error)
        command = BaseCommand(type=BaseCommand.SEND_ERROR)
        answer = command.send_error
        answer.producer_id, answer.sequence_id = self.producer.options.producer_id, sequence_id
        answer.error = ServerError.ChecksumError if isinstance(error, ChecksumMismatch) else reason.error
        answer.message = reason.message
        self.connection.send(command)

    def disconnect(self) -> None:
        self.connection.close_producer(self)

    async def is_alive(self) -> bool:
        return await self.connection.is_alive(self.connection.settings.liveness_seconds)


def _options(command: CommandProducer, name: str) -> ProducerOptions:
    return ProducerOptions(
        name,
        command.producer_id,
        command.epoch,
        AccessMode(command.producer_access_mode),
        command.topic_epoch if command.HasField("topic_epoch") else None,
        {item.key: item.value for item in command.metadata},
    )
