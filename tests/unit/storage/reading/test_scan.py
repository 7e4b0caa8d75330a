"""A scan in pieces: together they are what a reader gets, and what they leave out has no wanted message."""

from __future__ import annotations

import pickle
import random

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from compactor.run.plan import RunPolicies
from storage.errors import InvalidInput, ObjectMissing, OffsetOutOfRange, StateMayBeStale, Unavailable
from storage.ledger import key_index, rows
from storage.ledger.rows_file import RowsReader
from storage.log.segment_tables import SegmentTableReader
from storage.reading.scan import ScanPiece, ScanRange
from storage.topic import Topic
from tests import chunked
from tests.entries import batch, produce, single
from tests.workbench import Workbench, content, half_compacted

KEYS = [b"a", b"b", b"c", b"d"]
COLUMNS = [name for name in rows.SCHEMA.names if name != "slot"]


def read(bench: Workbench, pieces: list[ScanPiece], columns: list[str] = COLUMNS) -> pa.Table:
    """Read pieces, each as another process does."""
    moved: list[ScanPiece] = pickle.loads(pickle.dumps(pieces))
    unsealed = SegmentTableReader(bench.log)
    tables = [table for piece in moved for table in piece.tables(bench.store, unsealed, columns)]
    empty = pa.schema([rows.SCHEMA.field(name) for name in columns]).empty_table()
    return pa.concat_tables([empty, *tables])


def expected(topic: Topic, read_compacted: bool, columns: list[str] = COLUMNS) -> pa.Table:
    return pa.Table.from_batches(topic.read(read_compacted=read_compacted), rows.SCHEMA).select(columns)


def messages_in(table: pa.Table, scan_range: ScanRange) -> pa.Table:
    offsets, times = table.column("offset").to_numpy(), table.column("publish_time").to_numpy()
    mask = (offsets >= scan_range.first_offset) & (offsets < scan_range.end_offset)
    mask &= (times >= scan_range.first_time) & (times < scan_range.end_time)
    if scan_range.keys is not None:
        is_wanted = pc.is_in(table.column("key"), value_set=pa.array(sorted(scan_range.keys), pa.binary()))
        mask &= np.asarray(is_wanted.to_numpy(zero_copy_only=False), dtype=np.bool_)
    return table.filter(pa.array(mask))


