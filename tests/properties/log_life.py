"""A topic under test with its model: the writer, the clock and the readers that stay open, for test_log.py."""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from unittest import mock

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

from compactor.engines.engine import InProcessEngine
from storage.clock import Clock
from storage.errors import StateMayBeStale
from storage.ledger.rows import RowType
from storage.log.active_segment_file import ActiveSegmentFile
from storage.log.committers import Committers
from storage.log.directory import LogDirectory
from storage.log.segment import WriterOptions
from storage.log.segment_writer import SegmentWriter
from storage.log.topic_log import TopicLog
from storage.metadata.policy_store import topic_scope
from storage.metadata.store import MetadataStore
from storage.model import EARLIEST, LATEST, MessageId
from storage.objects.registry import open_store
from storage.positions import StartOffset, StartPosition, StartTime
from storage.reading.page_reader import ReadLimits
from storage.topic import Topic
from tests.properties.log_model import AskingClock, Reading, Row, SteppedHeartbeat, rows_of, times, values
from tests.workbench import TINY, Workbench


class LogLife(RuleBasedStateMachine):
    """A topic, its writer, its open readers and the model, without rules."""

    def __init__(self) -> None:
        super().__init__()
        self.life = ExitStack()
        folder = Path(self.life.enter_context(tempfile.TemporaryDirectory()))
        self.heartbeats: list[SteppedHeartbeat] = []
        """Those of the writer: first the one of its lease, then the one that polls."""
        self.segment_writer: SegmentWriter | None = None
        """The newest one."""
        self.patch("lease.Heartbeat", partial(SteppedHeartbeat, self.heartbeats))
        self.patch("topic_log.Heartbeat", partial(SteppedHeartbeat, self.heartbeats))
        self.patch("log_manager.Heartbeat", partial(SteppedHeartbeat, []))
        self.patch("segment_lifecycle.SegmentWriter", self.new_segment_writer)
        self.clock = AskingClock()
        store = MetadataStore(f"sqlite:///{folder / 'metadata.db'}", self.clock)
        store.upgrade()
        self.life.callback(store.close)
        objects = open_store((folder / "objects").as_uri())
        self.bench = Workbench(store, objects, self.clock, LogDirectory(folder / "log"), InProcessEngine(), TINY)
        self.topic: Topic = self.bench.topic()
        self.log: TopicLog | None = None
        self.rows: list[Row] = []
        """All that was acknowledged, fillers too: row n has offset n."""
        self.state: list[Row] = []
        self.horizon = -1
        self.deleted_horizon = -1
        """The largest horizon whose cursor was deleted: readers may have passed over what that compaction dropped."""
        self.start = 0
        """The topic's start offset."""
        self.kept = 0
        """The first offset that no trimmed ledger held."""
        self.readings: list[Reading] = []

    def patch(self, name: str, replacement: object) -> None:
        self.life.enter_context(mock.patch(f"storage.log.{name}", replacement))

    def teardown(self) -> None:
        try:
            self.close_writer()
            if sys.exc_info()[0] is None:
                for reading in self.readings:
                    self.drain(reading)
        finally:
            for reading in self.readings:
                reading.reader.close()
            self.life.close()

    # The model

    @property
    def first(self) -> int:
        return max(self.start, self.kept)

    def raw_rows(self, first: int) -> list[Row]:
        return [row for row in self.rows[max(first, self.first) :] if row.slot != int(RowType.COMPACTED_OUT)]

    def compacted_view(self) -> list[Row]:
        return [*self.state, *self.raw_rows(self.horizon + 1)]

    def add(self, rows: list[Row]) -> None:
        for row in rows:
            assert row.offset == len(self.rows), "dense"
            assert not self.rows or row.message_id > self.rows[-1].message_id, "ids ascend as offsets do"
            self.rows.append(row)

    def set_policy(self, name: str, value: object) -> None:
        self.bench.metadata.policies.change([topic_scope(self.topic.record)], {name: value})

    # The writer

    def open_writer(self) -> TopicLog:
        if self.log is None:
            log = self.topic.append_log(0)
            log.__enter__()
            self.log = log
            self.clock.meanwhile = self.beat
        return self.log

    def beat(self) -> None:
        """Do what a living writer does all the time: renew the lease and poll."""
        if self.log is not None:
            for heartbeat in [*self.heartbeats]:
                heartbeat.beat()

    def new_segment_writer(
        self, file: ActiveSegmentFile, clock: Clock, options: WriterOptions, committers: Committers
    ) -> SegmentWriter:
        self.segment_writer = SegmentWriter(file, clock, options, committers)
        return self.segment_writer

    def open_segment(self) -> SegmentWriter | None:
        """Return the writer of the open segment, while a log is open. None: no segment is open."""
        segment, writer = self.bench.metadata.segments.find_open(self.topic.record.id), self.segment_writer
        return writer if segment and writer and writer.ledger_id == segment.ledger_id else None

    def close_writer(self) -> None:
        log, self.log = self.log, None
        self.clock.meanwhile = lambda: None
        if log is not None:
            log.__exit__(None, None, None)

    def go_on(self, milliseconds: int) -> None:
        """Time goes by, in steps that a living writer's lease outlives."""
        for _ in range(milliseconds // 10_000 + 1):
            self.clock.wait(milliseconds / (milliseconds // 10_000 + 1) / 1000)

    def trimmed(self) -> None:
        for reading in self.readings:
            if reading.next < self.first:
                stands = reading.compacted and self.first <= self.horizon + 1
                holds_something = reading.compacted and bool(reading.got)
                reading.may_be_stale = reading.may_be_stale or holds_something
                reading.lost_raw = reading.lost_raw or not (stands or holds_something)

    # Reading

    def behind(self, start: StartPosition, view: list[Row], flag: bool) -> list[Row]:
        """Return the part of a view at or after a start (R1: above the horizon the flag changes nothing)."""
        if isinstance(start, StartTime):
            first = next((n for n, row in enumerate(view) if row.publish_time >= start.publish_time), len(view))
            return view[first:]
        if isinstance(start, StartOffset):
            return [row for row in view if row.offset >= start.offset]
        assert isinstance(start, MessageId)
        return [row for row in view if row.message_id >= start]

    def some_start(self, data: st.DataObject) -> tuple[StartPosition, str]:
        kind = data.draw(st.sampled_from(["earliest", "latest", "offset", "id", "time"]), label="start")
        if kind == "latest":
            return LATEST, kind
        if kind == "time":
            return StartTime(data.draw(times, label="time")), kind
        number = data.draw(st.integers(0, len(self.rows)), label="number")
        if kind == "offset":
            return StartOffset(number), kind
        if kind == "id" and number < len(self.rows):
            return self.rows[number].message_id, kind
        return EARLIEST, "earliest"

    def read_on(self, reading: Reading, limits: ReadLimits) -> bool:
        """One page: rows as they were appended, in order, none twice; none left out that is still there."""
        try:
            got = rows_of(reading.reader.poll(limits))
        except StateMayBeStale:
            assert reading.may_be_stale
            reading.is_stale = True
            return False
        assert limits.messages is None or len(got) <= limits.messages
        for row in got:
            assert row.offset >= reading.next, "twice, or out of order"
            assert row == self.rows[row.offset], "as it was appended"
            if not reading.compacted:
                between = self.rows[max(reading.next, self.first) : row.offset]
                left_out = [item for item in between if item.slot != int(RowType.COMPACTED_OUT)]
                assert not left_out
            reading.next = row.offset + 1
        if reading.compacted and not got:  # it is at the end, also of a compacted ledger that has nothing for it
            reading.next = max(reading.next, self.horizon + 1)
        reading.got += got
        return bool(got)

    def drain(self, reading: Reading) -> None:
        """To the end: it has all that there is now, and where it missed nothing but what was superseded, the state."""
        while self.read_on(reading, ReadLimits(7)):
            pass
        if reading.is_stale:
            return
        delivered = self.compacted_view() if reading.compacted else self.raw_rows(0)
        passed = max(reading.next, self.deleted_horizon + 1) if reading.compacted else reading.next
        if delivered and delivered[-1].offset >= passed:
            raise AssertionError(f"it ends at {reading.next}, and {delivered[-1]} is there")
        if reading.whole and not reading.lost_raw:
            assert values(reading.got) == values(self.rows), "R7: no newest value, and no deletion, is missed"
