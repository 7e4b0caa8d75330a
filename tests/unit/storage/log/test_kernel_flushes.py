"""Asynchronous flushes of the kernel: each ends once, and what cannot be begun is left to the caller."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from storage.log import kernel_flushes
from storage.log.kernel_flushes import MOST, KernelFlushes

TIMEOUT = 30.0


@pytest.fixture
def flushes() -> KernelFlushes:
    created = kernel_flushes.kernel_flushes()
    if not created.is_supported:
        pytest.skip("this system has no asynchronous flushes")
    return created


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.write(descriptor, b"data")
    yield descriptor
    os.close(descriptor)


def test_each_flush_ends_once(flushes: KernelFlushes, file: int) -> None:
    ends: SimpleQueue[OSError | None] = SimpleQueue()
    for _ in range(3):
        assert flushes.begin_flushes([(file, ends.put)] * 100) == 100
    assert [ends.get(timeout=TIMEOUT) for _ in range(300)] == [None] * 300
    assert ends.empty()


def test_a_file_that_cannot_be_flushed_and_those_after_it_are_left(flushes: KernelFlushes, file: int) -> None:
    ends: SimpleQueue[OSError | None] = SimpleQueue()
    no_file = os.dup(file)
    os.close(no_file)
    assert flushes.begin_flushes([(file, ends.put), (no_file, ends.put), (file, ends.put)]) == 1
    assert flushes.begin_flushes([(no_file, ends.put)]) == 0
    assert ends.get(timeout=TIMEOUT) is None
    assert ends.empty()


def test_no_more_are_begun_than_there_is_room_for(flushes: KernelFlushes, file: int) -> None:
    ends: SimpleQueue[OSError | None] = SimpleQueue()
    count = flushes.begin_flushes([(file, ends.put)] * (MOST + 1))
    assert count <= MOST
    assert [ends.get(timeout=TIMEOUT) for _ in range(count)] == [None] * count


def test_an_end_that_fails_is_logged_and_the_others_are_called(
    flushes: KernelFlushes, file: int, caplog: pytest.LogCaptureFixture
) -> None:
    ends: SimpleQueue[OSError | None] = SimpleQueue()

    def fail(_: OSError | None) -> None:
        raise ZeroDivisionError("a defect")

    with caplog.at_level(logging.ERROR):
        assert flushes.begin_flushes([(file, fail), (file, ends.put)]) == 2
        assert flushes.begin_flushes([(file, ends.put)]) == 1
        assert [ends.get(timeout=TIMEOUT) for _ in range(2)] == [None, None]


def test_a_system_that_does_not_know_the_call_is_not_asked_again(flushes: KernelFlushes, file: int) -> None:
    own = KernelFlushes()
    reading, writing = os.pipe()
    assert own.begin_flushes([(writing, print)]) == 0, "a pipe has no flush, as a file system without the call"
    assert not own.is_supported
    assert own.begin_flushes([(file, print)]) == 0
    os.close(reading)
    os.close(writing)


def test_an_unknown_machine_flushes_nothing(file: int) -> None:
    other = KernelFlushes("a new machine")
    assert not other.is_supported
    assert other.begin_flushes([(file, print)]) == 0


def test_the_thread_ends_when_nothing_is_flushed_and_begins_again(
    flushes: KernelFlushes, file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_flushes, "IDLE_SECONDS", 0)
    own, ends = KernelFlushes(), SimpleQueue[OSError | None]()
    before = set(threading.enumerate())
    for _ in range(2):
        assert own.begin_flushes([(file, ends.put)]) == 1
        assert ends.get(timeout=TIMEOUT) is None
        for thread in set(threading.enumerate()) - before:
            thread.join(TIMEOUT)
            assert not thread.is_alive()


def test_a_thread_that_cannot_start_leaves_all_flushes(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    assert KernelFlushes().begin_flushes([(file, print)]) == 0
