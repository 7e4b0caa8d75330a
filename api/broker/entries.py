"""Raw entries of a topic, one by one, as Pulsar counts them: a message, or a batch of messages.

An entry is named by its id, or by its number from a start. For a number all entries before it are read, so it is at
most `MOST_ENTRIES`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby, islice
from typing import Any

from api.broker.refusals import EntryTooFar, MissingEntry
from storage.errors import OffsetOutOfRange, SegmentNotLocal
from storage.model import MessageId
from storage.positions import OffsetReset, StartPosition
from storage.topic import Topic

MOST_ENTRIES = 10_000
"""The largest number of an entry, counted from 1."""
Entry = list[dict[str, Any]]
"""The rows of one entry, at least one; their fields are the columns of `storage.ledger.rows.SCHEMA`."""


def entries(topic: Topic, start: StartPosition, reset: OffsetReset = OffsetReset.EARLIEST) -> Iterator[Entry]:
    """Read a topic raw and yield each entry from `start` on, as its rows; of the first entry only those from `start`.

    Raise SegmentNotLocal after the last entry that can be read here; otherwise what `Topic.read` raises.
    """
    end: list[SegmentNotLocal] = []

    def rows() -> Iterator[dict[str, Any]]:
        try:
            for batch in topic.read(start, reset=reset):
                yield from batch.to_pylist()
        except SegmentNotLocal as error:  # an entry is in one ledger, so the last one is whole
            end.append(error)

    for _, entry in groupby(rows(), entry_id_of):
        yield list(entry)
    if end:
        raise end[0]


def entry_id_of(row: Mapping[str, Any]) -> tuple[int, int]:
    """Return the ledger id and the entry id of a message's row."""
    return row["ledger_id"], row["entry_id"]


def check_entry_number_limit(entry_number: int) -> None:
    """Raise EntryTooFar for an entry number above `MOST_ENTRIES`, since all entries before it would be read."""
    if entry_number > MOST_ENTRIES:
        raise EntryTooFar(MOST_ENTRIES)


def nth(source: Iterator[Entry], entry_number: int, topic: Topic) -> Entry:
    """Return the n-th entry of an iterator, counted from 1. Raise MissingEntry, which names `topic`."""
    entry = next(islice(source, entry_number - 1, None), None)
    if entry is None:
        raise MissingEntry(topic.name, f"entry {entry_number}")
    return entry


def with_id(topic: Topic, ledger_id: int, entry_id: int) -> Entry:
    """Read the raw entry with a ledger id and entry id. Raise MissingEntry, and the errors of `entries`."""
    try:
        entry = next(entries(topic, MessageId(ledger_id, entry_id), OffsetReset.FAIL), None)
    except OffsetOutOfRange as error:
        raise MissingEntry(topic.name, f"message {ledger_id}:{entry_id}") from error
    if entry is None or entry_id_of(entry[0]) != (ledger_id, entry_id):
        raise MissingEntry(topic.name, f"message {ledger_id}:{entry_id}")
    return entry
