"""A writer that lost its lease in its sleep, at the worst places, and comes back beside or after its successor.

The lease is a row with a term, the fence is the lock on the segment's file; between reading rows and taking the lock a
process may sleep for longer than any term (a stopped machine, SIGSTOP), and by then its successor may be gone again.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from storage.errors import CompactorError
from storage.failpoints import Failpoint
from storage.log import topic_log
from storage.log.active_segment_file import ActiveSegmentFile
from storage.log.segment import SegmentPaths
from storage.log.topic_log import TopicLog
from storage.metadata.liveness import LEASE_TTL_MS
from storage.topic import Topic
from tests.dying import dying_at
from tests.entries import produce, single
from tests.failpoint_listeners import observed
from tests.workbench import Workbench, raw


@pytest.fixture
def topic(bench: Workbench) -> Topic:
    """In this folder `topic` is a row of each database, for others."""
    return bench.topic()


@pytest.fixture
def asleep_before(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[], object]], None]:
    """The next call of that method of ActiveSegmentFile comes a term late, and after what others do meanwhile."""

    def arrange(method: str, meanwhile: Callable[[], object]) -> None:
        original: Callable[..., Any] = getattr(ActiveSegmentFile, method)

        def late(*arguments: Any, **options: Any) -> Any:
            monkeypatch.setattr(ActiveSegmentFile, method, original)
            bench.clock.advance(LEASE_TTL_MS + 1)
            meanwhile()
            return original(*arguments, **options)

        monkeypatch.setattr(ActiveSegmentFile, method, staticmethod(late))

    monkeypatch.setattr(topic_log, "POLL_SECONDS", 3600.0)
    return arrange


def test_a_late_writer_does_not_replace_the_segment_of_its_successor(
    topic: Topic, asleep_before: Callable[[str, Callable[[], object]], None]
) -> None:
    """It takes the file for one whose writer died before its row; there is a row by now."""
    asleep_before("create", lambda: produce(topic, [single(b"a", b"acknowledged")]))
    with suppress(CompactorError):
        produce(topic, [single(b"late", b"1")])
    assert [m.key for m in raw(topic)][:1] == [b"a"]
    produce(topic, [single(b"b", b"2")])
    assert [m.offset for m in raw(topic)] == list(range(len(raw(topic))))
    assert [m.key for m in raw(topic) if m.key != b"late"] == [b"a", b"b"]


def test_a_late_writer_appends_nothing_to_a_segment_that_its_successor_has_rolled(
    topic: Topic, asleep_before: Callable[[str, Callable[[], object]], None]
) -> None:
    """Bytes after a rolled segment's size are never read."""
    produce(topic, [single(b"a", b"1")])

    def meanwhile() -> None:
        with topic.append_log(0) as log:
            log.append(single(b"b", b"2"))
            log.roll()

    asleep_before("recover", meanwhile)
    acknowledged: list[bytes] = [b"a", b"b"]
    with suppress(CompactorError), topic.append_log(0) as log:
        log.append(single(b"late", b"3"))
        acknowledged.append(b"late")
    produce(topic, [single(b"c", b"4")])
    acknowledged.append(b"c")
    assert [m.key for m in raw(topic)] == acknowledged
    topic.log_manager().roll_and_seal(topic.record)
    assert [m.key for m in raw(topic)] == acknowledged


def is_locked(bench: Workbench, topic: Topic) -> bool:
    """Return whether a process holds the file of the topic's first segment."""
    with SegmentPaths(bench.log.topic_folder(topic.record.uid), 0).log.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.mark.parametrize("empty", [False, True])
def test_a_late_writer_cannot_open_a_segment_that_is_being_rolled(
    bench: Workbench, topic: Topic, empty: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its last flush and the commit that says how long it is; one that holds nothing is dropped, not rolled."""
    monkeypatch.setattr(topic_log, "POLL_SECONDS", 3600.0)
    acknowledged: list[bytes] = []

    def append(log: TopicLog, key: bytes) -> None:
        with suppress(CompactorError):
            log.append(single(key, b"1"))
            acknowledged.append(key)

    def at(step: Failpoint) -> None:
        if step in (Failpoint.ROLL_FLUSHED, Failpoint.ROLL_INSIDE_COMMIT):
            locked[step] = is_locked(bench, topic)
        if step is Failpoint.ROLL_FLUSHED:
            append(late, b"late")

    locked: dict[Failpoint, bool] = {}
    late = topic.append_log(0)
    with suppress(CompactorError), late:
        bench.clock.advance(LEASE_TTL_MS + 1)
        with topic.append_log(0) as log:
            if not empty:
                append(log, b"a")
            else:
                with dying_at(Failpoint.SEGMENT_OPENED):
                    log.append(single(b"x", b"1"))
            with observed(at):
                log.roll()
            append(late, b"later")
            append(log, b"b")
    assert locked == dict.fromkeys(
        [Failpoint.ROLL_FLUSHED] if empty else [Failpoint.ROLL_FLUSHED, Failpoint.ROLL_INSIDE_COMMIT], True
    )
    assert not is_locked(bench, topic)
    assert acknowledged == ([b"b"] if empty else [b"a", b"b"])
    assert [m.key for m in raw(topic)] == acknowledged
    assert [m.offset for m in raw(topic)] == list(range(len(acknowledged)))
