"""Rows that are read become entries: batches by number, bytes and time, and what waits goes when nothing comes."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from api.formats.batch_container import BatchMessageContainer, rows_and_pauses
from api.formats.jsonl import InputMessage
from storage.entries.decode import StoredEntry, unpack
from storage.entries.entry import inspect
from storage.errors import InvalidRecord
from storage.ledger.rows import CompressionType
from tests.clocks import ManualClock

CLOCK = ManualClock()


def row(number: int, publish_time: int | None = None, size: int = 10) -> InputMessage:
    return InputMessage(b"k%d" % number, b"v%d" % number, publish_time, None, None, size)


def keys(entries: Iterator[bytes]) -> list[list[bytes]]:
    """Return the keys of each entry."""
    return [unpack([StoredEntry(0, 0, data, inspect(data))], 1).column("key").to_pylist() for data in entries]


def container(batch: int, batch_bytes: int = 1000) -> BatchMessageContainer:
    return BatchMessageContainer(batch, batch_bytes, CompressionType.LZ4, CLOCK)


def test_batches_are_cut_by_number_bytes_and_publish_time() -> None:
    rows = [row(0), row(1), row(2), row(3, 5), row(4, 5), row(5), row(6, size=600), row(7, size=600), row(8, size=2000)]
    batches = keys(container(2).encode_entries(rows))
    assert batches == [[b"k0", b"k1"], [b"k2"], [b"k3", b"k4"], [b"k5", b"k6"], [b"k7"], [b"k8"]]


def test_one_message_an_entry_is_no_batch() -> None:
    data = list(container(1).encode_entries([row(0), row(1, 7)]))
    assert [inspect(item).batched for item in data] == [False, False]
    assert [inspect(item).publish_time for item in data] == [CLOCK.now_ms(), 7]
    assert [inspect(item).sequence_id for item in data] == [0, 1]


def test_what_waits_goes_when_nothing_comes() -> None:
    assert keys(container(10).encode_entries([row(0), None, None, row(1), row(2), None])) == [[b"k0"], [b"k1", b"k2"]]


@pytest.mark.parametrize("end", [InvalidRecord("line 3 is bad", "correct it"), KeyboardInterrupt()])
def test_what_was_read_goes_before_what_ends_it(end: BaseException) -> None:
    def rows() -> Iterator[InputMessage]:
        yield row(0)
        yield row(1)
        raise end

    builder = container(10)
    added = []
    with pytest.raises(type(end)):
        added.extend(builder.encode_entries(rows()))
    assert keys(iter(added)) == [[b"k0", b"k1"]]
    assert builder.prefix_with_last_entry_lines("no entry's fault") == "no entry's fault"


def test_an_entry_is_named_by_its_lines() -> None:
    builder = container(2)
    batches = builder.encode_entries([row(0), row(1), row(2)])
    next(batches)
    assert builder.prefix_with_last_entry_lines("too large") == "lines 1 to 2: too large"
    next(batches)
    assert builder.prefix_with_last_entry_lines("too large") == "line 3: too large"


def test_lingering_tells_of_a_pause_and_of_every_row_and_error() -> None:
    paused = threading.Event()

    def rows() -> Iterator[InputMessage]:
        yield row(0)
        assert paused.wait(60)
        yield row(1)
        raise InvalidRecord("bad", "correct it")

    lingering_rows = rows_and_pauses(rows(), 0.001)
    assert next(lingering_rows) == row(0)
    assert next(lingering_rows) is None
    paused.set()
    with pytest.raises(InvalidRecord):
        assert [item for item in lingering_rows if item is not None] == [row(1)]
    assert list(rows_and_pauses(iter([row(0), row(1)]), 60)) == [row(0), row(1)]
