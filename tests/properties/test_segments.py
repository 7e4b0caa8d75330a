"""Segments against a plain list: any entries, flush policies, crashes and reads.

A crash leaves what was flushed, and of the rest any beginning, with sectors that are as written, zeros, nonsense, or
those of another segment. What recovery then finds is a beginning of what was appended, and not less than was flushed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from storage.entries.entry import MAGIC
from storage.errors import ObjectDamaged
from storage.log.frames import FRAME_BYTES, HEADER_BYTES
from storage.log.high_watermark import read_high_watermark
from storage.log.segment import FlushPolicy
from storage.log.segment_dump import FrameState, SegmentScan
from tests.budgets import IN_SOAK
from tests.clocks import ManualClock
from tests.pulsar_entries import PUBLISHED, encrypted, entry, metadata
from tests.segments import OneSegment, SteppedWriter, flip, message

pytestmark = pytest.mark.slow

SECTOR = 64
EXAMPLES = 300 if IN_SOAK else 20


@st.composite
def entries(draw: st.DrawFn) -> tuple[bytes, int, int]:
    """An entry, the offsets that it takes, its publish time."""
    time = PUBLISHED + draw(st.integers(-5, 5))
    payload = draw(st.binary(max_size=30)) * draw(st.sampled_from([1, 1, 1, 40]))
    match draw(st.sampled_from(["message", "batch", "encrypted", "no checksum"])):
        case "batch":
            messages = draw(st.integers(1, 9))
            described = metadata(num_messages_in_batch=messages, publish_time=time)
            return entry(described, payload + b"single" * messages), messages, time
        case "encrypted":
            return entry(encrypted(num_messages_in_batch=7, publish_time=time), payload), 1, time
        case "no checksum":
            return entry(metadata(publish_time=time), payload, checksum=False), 1, time
        case _:
            return entry(metadata(publish_time=time), payload), 1, time


policies = st.builds(
    FlushPolicy,
    messages=st.sampled_from([1, 1, 1, 2, 5, None]),
    ms=st.sampled_from([None, 100_000]),
)


class SegmentMachine(RuleBasedStateMachine):
    """One segment, its writers one after the other, and a list of the appends that they acknowledged."""

    def __init__(self) -> None:
        super().__init__()
        self.temporary = tempfile.TemporaryDirectory()
        self.clock = ManualClock()
        self.segment = OneSegment(Path(self.temporary.name), 7, 1000, self.clock)
        self.writer: SteppedWriter | None = None
        self.appended: list[tuple[bytes, int, int]] = []
        """With offsets and times; the first `flushed` of them are durable."""
        self.flushed = 0

    def teardown(self) -> None:
        if self.writer is not None:
            self.writer.abandon()
        self.temporary.cleanup()

    @property
    def written(self) -> SteppedWriter:
        assert self.writer is not None
        return self.writer

    def offset(self, number: int) -> int:
        return 1000 + sum(messages for _, messages, _ in self.appended[:number])

    def count_flushed(self) -> None:
        """Check the flushed entries: at least what the policy promises, exactly what the end file has."""
        end = read_high_watermark(self.segment.files.high_watermark, self.segment.header.checksum)
        assert end is not None
        sizes = [FRAME_BYTES + len(data) for data, _, _ in self.appended]
        ends = [HEADER_BYTES + sum(sizes[:number]) for number in range(len(sizes) + 1)]
        self.flushed = ends.index(end.flushed_bytes)
        unflushed = sum(messages for _, messages, _ in self.appended[self.flushed :])
        if self.policy.messages is not None:
            assert unflushed < self.policy.messages

    @initialize(policy=policies, index_spacing=st.sampled_from([1, 100, 1 << 16]))
    def create(self, policy: FlushPolicy, index_spacing: int) -> None:
        self.policy, self.index_spacing = policy, index_spacing
        self.writer = self.segment.create(policy, index_spacing=index_spacing)

    @rule(group=st.lists(entries(), min_size=1, max_size=4))
    def append(self, group: list[tuple[bytes, int, int]]) -> None:
        tickets = [self.written.submit(data) for data, _, _ in group]
        for ticket, (data, messages, time) in zip(tickets, group, strict=True):
            position = ticket.result().first
            assert (position.message_id.entry_id, position.offset) == (len(self.appended), self.offset(1 << 30))
            self.appended.append((data, messages, time))
        self.count_flushed()

    @rule()
    def wait(self) -> None:
        self.clock.advance(100_000)
        if self.written.flush_if_due():
            assert self.policy.ms is not None
        if self.policy.ms is not None:
            self.flushed = len(self.appended)

    @rule(policy=policies)
    def close_and_open(self, policy: FlushPolicy) -> None:
        self.written.close()
        self.policy = policy
        size = self.segment.files.log.stat().st_size
        self.writer = self.segment.recover(policy, index_spacing=self.index_spacing)
        assert self.segment.files.log.stat().st_size == size
        self.flushed = len(self.appended)

    @rule(data=st.data(), policy=policies)
    def lose_power(self, data: st.DataObject, policy: FlushPolicy) -> None:
        self.written.abandon()
        files = self.segment.files
        now = files.log.read_bytes()
        durable = HEADER_BYTES + sum(FRAME_BYTES + len(data) for data, _, _ in self.appended[: self.flushed])
        image = now[:durable]
        kept = data.draw(st.integers(durable, len(now) + 2 * SECTOR), label="kept")
        other = OneSegment(files.folder / "other", 8, 1000)
        if not other.files.log.exists():
            other.rolled([data for data, _, _ in self.appended] or [message(0)])
        strange = other.files.log.read_bytes()
        for at in range(durable, kept, SECTOR):
            kinds = ["written", "zeros", "nonsense", "another segment's", "an earlier one"]
            match data.draw(st.sampled_from(kinds), label="sector"):
                case "written":
                    image += now[at : min(at + SECTOR, kept)]
                case "zeros":
                    image += bytes(SECTOR)
                case "nonsense":
                    image += data.draw(st.binary(min_size=SECTOR, max_size=SECTOR))
                case "another segment's":
                    image += strange[at : at + SECTOR]
                case _:
                    image += now[HEADER_BYTES : HEADER_BYTES + SECTOR]
        files.log.write_bytes(image)
        for aid in (files.high_watermark, files.index):
            match data.draw(st.sampled_from(["kept", "lost", "torn"]), label=aid.suffix):
                case "lost":
                    aid.unlink()
                case "torn":
                    whole = aid.read_bytes()
                    aid.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
        self.policy = policy
        self.writer = self.segment.recover(policy, index_spacing=self.index_spacing)
        assert self.flushed <= self.writer.entries <= len(self.appended)
        del self.appended[self.writer.entries :]
        self.flushed = len(self.appended)

    @precondition(lambda self: self.writer is not None)
    @invariant()
    def readers_see_the_list(self) -> None:
        every = self.policy.messages == 1
        assert not every or self.flushed == len(self.appended)
        reader = self.segment.reader(chunk_bytes=256)
        items = [(item.entry_id, item.offset, item.data) for item in reader.entries()]
        assert items == [(number, self.offset(number), item[0]) for number, item in enumerate(self.appended)]
        last = reader.last_position()
        assert (last.offset if last else 999) == self.offset(1 << 30) - 1

    @rule(data=st.data())
    def seek(self, data: st.DataObject) -> None:
        reader = self.segment.reader(chunk_bytes=256)
        end = self.offset(1 << 30)
        start = data.draw(st.integers(998, end + 1), label="offset")
        expected = [
            number for number, (_, messages, _) in enumerate(self.appended) if self.offset(number) + messages > start
        ]
        assert [item.entry_id for item in reader.entries(start)] == expected
        time = PUBLISHED + data.draw(st.integers(-6, 6), label="time")
        first = next((number for number, item in enumerate(self.appended) if item[2] >= time), 1 << 30)
        assert reader.offset_at_time(time) == self.offset(first)
        number = data.draw(st.integers(0, len(self.appended) + 1), label="entry")
        assert reader.offset_of_entry(number) == self.offset(number)

    @rule()
    def scan_shows_the_list(self) -> None:
        with SegmentScan(self.segment.files.log) as scan:
            frames = [(frame.state, frame.entry_id, frame.data) for frame in scan.frames()]
        assert frames == [(FrameState.VALID, number, item[0]) for number, item in enumerate(self.appended)]

    @rule()
    def content_is_that_of_the_list(self) -> None:
        content = self.written.content()
        if content is None:
            assert not self.appended
            return
        times = [time for _, _, time in self.appended]
        assert (content.entries, content.last_offset) == (len(self.appended), self.offset(1 << 30) - 1)
        assert (content.min_publish_time, content.max_publish_time) == (min(times), max(times))
        assert content.size == self.segment.files.log.stat().st_size


TestSegments = pytest.mark.budgeted(SegmentMachine.TestCase)
TestSegments.settings = settings(max_examples=EXAMPLES, stateful_step_count=20)


def damaged_at(segment: OneSegment, size: int) -> int | None:
    """Return where a reader of a rolled segment reports damage. None: it reads to the end."""
    try:
        for _ in segment.reader(size).entries():
            pass
    except ObjectDamaged as error:
        return int(error.message.split("is damaged at byte ")[1].split()[0].rstrip(":"))
    return None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    return lambda: tmp_path_factory.mktemp("segment")


@given(
    drawn=st.lists(entries(), min_size=1, max_size=6), where=st.floats(0, 1, exclude_max=True), bits=st.integers(1, 255)
)
@example(drawn=[(message(0), 1, 0)], where=0.99, bits=1)
def test_any_damage_of_a_rolled_segment_is_named(
    folder: Callable[[], Path], drawn: list[tuple[bytes, int, int]], where: float, bits: int
) -> None:
    segment = OneSegment(folder())
    size = segment.rolled([data for data, _, _ in drawn])
    assert damaged_at(segment, size) is None
    starts = [HEADER_BYTES]
    for data, _, _ in drawn:
        starts.append(starts[-1] + FRAME_BYTES + len(data))
    position = int(where * size)
    flip(segment.files.log, position, bits)
    assert damaged_at(segment, size) == max((start for start in starts if start <= position), default=0)
    with SegmentScan(segment.files.log) as scan:
        frames = list(scan.frames())
    before = sum(1 for start in starts[1:] if start <= position)
    if position >= HEADER_BYTES:
        assert [frame.data for frame in frames[:before]] == [data for data, _, _ in drawn[:before]]
        assert all(frame.state is FrameState.VALID for frame in frames[:before])
        assert frames[before].state is not FrameState.VALID
    behind = [data for data, _, _ in drawn[before + 1 :] if data.startswith(MAGIC)]
    delivered = [frame.data for frame in frames[before:] if frame.data is not None and frame.data.startswith(MAGIC)]
    assert delivered[len(delivered) - len(behind) :] == behind
