"""Messages that are not sealed and are on a machine that is away: what the store has is read, the rest is named."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from api.broker.positions import check_not_after_end, mark_delete_before
from storage.environment import Environment
from storage.errors import SegmentNotLocal
from storage.log.directory import LogDirectory
from storage.model import EARLIEST, LATEST
from storage.positions import ContinuationToken, StartOffset
from storage.reading.page_reader import ReadLimits
from storage.topic import Topic
from tests.entries import produce, single
from tests.workbench import Workbench, content


@pytest.fixture
def local_log(tmp_path: Path) -> LogDirectory:
    """The log directory of a machine that lives."""
    directory = LogDirectory(tmp_path / "here")
    directory.uid  # noqa: B018  something was written to it
    return directory


def seen_from(bench: Workbench, topic: Topic, log: LogDirectory) -> Topic:
    """The topic as a process on the machine with that log directory sees it."""
    return Topic(Environment(bench.metadata, bench.store, bench.clock, log), topic.record)


@pytest.fixture
def away(bench: Workbench, local_log: LogDirectory) -> Topic:
    """Offsets 0-2 compacted, 3-4 sealed, 5 in a rolled segment on the machine that is away."""
    topic = bench.topic()
    bench.append(topic, [content(*((b"k%d" % number, b"1") for number in range(3)))])
    bench.compact(topic)
    bench.append(topic, [content((b"k0", b"2"), (b"k3", b"1"))])
    produce(topic, [single(b"k1", b"2")])
    topic.log_manager().roll(topic.record)
    return seen_from(bench, topic, local_log)


NAMED = r"from offset 5 to 5 are not sealed yet: the segment \d+ is in the log directory [0-9a-f]{32}"


@pytest.mark.parametrize("read_compacted", [False, True])
def test_a_read_gives_what_is_sealed_and_then_names_the_rest(away: Topic, read_compacted: bool) -> None:
    reading = away.messages(read_compacted=read_compacted)
    assert [message.offset for message in islice(reading, 5)] == [0, 1, 2, 3, 4]
    with pytest.raises(SegmentNotLocal, match=NAMED):
        next(reading)
    page = away.reader(ContinuationToken(EARLIEST), read_compacted).messages(ReadLimits())
    assert len(page.messages) == 5
    with pytest.raises(SegmentNotLocal, match=NAMED):
        away.reader(page.next, read_compacted).messages(ReadLimits())
    check_not_after_end(away, StartOffset(4))
    assert away.first_at(EARLIEST) is not None
    before = mark_delete_before(away, StartOffset(4))
    assert before is not None
    assert before.offset == 3
    with pytest.raises(SegmentNotLocal):
        mark_delete_before(away, StartOffset(5))


def test_a_key_is_looked_up_in_what_is_sealed_if_asked_to(away: Topic) -> None:
    """Its newest value may be in the segment, so an older one is no answer by itself."""
    for key, value in ((b"k0", b"2"), (b"k1", b"1"), (b"k3", b"1")):
        with pytest.raises(SegmentNotLocal, match=NAMED):
            away.newest_value(key)
        message = away.newest_value(key, sealed_only=True)
        assert message is not None
        assert message.payload == value
    assert away.newest_value(b"none", sealed_only=True) is None


def test_what_comes_behind_the_segment_is_read_without_it(
    bench: Workbench, away: Topic, local_log: LogDirectory
) -> None:
    """The topic continues on another machine: rolled there, open here, and then sealed here."""
    produce(away, [single(b"k0", b"3")])
    for _ in range(2):
        message = away.newest_value(b"k0")
        assert message is not None
        assert (message.offset, message.payload) == (6, b"3")
        assert [item.offset for item in away.messages(StartOffset(6))] == [6]
        assert away.last_message_id() == message.message_id
        with pytest.raises(SegmentNotLocal, match=NAMED):
            away.newest_value(b"k1")
        away.log_manager().try_roll_and_seal(away.record)
    assert away.snapshot().extents[-1] in away.snapshot().ledgers
    assert list(away.messages(LATEST)) == []


def test_a_compaction_takes_what_is_sealed_before_it_at_once(
    bench: Workbench, away: Topic, local_log: LogDirectory
) -> None:
    started = bench.clock.now_ms()
    replace(bench, log=local_log).compact(away)
    horizon = away.snapshot().horizon
    assert horizon is not None
    assert horizon.offset == 4
    assert bench.clock.now_ms() == started, "no process that lives seals the segment, so it is not waited for"
