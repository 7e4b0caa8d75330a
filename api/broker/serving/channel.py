"""The connections of producers, as serving uses them. Calls return at once and never fail."""

from __future__ import annotations

from typing import Protocol

from storage.errors import InvalidRecord
from storage.model import MessageId


class ProducerChannel(Protocol):
    """The connection of one producer."""

    @property
    def connection(self) -> object:
        """The connection itself: equal for all producers and consumers of one client connection."""

    @property
    def address(self) -> str:
        """The client's host and port."""

    @property
    def client_version(self) -> str:
        """The client library and its version, as the client reported it."""

    def queued(self, entries: int, size: int) -> None:
        """Note a change of the number and the bytes of the producer's entries that wait to be appended."""

    def send_receipt(self, sequence_id: int, highest_sequence_id: int, message_id: MessageId) -> None:
        """Send the receipt of a durable entry."""

    def send_error(self, sequence_id: int, error: InvalidRecord) -> None:
        """Report an entry that can never be appended."""

    def disconnect(self) -> None:
        """Remove the producer from its connection and ask its client to connect again."""

    async def is_alive(self) -> bool:
        """Return whether the client still answers; close the connection of one that does not."""
