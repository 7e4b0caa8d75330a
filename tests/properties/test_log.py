"""A topic's whole life against a plain list: every way to append, roll, seal, import, trim, compact, crash and read.

The model is the list of rows that were acknowledged, with the ids and offsets that came back, and the rows that a fold
by key leaves at each compaction. After each step a raw read is the list from the topic's first message on, and a
compacted read is the fold and then the list. Readers stay open over all of it, and get each message once, in order;
what they are not given was trimmed before they came to it (L1–L4, R1, R2, R7, R10, P3–P8).

Nothing here waits: heartbeats do not beat by themselves, and a writer looks up when somebody waits for it.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import accumulate
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, note, settings, strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from compactor.maintenance.garbage import GarbageCollector
from compactor.maintenance.grace import GRACE_MS
from compactor.maintenance.retention import Retention
from storage.errors import Fenced, LeaseHeld
from storage.ledger.rows import RowType
from storage.log.group_commit import AppendOutcome
from storage.log.segment import AppendResult
from storage.metadata.records import COMPACTION_CURSOR
from storage.metadata.stores import LeaseStore
from storage.model import EARLIEST, LATEST, MessageId
from storage.positions import StartOffset
from storage.reading.page_reader import ReadLimits
from tests.budgets import IN_SOAK
from tests.properties.log_life import LogLife
from tests.properties.log_model import (
    PagesReader,
    Reading,
    Row,
    Sent,
    ending,
    fold,
    keys,
    payloads,
    rows_of,
    sent,
    table_of,
    times,
    values,
)
from tests.pulsar_entries import PUBLISHED

pytestmark = pytest.mark.slow

EXAMPLES = 100 if IN_SOAK else 8
AFTER_TERM = 60_000


class NotAppended(Exception):
    """The refusal of an entry that shall only open its segment."""


def refuse() -> None:
    raise NotAppended


class LogMachine(LogLife):
    # Rules

    @initialize(segment_bytes=st.sampled_from([1 << 14, 1 << 20]), flush=st.sampled_from([1, 2, None]))
    def policies(self, segment_bytes: int, flush: int | None) -> None:
        self.set_policy("segment.bytes", segment_bytes)
        self.set_policy("flush.messages", flush)

    @rule(flush=st.sampled_from([1, 3, None]), flush_ms=st.sampled_from([None, 1000]))
    def change_the_flush_policy(self, flush: int | None, flush_ms: int | None) -> None:
        self.set_policy("flush.messages", flush)
        self.set_policy("flush.ms", flush_ms)

    @rule(group=st.lists(sent(), min_size=1, max_size=4))
    def append(self, group: list[list[Sent]]) -> None:
        log = self.open_writer()
        for item in (item for some in group for item in some):
            self.add(item.placed(log.append(item.data)))

    @rule(group=st.lists(sent(), min_size=1, max_size=4))
    def append_without_waiting(self, group: list[list[Sent]]) -> None:
        log = self.open_writer()
        answers: list[AppendOutcome] = []
        flat = [item for some in group for item in some]
        for item in flat:
            log.submit(item.data, answers.append)
        self.close_writer()
        for item, answer in zip(flat, answers, strict=True):
            assert isinstance(answer, AppendResult)
            self.add(item.placed(answer))

    @rule()
    def end_the_writer(self) -> None:
        self.close_writer()

    @rule(
        group=st.lists(sent(), max_size=3),
        written=st.integers(0, 5),
        aids=st.sampled_from(["kept", "no index", "no index, torn log"]),
    )
    def crash(self, group: list[list[Sent]], written: int, aids: str) -> None:
        """The writer dies with entries under way. What it had acknowledged is there, and of the rest a beginning."""
        log = self.open_writer()
        flat = [item for some in group for item in some]
        acknowledged = [log.append(item.data) for item in flat[:written]]
        tickets = []
        for item in flat[written:]:
            with suppress(NotAppended):
                log.submit(item.data, print, check=refuse)  # opens a segment with room for the entry
            writer = self.open_segment()
            assert writer is not None
            tickets.append(writer.submit(item.data))
        acknowledged += [ticket.answer for ticket in tickets if isinstance(ticket.answer, AppendResult)]
        writer = self.open_segment()
        with mock.patch.object(LeaseStore, "release"):
            if writer is not None:
                writer.abandon()
            self.log = None
            self.clock.meanwhile = lambda: None
            log.__exit__(None, None, None)
        for item, answer in zip(flat, acknowledged, strict=False):
            self.add(item.placed(answer))
        if writer is not None and writer.path.exists():
            if aids != "kept":
                writer.path.with_suffix(".index").unlink(missing_ok=True)
            if aids == "no index, torn log":
                with writer.path.open("ab") as file:
                    file.write(b"\x00\x00\x00\x40\x01torn")
        with pytest.raises(LeaseHeld):
            self.open_writer()
        self.clock.advance(AFTER_TERM)
        self.open_writer()
        unknown = flat[len(acknowledged) :]
        rows = rows_of(self.topic.read(StartOffset(len(self.rows))))
        while unknown and rows:
            item = unknown.pop(0)
            delivered = [row for row in item.rows if row[2] is not RowType.COMPACTED_OUT]
            place, rows = rows[0], rows[len(delivered) :]
            first = MessageId(place.ledger_id, place.entry_id, -1, place.batch_index)
            self.add(item.placed(AppendResult(mock.Mock(offset=place.offset, message_id=first), len(item.rows))))
        assert not rows, "what was never appended is never read"

    @precondition(lambda self: self.log is not None)
    @rule(group=sent())
    def sleep_past_the_lease(self, group: list[Sent]) -> None:
        """The lock on the file keeps others out, so what is appended in the open segment counts. Then it is over."""
        assert self.log is not None
        log, writer = self.log, self.open_segment()
        if writer is None or writer.messages == 0:
            return
        self.clock.advance(AFTER_TERM)
        with pytest.raises(LeaseHeld):
            self.topic.append_log(0).__enter__()
        with pytest.raises(LeaseHeld):
            self.topic.bulk_append(wait_ms=0).append([table_of([(b"a", b"1", PUBLISHED)])])
        try:
            for item in group:
                self.add(item.placed(log.append(item.data)))
        except Fenced:
            note("it had to roll, and may not")
        self.close_writer()

    @rule()
    def roll(self) -> None:
        self.open_writer().roll()

    @rule()
    def seal(self) -> None:
        for _ in self.topic.log_manager().seal(self.topic.record):
            pass

    @rule()
    def roll_and_seal(self) -> None:
        self.topic.log_manager().roll_and_seal(self.topic.record)
        snapshot = self.topic.snapshot()
        assert all(segment.content is None for segment in snapshot.segments)
        assert snapshot.topic.next_offset == len(self.rows)

    @rule(later=st.sampled_from([0, 1000, 100_000]))
    def sweep(self, later: int) -> None:
        self.go_on(later)
        self.topic.log_manager().remove_sealed_files()

    @rule(rows=st.lists(st.tuples(st.none() | keys, payloads, times), min_size=1, max_size=5))
    def bulk_import(self, rows: list[tuple[bytes | None, bytes | None, int]]) -> None:
        self.close_writer()
        (ledger,) = self.topic.bulk_append(wait_ms=0).append([table_of(rows)]).ledgers
        first = len(self.rows)
        self.add([Row(first + n, ledger.ledger_id, n, -1, *row) for n, row in enumerate(rows)])

    @rule()
    def compact(self) -> None:
        self.bench.compact(self.topic)
        if self.rows:
            snapshot = self.topic.snapshot()
            dirty = self.rows[max(self.first, self.horizon + 1) :]
            remaining = [row for row in dirty if row.slot != int(RowType.COMPACTED_OUT)]
            # A ledger that a trim cut off whole, but that was not sealed then, is a run's input without a message.
            unseen = any(ledger.last_offset > self.horizon for ledger in snapshot.ledgers)
            assert unseen or not dirty
            if unseen:
                self.state = fold([*self.state, *remaining])
                self.horizon = snapshot.ledgers[-1].last_offset  # the newest may be trimmed while an older one was open
            assert (snapshot.horizon.offset if snapshot.horizon else -1) == self.horizon

    @precondition(lambda self: self.rows)
    @rule(where=st.floats(0, 1))
    def trim(self, where: float) -> None:
        """Records are deleted up to an offset, whichever reader needs them."""
        snapshot = self.topic.snapshot()
        self.start = max(self.start, round(where * snapshot.topic.next_offset))
        trimmed = [ledger for ledger in snapshot.ledgers if ledger.last_offset < self.start]
        self.bench.metadata.trimming.trim(
            self.topic.record.id, self.start, [ledger.ledger_id for ledger in trimmed], force=True
        )
        self.kept = max([self.kept, *(ledger.last_offset + 1 for ledger in trimmed)])
        self.trimmed()

    @rule()
    def trim_what_is_compacted(self) -> None:
        """C2, by the policy `compact`."""
        self.set_policy("cleanup.policy", "compact")
        Retention(self.bench).trim(self.topic.record)
        self.set_policy("cleanup.policy", "")
        snapshot = self.topic.snapshot()
        firsts = [ledger.first_offset for ledger in snapshot.ledgers]
        firsts += [segment.first_offset for segment in snapshot.segments]
        kept = max(self.kept, min(firsts, default=snapshot.topic.next_offset))
        assert kept <= max(self.kept, self.start, self.horizon + 1), "nothing went that is not compacted"
        self.kept = kept
        self.trimmed()

    @rule()
    def truncate(self) -> None:
        self.bench.metadata.trimming.truncate([self.topic.record.id])
        self.start = self.kept = self.topic.snapshot().topic.start_offset
        self.state, self.horizon = [], -1
        self.trimmed()

    @precondition(lambda self: self.horizon >= 0)
    @rule()
    def delete_the_compaction_cursor(self) -> None:
        self.bench.metadata.cursors.delete(self.topic.record.id, COMPACTION_CURSOR, force=True)
        self.deleted_horizon = max(self.deleted_horizon, self.horizon)
        self.state, self.horizon = [], -1
        self.trimmed()

    @rule(grace=st.sampled_from([0, GRACE_MS]))
    def collect_garbage(self, grace: int) -> None:
        """Delete what is retired: at once, except pinned objects, or after its grace."""
        self.go_on(grace)
        GarbageCollector(self.bench, grace_ms=grace).collect(self.topic.record)
        self.trimmed()

    # Reading

    @invariant()
    def raw_is_the_list(self) -> None:
        assert rows_of(self.topic.read()) == self.raw_rows(0)

    @invariant()
    def compacted_is_the_fold(self) -> None:
        assert rows_of(self.topic.read(read_compacted=True)) == self.compacted_view()

    @rule(data=st.data(), flag=st.booleans(), limit=st.sampled_from([None, 1, 3]))
    def read_from_anywhere(self, data: st.DataObject, flag: bool, limit: int | None) -> None:
        start, _ = self.some_start(data)
        view = self.compacted_view() if flag else self.raw_rows(0)
        expected = [] if start == LATEST else self.behind(start, view, flag)
        assert rows_of(self.topic.read(start, flag, limit)) == expected[:limit]
        fits = sum(size <= 20 for size in accumulate(len(row.key or b"") + len(row.payload or b"") for row in expected))
        assert rows_of(self.topic.read(start, flag, max_bytes=20)) == expected[: max(fits, 1)]

    @rule(key=keys)
    def look_up(self, key: bytes) -> None:
        """T4: the key's newest value, wherever its message is."""
        message = self.topic.newest_value(key)
        assert (None if message is None else message.payload) == values(self.compacted_view()).get(key)

    @rule(flag=st.booleans())
    def ask_for_the_last(self, flag: bool) -> None:
        """R6: the id of the last message that a reader gets."""
        whole = ending(self.compacted_view() if flag else self.raw_rows(0))
        assert self.topic.last_message_id(flag) == (whole[-1].message_id if whole else EARLIEST)

    @precondition(lambda self: len(self.readings) < 6)
    @rule(data=st.data(), flag=st.booleans(), in_pages=st.booleans())
    def open_a_reader(self, data: st.DataObject, flag: bool, in_pages: bool) -> None:
        """It is asked for its first page at once: then it knows where it is."""
        start, kind = self.some_start(data)
        reader = PagesReader(self.topic, start, flag) if in_pages else self.topic.reader(start, read_compacted=flag)
        view = self.compacted_view() if flag else self.raw_rows(0)
        expected = [] if start == LATEST else self.behind(start, view, flag)
        first = expected[0].offset if expected else len(self.rows)
        reading = Reading(reader, flag, kind == "earliest" and self.first == 0, first)
        self.readings.append(reading)
        self.read_on(reading, ReadLimits(1))
        assert reading.got == expected[:1]

    @precondition(lambda self: self.readings)
    @rule(data=st.data(), limit=st.sampled_from([ReadLimits(1), ReadLimits(3), ReadLimits(bytes=20), ReadLimits()]))
    def read_a_page(self, data: st.DataObject, limit: ReadLimits) -> None:
        self.read_on(data.draw(st.sampled_from(self.readings), label="reader"), limit)

    @precondition(lambda self: self.readings)
    @rule(data=st.data())
    def close_a_reader(self, data: st.DataObject) -> None:
        reading = self.readings.pop(data.draw(st.integers(0, len(self.readings) - 1), label="reader"))
        self.drain(reading)
        reading.reader.close()


TestLog: Any = pytest.mark.budgeted(LogMachine.TestCase)
TestLog.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
