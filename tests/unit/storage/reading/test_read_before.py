"""Reading backwards: the last messages before an offset, from few row groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa
import pytest

from storage.errors import ObjectMissing
from storage.ledger import rows
from storage.ledger.rows_file import RowsReader
from storage.topic import Topic
from tests.entries import batch, produce, single
from tests.workbench import Workbench, content, half_compacted


def offsets(batches: Iterable[pa.RecordBatch]) -> list[int]:
    return [offset for item in batches for offset in item.column("offset").to_pylist()]


def topic_with_everything(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> Topic:
    """A compacted ledger with garbage, ledgers after it, one that is trimmed in two, and segments."""
    monkeypatch.setattr(rows, "GROUP_ROWS", 3)
    topic = bench.topic()
    bench.append(topic, [content(*((b"%d" % (n % 7), b"v%d" % n) for n in range(20)))])
    bench.compact(topic)
    bench.append(topic, [content(*((b"%d" % n, b"") for n in range(3)))])
    bench.compact(topic)
    bench.append(topic, [content(*((b"%d" % (n % 5), b"w") for n in range(11)))])
    produce(topic, [single(b"x", b"1"), batch((b"y", b"1"), (b"y", b"2"), (b"x", None))])
    topic.log_manager().roll(topic.record, 0)
    produce(topic, [single(b"z", b"%d" % n) for n in range(80)])
    return topic


@pytest.mark.slow
@pytest.mark.parametrize("read_compacted", [False, True])
def test_they_are_the_last_ones_of_a_read_from_the_start(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, read_compacted: bool
) -> None:
    topic = topic_with_everything(bench, monkeypatch)
    bench.metadata.trimming.trim(topic.record.id, 1, [], force=True)
    every = offsets(topic.read(read_compacted=read_compacted))
    for end in (*range(0, 50, 3), every[-1], every[-1] + 1, 2**62):
        for limit in (4, 30, None):
            before = [offset for offset in every if offset < end]
            batches, has_more = topic.read_before(end, read_compacted, limit)
            assert offsets(batches) == (before if limit is None else before[-limit:])
            assert has_more == (limit is not None and len(before) > limit), (end, limit)


def test_a_page_of_bytes_has_at_least_one_message(bench: Workbench) -> None:
    topic = bench.topic()
    bench.append(topic, [content((b"a", b"x" * 100), (b"b", b"x" * 40), (b"c", b"x" * 40), (b"d", b"x" * 500))])
    assert [offsets(topic.read_before(end, max_bytes=100)[0]) for end in (1, 2, 3, 4)] == [[0], [1], [1, 2], [3]]


def test_no_more_row_groups_are_read_than_a_page_needs(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "GROUP_ROWS", 10)
    bench = replace(bench, sizing=None)  # parts of many row groups
    topic = bench.topic()
    bench.append(topic, [content(*((b"%d" % n, b"v") for n in range(1000)))])
    bench.compact(topic)
    groups: list[int] = []
    read = RowsReader.read

    def counted(reader: RowsReader, number: int, columns: list[str] | None = None) -> pa.Table:
        groups.append(number)
        return read(reader, number, columns)

    monkeypatch.setattr(RowsReader, "read", counted)
    for read_compacted in (False, True):
        for end in (15, 505, 1000):
            groups.clear()
            assert len(offsets(topic.read_before(end, read_compacted, 12)[0])) == 12
            assert len(groups) <= 2


def test_a_lost_ledger_is_an_error(bench: Workbench) -> None:
    topic = half_compacted(bench)
    ledger = topic.snapshot().ledgers[-1]
    bench.store.delete(ledger.rows.name)
    assert offsets(topic.read_before(4, True)[0]) == [1, 2, 3]
    with pytest.raises(ObjectMissing, match=ledger.rows.name):
        topic.read_before(5)
