"""Room in a log directory: appends are refused before the disk is full, and continue when there is room again."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from storage.errors import StorageFull, Unavailable
from storage.log.log_space import DISK_MS, ROLLED_MS, LogSpaceLimit
from storage.topic import Topic
from tests.clocks import ManualClock
from tests.entries import produce, single
from tests.workbench import Workbench, raw


class Disk:
    """The answer of `os.statvfs`, and the number of its calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
        self.free = free
        self.calls: list[Path] = []
        monkeypatch.setattr(os, "statvfs", self._statvfs)

    def _statvfs(self, folder: Path) -> Any:
        self.calls.append(folder)
        return SimpleNamespace(f_bavail=self.free // 10, f_frsize=10)


def test_rolled_segments_that_nobody_seals_stop_appends(bench: Workbench, topic: Topic) -> None:
    """While the store is away they would fill the disk."""
    uid, metadata = bench.log.uid, bench.metadata
    room = LogSpaceLimit(bench.clock, bench.log.path, lambda: metadata.segments.rolled_bytes(uid), max_rolled_bytes=200)
    bounded = replace(bench, log=replace(bench.log, space_limit=room)).topic(str(topic.name))
    other = replace(bench, log=replace(bench.log, space_limit=room)).topic("other")
    with bounded.append_log() as log:
        for payload in (b"1", b"2"):
            log.append(single(b"a", payload))
            log.roll()
            bench.clock.advance(ROLLED_MS)
        with pytest.raises(StorageFull, match=r"\d+ bytes of rolled segments .* not sealed yet, and 200 may be"):
            log.append(single(b"a", b"3"))
    with pytest.raises(StorageFull):
        produce(other, [single(b"b", b"1")])
    list(bounded.log_manager().seal(bounded.record))
    bench.clock.advance(ROLLED_MS)
    produce(bounded, [single(b"a", b"4")])
    assert [message.payload for message in raw(topic)] == [b"1", b"2", b"4"]


def test_some_of_the_disk_stays_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, disk = ManualClock(), Disk(monkeypatch, 1000)
    room = LogSpaceLimit(clock, tmp_path / "log" / "not made yet", lambda: pytest.fail("no limit"), min_free_bytes=1000)
    for _ in range(3):
        room.check()
    assert disk.calls == [tmp_path]
    disk.free = 990
    room.check()  # what was found counts for a moment
    clock.advance(DISK_MS)
    for _ in range(2):
        with pytest.raises(StorageFull, match="has 990 bytes left, and 1000 are to stay free"):
            room.check()
    disk.free = 1000
    clock.advance(-DISK_MS)  # set back, by an unknown time
    room.check()


def test_what_cannot_be_asked_stops_nobody(tmp_path: Path) -> None:
    """Appends need no database while a segment is open."""
    clock = ManualClock()
    answers: list[object] = [99, 101, Unavailable("the database is away", "try again"), 100]

    def rolled() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, int)
        return answer

    room = LogSpaceLimit(clock, tmp_path, rolled, max_rolled_bytes=100)
    rooms = []
    for _ in range(4):
        try:
            room.check()
            rooms.append(True)
        except StorageFull:
            rooms.append(False)
        clock.advance(ROLLED_MS)
    assert rooms == [True, False, False, True]
    assert answers == []


def test_without_a_wait_only_a_valid_measurement_permits_appends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, disk = ManualClock(), Disk(monkeypatch, 1000)
    room = LogSpaceLimit(clock, tmp_path, lambda: pytest.fail("no limit"), min_free_bytes=1000)
    assert not room.is_known_to_have_space
    assert disk.calls == [], "an event loop asks"
    room.check()
    assert room.is_known_to_have_space
    clock.advance(DISK_MS)
    assert not room.is_known_to_have_space
    disk.free = 10
    with pytest.raises(StorageFull):
        room.check()
    assert not room.is_known_to_have_space