@pytest.mark.parametrize("by_event", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_pieces_are_what_a_reader_gets(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, seed: int, by_event: bool
) -> None:
    """Parts, sealed ledgers and segments, with deletions and messages without a key, whatever is asked for."""
    monkeypatch.setattr(key_index, "FENCE_RECORDS", 2)
    draw, topic = random.Random(seed), bench.topic()
    for number in range(12):
        keys = draw.choices([*KEYS, None], k=draw.randint(1, 6))
        values = [(key, draw.choice([None, b"1", b"22"])) for key in keys]
        bench.advance(draw.randrange(50))
        step = draw.randrange(4)
        if step == 0:
            bench.compactor().compact(topic.name, RunPolicies(event_time_order=by_event, retain_null_key=True))
        elif step == 1:
            produce(topic, [batch(*values)])
        elif step == 2:
            bench.append(topic, [content(*values)], ledger_bytes=20)
        else:
            topic.log_manager().roll_and_seal(topic.record)
        for read_compacted in (False, True) if number % 4 == 3 else ():
            whole = expected(topic, read_compacted)
            assert read(bench, topic.scan(ScanRange(), read_compacted=read_compacted)).equals(whole)
            times = sorted(draw.choices([0, *whole.column("publish_time").to_pylist(), 2**62], k=2))
            for scan_range in (
                ScanRange(*sorted(draw.choices(range(40), k=2))),
                ScanRange(first_time=times[0], end_time=times[1]),
                ScanRange(keys=frozenset(draw.sample([*KEYS, b"missing"], 2))),
            ):
                pieces = topic.scan(scan_range, read_compacted=read_compacted)
                assert messages_in(read(bench, pieces), scan_range).equals(messages_in(whole, scan_range)), scan_range
    assert topic.snapshot().compacted is not None


def test_what_cannot_have_a_wanted_message_is_no_piece(bench: Workbench) -> None:
    topic = half_compacted(bench)  # a@0 b@1 a@2 c@3 | compacted: b@1 a@2 c@3 | b@4 -c@5 d@6

    def kinds(scan_range: ScanRange) -> list[str]:
        return ["raw" if piece.part is None else "part" for piece in topic.scan(scan_range, read_compacted=True)]

    assert kinds(ScanRange()) == ["part", "part", "part", "raw"]
    assert kinds(ScanRange(first_offset=4)) == ["raw"]
    assert kinds(ScanRange(first_offset=2, end_offset=4)) == ["part", "part"]
    assert kinds(ScanRange(keys=frozenset([b"a"]))) == ["part"]
    assert kinds(ScanRange(keys=frozenset([b"d"]))) == ["raw"]
    assert kinds(ScanRange(keys=frozenset([b"c"]))) == ["part", "raw"]
    assert kinds(ScanRange(keys=frozenset([b"x"]))) == []
    assert kinds(ScanRange(first_time=bench.clock.now_ms() + 1)) == []
    assert kinds(ScanRange(end_time=0)) == []


def test_only_wanted_columns_are_decoded(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = half_compacted(bench)
    decoded: set[str] = set()
    decode = RowsReader.read

    def noting(reader: RowsReader, group: int, columns: list[str] | None = None) -> pa.Table:
        decoded.update(columns or rows.SCHEMA.names)
        return decode(reader, group, columns)

    monkeypatch.setattr(RowsReader, "read", noting)
    pieces = topic.scan(ScanRange(), read_compacted=True)
    assert read(bench, pieces, ["key"]).column("key").to_pylist() == [b"b", b"a", b"c", b"b", b"c", b"d"]
    assert decoded == {"key", "offset", "slot"}


def test_messages_past_their_retention_are_left_out_of_parts(bench: Workbench) -> None:
    """Although their time is not asked for."""
    topic = bench.topic()
    bench.append(topic, [content((b"a", b"1"))])
    bench.clock.advance(20)
    bench.append(topic, [content((b"b", b"2"))])
    bench.compact(topic)
    bench.set_policies(topic, **{"cleanup.policy": "compact,delete", "retention.ms": 10})
    assert read(bench, topic.scan(ScanRange(), read_compacted=True), ["key"]).column("key").to_pylist() == [b"b"]


def test_raw_pieces_need_no_compacted_ledger(bench: Workbench) -> None:
    """A lost one stops no raw query."""
    topic = half_compacted(bench)
    compacted = topic.snapshot().compacted
    assert compacted is not None
    bench.store.delete(compacted.manifest.name)
    assert read(bench, topic.scan(ScanRange()), ["offset"]).column("offset").to_pylist() == list(range(7))
    with pytest.raises(ObjectMissing, match="compacted ledger"):
        topic.scan(ScanRange(), read_compacted=True)


def test_the_end_is_that_of_the_plan(bench: Workbench, topic: Topic) -> None:
    produce(topic, [single(b"a", b"1")])
    pieces = topic.scan(ScanRange())
    produce(topic, [single(b"a", b"2")])
    assert read(bench, pieces, ["offset"]).column("offset").to_pylist() == [0]


def test_an_object_that_is_gone_since_the_plan_is_no_loss(bench: Workbench) -> None:
    topic = half_compacted(bench)
    pieces = topic.scan(ScanRange(), read_compacted=True)
    for part in bench.manifest(topic).parts:
        bench.store.delete(part.rows.stored.name)
    with pytest.raises(Unavailable, match="since the scan was planned"):
        read(bench, pieces)


def test_a_chunk_is_an_error_unless_it_can_be_distinguished(bench: Workbench, topic: Topic) -> None:
    chunked.append(bench, topic, chunked.whole("u", b"k", b"1", b"2"))
    pieces = topic.scan(ScanRange())
    with pytest.raises(InvalidInput, match=r"offset 0 of .* a chunk of a chunked message"):
        read(bench, pieces, ["key"])
    assert read(bench, pieces, ["slot"]).column("slot").to_pylist() == [3, 3]


def test_a_scan_that_resumes_misses_nothing_or_is_refused(bench: Workbench) -> None:
    """Trimmed messages are read from the compacted ledger, unless it has lost a deletion (R7)."""
    topic = half_compacted(bench)
    resumed = topic.scan(ScanRange(first_offset=2), read_compacted=True, resumes=True)
    assert read(bench, resumed, ["offset"]).column("offset").to_pylist() == [2, 3, 4, 5, 6]
    bench.compact(topic)  # the deletion of c is gone
    assert bench.manifest(topic).dropped_to == 5
    resumed = topic.scan(ScanRange(first_offset=4), read_compacted=True, resumes=True)
    assert read(bench, resumed, ["offset"]).column("offset").to_pylist() == [4, 5, 6], "raw still has it"
    ledger_ids = [ledger.ledger_id for ledger in topic.snapshot().ledgers]
    bench.metadata.trimming.trim(topic.record.id, 7, ledger_ids, force=True, keep_start=True)
    with pytest.raises(StateMayBeStale, match="offsets 4 to 6 of"):
        topic.scan(ScanRange(first_offset=4), read_compacted=True, resumes=True)
    with pytest.raises(OffsetOutOfRange, match="offsets 4 to 6 of"):
        topic.scan(ScanRange(first_offset=4), resumes=True)
    known = topic.compacted_ledger_of_scan(0, resumes=False, known_ledger_id=None)
    assert topic.compacted_ledger_of_scan(4, resumes=True, known_ledger_id=None) is None
    assert known == topic.compacted_ledger_of_scan(4, resumes=True, known_ledger_id=known)
    resumed = topic.scan(ScanRange(first_offset=4), read_compacted=True, resumes=True, known_ledger_id=known)
    assert read(bench, resumed, ["offset"]).column("offset").to_pylist() == [4, 6], "the same ledger as before"
    resumed = topic.scan(ScanRange(first_offset=6), read_compacted=True, resumes=True)
    assert read(bench, resumed, ["offset"]).column("offset").to_pylist() == [6], "the deletion was read"
