"""Prepared segments: the ledger that replaces one is the same as without preparation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from storage.errors import ObjectDamaged
from storage.ledger.hashing import Xxh3KeyHasher
from storage.ledger.sealing import Sealer
from storage.log.log_manager import LogManager
from storage.log.prepared_segments import IDLE_MS, PreparedSegments
from storage.log.segment_tables import SegmentTableReader
from storage.log.topic_log import TopicLog
from storage.metadata.records import SegmentRecord
from storage.model import LedgerRecord
from storage.topic import Topic
from tests.entries import batch, single
from tests.segments import flip
from tests.workbench import Workbench, raw

ENTRIES = [
    single(b"a", b"1", event_time=7),
    batch((b"b", b"2"), (b"c", None), (b"a", b"3")),
    single(None, b"no key"),
    *(batch(*((b"k%d" % number, b"x" * 40) for number in range(first, first + 20))) for first in range(0, 200, 10)),
    single(b"gone", None),
]


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.log.prepared_segments.PIECE_BYTES", 100)
    monkeypatch.setattr("storage.log.prepared_segments.OVERHEAD_BYTES", 100)


@pytest.fixture
def log(topic: Topic) -> Iterator[TopicLog]:
    with topic.append_log() as opened:
        yield opened


def _segment(bench: Workbench, topic: Topic) -> SegmentRecord:
    (segment,) = bench.metadata.segments.of_topic(topic.record.id)
    return segment


def _extend(prepared: PreparedSegments, bench: Workbench, topic: Topic) -> int:
    """Prepare all that is flushed; return the number of pieces."""
    pieces = 0
    while prepared.extend(topic.record, _segment(bench, topic)):
        pieces += 1
    return pieces


def _sealed_from_file(bench: Workbench, topic: Topic, ledger: LedgerRecord) -> LedgerRecord:
    """Return the ledger that a sealer makes of the whole file, under other names."""
    sealer = Sealer(bench.store, topic.record.uid, -1, Xxh3KeyHasher(topic.record.hash_seed), "plain")
    tables = SegmentTableReader(bench.log).all_tables(topic.record, _segment(bench, topic))
    return sealer.seal(tables, ledger.ledger_id, ledger.created_at)


def _content(bench: Workbench, ledger: LedgerRecord) -> tuple[bytes, bytes]:
    index = ledger.index
    return (
        bytes(bench.store.get(ledger.rows.name, 0, ledger.rows.size)),
        bytes(bench.store.get(index.name, index.offset, index.length)),
    )


@pytest.mark.parametrize("unprepared", [0, 5])
def test_the_ledger_is_the_same_byte_by_byte(bench: Workbench, topic: Topic, log: TopicLog, unprepared: int) -> None:
    prepared = PreparedSegments(bench.log, bench.clock, 1 << 30)
    pieces = 0
    for number, entry in enumerate(ENTRIES):
        log.append(entry)
        if number < len(ENTRIES) - unprepared and number % 7 in (0, 6):
            pieces += _extend(prepared, bench, topic)
    if not unprepared:
        pieces += _extend(prepared, bench, topic)
    before = raw(topic)
    log.roll()
    assert pieces > 6
    assert prepared.held_bytes > 0
    (ledger,) = LogManager(bench, prepared=prepared).seal(topic.record)
    assert prepared.held_bytes == 0, "what was taken is not held"
    assert raw(topic) == before
    plain = _sealed_from_file(bench, topic, ledger)
    assert _content(bench, ledger) == _content(bench, plain)
    rows = replace(plain.rows, name=ledger.rows.name)
    index = replace(plain.index, name=ledger.index.name)
    assert replace(plain, rows=rows, index=index, attempt_id=ledger.attempt_id) == ledger


def test_only_flushed_entries_are_prepared(bench: Workbench, topic: Topic) -> None:
    """A power cut takes the others, and their offsets go to other messages."""
    bench.set_policies(topic, flush_messages=100)
    prepared = PreparedSegments(bench.log, bench.clock, 1 << 30)
    with topic.append_log() as log:
        log.append(ENTRIES[3])
        _extend(prepared, bench, topic)
        assert prepared.held_bytes == 0
    _extend(prepared, bench, topic)
    assert prepared.held_bytes > 0, "the end of the log has flushed it"


def test_little_growth_is_not_worth_a_piece(
    bench: Workbench, topic: Topic, log: TopicLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.log.prepared_segments.PIECE_BYTES", 10_000)
    prepared = PreparedSegments(bench.log, bench.clock, 1 << 30)
    log.append(ENTRIES[0])
    assert _extend(prepared, bench, topic) == 0
    for entry in ENTRIES:
        log.append(entry)
    assert _extend(prepared, bench, topic) > 0


def test_memory_is_bounded_and_a_segment_makes_room_only_when_it_has_been_idle(bench: Workbench) -> None:
    """Otherwise segments that grow in turns would drop each other, and be encoded again and again."""
    idle, busy = topics = [bench.topic(name) for name in ("idle", "busy")]
    with ExitStack() as opened:
        logs = [opened.enter_context(topic.append_log()) for topic in topics]
        for log in logs:
            for entry in ENTRIES:
                log.append(entry)
        alone = PreparedSegments(bench.log, bench.clock, 1 << 30)
        _extend(alone, bench, idle)
        limit, piece = alone.held_bytes, 4_000
        prepared = PreparedSegments(bench.log, bench.clock, limit)
        _extend(prepared, bench, idle)
        held = prepared.held_bytes
        assert 0 < held <= limit + piece
        bench.clock.advance(IDLE_MS - 1)
        assert _extend(prepared, bench, busy) == 0
        assert prepared.held_bytes == held
        bench.clock.advance(1)
        assert _extend(prepared, bench, busy) > 0
        assert prepared.held_bytes <= limit + piece
        assert prepared.take(idle.record, _segment(bench, idle)) is None
        for entry in ENTRIES:
            logs[1].append(entry)
        _extend(prepared, bench, busy)
        assert prepared.held_bytes <= limit + piece, "what does not fit is not prepared"
        before = raw(busy)
        logs[1].roll()
    list(LogManager(bench, prepared=prepared).seal(busy.record))
    assert bench.segment_states(busy) == ["SEALED"]
    assert raw(busy) == before


def test_nothing_is_taken_for_another_topic(bench: Workbench, topic: Topic, log: TopicLog) -> None:
    """A restored database may give out the id of a ledger again."""
    prepared = PreparedSegments(bench.log, bench.clock, 1 << 30)
    for entry in ENTRIES:
        log.append(entry)
    assert _extend(prepared, bench, topic) > 0
    assert prepared.take(bench.topic("another").record, _segment(bench, topic)) is None
    assert prepared.held_bytes == 0


def test_rows_objects_are_the_same_however_their_tables_are_cut(bench: Workbench, topic: Topic, log: TopicLog) -> None:
    """Their row groups have several pages each."""
    for number in range(40):
        log.append(batch(*((b"%d-%d" % (number, index), b"x" * 1_000) for index in range(100))))
    before = raw(topic)
    prepared = PreparedSegments(bench.log, bench.clock, 1 << 30)
    assert _extend(prepared, bench, topic) > 10
    log.roll()
    (ledger,) = LogManager(bench, prepared=prepared).seal(topic.record)
    assert raw(topic) == before
    assert _content(bench, ledger) == _content(bench, _sealed_from_file(bench, topic, ledger))


def test_no_memory_means_no_preparation(bench: Workbench, topic: Topic, log: TopicLog) -> None:
    log.append(ENTRIES[0])
    prepared = PreparedSegments(bench.log, bench.clock, 0)
    assert not prepared.extend(topic.record, _segment(bench, topic))
    assert prepared.held_bytes == 0


def test_nothing_is_prepared_without_a_high_watermark(bench: Workbench, topic: Topic, log: TopicLog) -> None:
    """Readers take every whole frame then, and a failed flush cuts some of them off."""
    prepared = PreparedSegments(bench.log, bench.clock, 1 << 30)
    log.append(ENTRIES[0])
    bench.files(topic).high_watermark.write_bytes(b"damaged")
    assert _extend(prepared, bench, topic) == 0
    assert prepared.held_bytes == 0


def test_damage_leaves_nothing_prepared(bench: Workbench, topic: Topic, log: TopicLog) -> None:
    prepared = PreparedSegments(bench.log, bench.clock, 1 << 30)
    for entry in ENTRIES[:2]:
        log.append(entry)
    prepared.extend(topic.record, _segment(bench, topic))
    for entry in ENTRIES[2:]:
        log.append(entry)
    file = _file(bench, topic)
    flip(file, file.stat().st_size - 300)
    with pytest.raises(ObjectDamaged, match="is damaged at byte"):
        _extend(prepared, bench, topic)
    assert prepared.held_bytes == 0


def _file(bench: Workbench, topic: Topic) -> Path:
    return bench.files(topic).log
