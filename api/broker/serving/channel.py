"""The connections of clients, as serving uses them: one channel for each producer and each consumer.

Calls return at once and never fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from storage.entries.rebuild import DeliverableEntry
from storage.errors import InvalidRecord
from storage.model import MessageId


class Connection(Protocol):
    """A client's connection, with all its producers and consumers.

    `address`: the client's host and port. `client_version`: the client library and its version, as the client reported
    it.
    """

    address: str
    client_version: str

    async def close_unless_alive(self) -> bool:
        """Ping the client of this connection, and return whether it answers. Close the connection if it does not."""


class Channel(Protocol):
    """The part of a connection that one producer or consumer uses."""

    @property
    def connection(self) -> Connection: ...

    def disconnect(self) -> None:
        """Remove the producer or consumer from its connection and ask its client to connect again."""


class ConsumerChannel(Channel, Protocol):
    """The part of a connection that one consumer uses: entries are sent to its client."""

    @property
    def is_writable(self) -> bool:
        """True if the client accepts more bytes now."""

    def deliver(self, entry: DeliverableEntry, live_mask: int, redeliveries: int) -> None:
        """Send an entry to the client. `live_mask`: the slots to be delivered, as bits. `redeliveries`: the number of
        times that a consumer asked for the entry again."""

    def set_active(self, is_active: bool) -> None:
        """Report to a failover consumer whether it is the active one."""


class Receipt(NamedTuple):
    """The receipt that a producer gets for a durable entry. `highest_sequence_id` 0: the entry is one message."""

    sequence_id: int
    highest_sequence_id: int
    message_id: MessageId


class ProducerChannel(Channel, Protocol):
    """The part of a connection that one producer uses: receipts and errors are sent to its client."""

    def add_queued(self, entries: int, size: int) -> None:
        """Add to the counts of the producer's entries, and of their bytes, that wait to be appended. Negative numbers
        subtract entries that were answered."""

    def send_receipts(self, receipts: Sequence[Receipt]) -> None:
        """Send the receipts of durable entries, in order."""

    def send_error(self, sequence_id: int, error: InvalidRecord) -> None:
        """Report to the producer's client that an entry can never be appended."""
