"""The sealer beside a writer: it ends with it, comes back if it died, and says what goes wrong."""

from __future__ import annotations

import multiprocessing
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import pytest

from api.background.sealer_process import (
    POLL_SECONDS,
    RETRY_SECONDS,
    BackgroundSealer,
    SegmentSealer,
    seal_until_stopped,
)
from api.cli.kit.stderr import say
from api.cli.local.opening import open_topic
from api.components import open_environment
from api.settings.settings import Settings
from storage.environment import Environment
from storage.errors import Unavailable
from storage.log.log_manager import LogManager
from storage.log.prepared_segments import PreparedSegments
from storage.metadata.records import TopicRecord
from storage.model import TopicName
from tests.clocks import ManualClock
from tests.entries import single
from tests.workbench import ensure_topic

pytestmark = pytest.mark.slow

NAME = TopicName.parse("t")
ROOT = Path(__file__).parents[3]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data=str(tmp_path / "data"))


@pytest.fixture
def environment(settings: Settings) -> Iterator[Environment]:
    """With a segment of the topic that waits to be sealed."""
    with open_environment(settings) as environment:
        with ensure_topic(environment, NAME).append_log() as log:
            log.append(single(b"a", b"1"))
            log.roll()
        yield environment


def waiting(environment: Environment) -> int:
    topic = open_topic(environment, NAME)
    return len(topic.log_manager().rolled_segments(topic.record))


class Stop:
    """Stands for the pipe: its other end is closed after that many looks."""

    def __init__(self, looks: int) -> None:
        self.waits: list[float] = []
        self._looks = looks

    def poll(self, seconds: float) -> bool:
        self.waits.append(seconds)
        return len(self.waits) > self._looks

    def recv_bytes(self) -> bytes:
        raise EOFError


def test_one_that_is_woken_looks_at_once(
    settings: Settings, environment: Environment, monkeypatch: pytest.MonkeyPatch, looking: None
) -> None:
    """It would wait for an hour otherwise; and the end of its writer is noticed behind what woke it."""
    monkeypatch.setattr("api.background.sealer_process.POLL_SECONDS", 3600.0)
    reading, writing = multiprocessing.Pipe(duplex=False)
    left: list[int] = []
    seal = SegmentSealer.seal_and_sweep

    def seal_then_end(self: SegmentSealer, topic: TopicRecord) -> None:
        seal(self, topic)
        left.append(waiting(environment))
        writing.close()

    monkeypatch.setattr(SegmentSealer, "seal_and_sweep", seal_then_end)
    writing.send_bytes(b"w")
    writing.send_bytes(b"w")
    seal_until_stopped(settings, "t", reading, say)
    assert left == [0, 0]


@pytest.fixture
def looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """`seal_until_stopped` runs in this process, which listens to Ctrl-C all the same."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)


WRITER = """
import sys
from api.background.sealer_process import BackgroundSealer
from api.settings.settings import Settings
from storage.model import TopicName

if __name__ == "__main__":
    with BackgroundSealer(Settings(data=sys.argv[1]), TopicName.parse("t")) as sealer:
        sealer.wake()
        print("started", flush=True)
        sys.stdin.read()
"""


def test_it_ends_when_its_writer_is_killed(environment: Environment, settings: Settings, tmp_path: Path) -> None:
    """It holds the writer's standard output open, so that ends only when both are gone."""
    script = tmp_path / "writer.py"
    script.write_text(WRITER)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, str(script), settings.data], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"started\n"
        writer.kill()
        output, _ = writer.communicate(timeout=60)
    assert output == b""


def test_what_is_rolled_when_the_writer_ends_is_sealed(environment: Environment, settings: Settings) -> None:
    with BackgroundSealer(settings, NAME) as sealer:
        sealer.wake()
    assert waiting(environment) == 0


def test_one_that_could_not_be_started_is_started_later(
    environment: Environment, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many processes, at that moment."""

    def refuse(_: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with BackgroundSealer(settings, NAME) as sealer:
        with monkeypatch.context() as patched:
            patched.setattr(multiprocessing.get_context("spawn").Process, "start", refuse)
            for _ in range(2):
                with pytest.raises(BlockingIOError):
                    sealer.wake()
        sealer.wake()
    assert waiting(environment) == 0


def test_one_that_died_is_started_again(
    environment: Environment, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[bytes] = []
    send_bytes = Connection.send_bytes

    def recorded(connection: Connection, message: bytes) -> None:
        sent.append(message)
        send_bytes(connection, message)

    monkeypatch.setattr(Connection, "send_bytes", recorded)
    with BackgroundSealer(settings, NAME) as sealer:
        sealer.wake()
        assert sent == []
        (first,) = multiprocessing.active_children()
        sealer.wake()
        assert [child.pid for child in multiprocessing.active_children()] == [first.pid]
        assert len(sent) == 1, "one that runs is woken"
        first.kill()
        first.join()
        sealer.wake()
        (second,) = multiprocessing.active_children()
        assert second.pid != first.pid
    assert waiting(environment) == 0
    assert multiprocessing.active_children() == []


def test_a_topic_that_failed_waits_no_longer_if_the_clock_is_set_back(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    sealing = SegmentSealer(
        replace(environment, clock=clock), lambda: True, PreparedSegments(environment.log, environment.clock, 0)
    )
    tries: list[TopicRecord] = []

    def away(_: LogManager, topic: TopicRecord) -> Iterator[object]:
        tries.append(topic)
        raise Unavailable("the store is away", "try again")

    monkeypatch.setattr(LogManager, "seal", away)
    for later in (0, int(RETRY_SECONDS * 1000) - 1, 1, -3_600_000):
        clock.advance(later)
        sealing.seal_one_per_topic(False)
    assert len(tries) == 3, "at once, after the wait, and when the length of the wait is unknown"


def test_topics_take_turns(environment: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    """One with many segments holds up no other, and what is rolled meanwhile has its turn, too."""
    sealed: list[str] = []
    real = LogManager.seal

    def recording(log_manager: LogManager, topic: TopicRecord) -> Iterator[object]:
        for ledger in real(log_manager, topic):
            sealed.append(topic.name.topic)
            yield ledger

    def roll(name: str) -> None:
        with ensure_topic(environment, TopicName.parse(name)).append_log() as log:
            log.append(single(b"a", b"1"))
            log.roll()

    monkeypatch.setattr(LogManager, "seal", recording)
    for name in ("t", "t", "t", "u"):
        roll(name)
    sealing = SegmentSealer(environment, lambda: True, PreparedSegments(environment.log, environment.clock, 0))
    assert sealing.seal_one_per_topic(False)
    assert sorted(sealed) == ["t", "u"]
    roll("late")
    while sealing.seal_one_per_topic(False):
        pass
    assert sorted(sealed[2:4]) == ["late", "t"]
    assert sealed[4:] == ["t", "t"]


def test_an_open_segment_that_has_grown_is_prepared_when_nothing_waits(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.log.prepared_segments.PIECE_BYTES", 1)
    monkeypatch.setattr("api.background.sealer_process.POLL_SECONDS", 0.2)
    prepared = PreparedSegments(environment.log, environment.clock, 1 << 30)
    sealing = SegmentSealer(environment, lambda: True, prepared)
    held: list[int] = []
    errors: list[Exception] = []
    reader, writer = multiprocessing.Pipe(duplex=False)
    topic = ensure_topic(environment, TopicName.parse("t"))
    with topic.append_log() as log:
        for number in range(2):
            log.append(single(b"%d" % number, b"1"))
        for message in (b"w", struct.pack(">q", 404), struct.pack(">q", topic.record.id)):
            writer.send_bytes(message)

        def seal(last: bool) -> bool:
            held.append(prepared.held_bytes)
            if len(held) == 3:
                writer.close()
            return len(held) < 2

        sealing.repeat_until_stopped(reader, seal, errors.append)
    assert errors == []
    assert held[:2] == [0, 0], "first all that can be sealed"
    assert 0 < held[2] == held[3]


@pytest.mark.parametrize("error", [Unavailable("the log is away", "try again"), ValueError("a defect")])
def test_an_error_of_preparation_holds_up_no_segment(
    environment: Environment, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> NoReturn:
        raise error

    monkeypatch.setattr(PreparedSegments, "extend", fail)
    monkeypatch.setattr("api.background.sealer_process.POLL_SECONDS", 0.2)
    sealing = SegmentSealer(environment, lambda: True, PreparedSegments(environment.log, environment.clock, 1 << 30))
    reader, writer = multiprocessing.Pipe(duplex=False)
    looks: list[bool] = []
    errors: list[Exception] = []
    topic = ensure_topic(environment, TopicName.parse("t"))
    with topic.append_log() as log:
        log.append(single(b"a", b"1"))
        writer.send_bytes(struct.pack(">q", topic.record.id))

        def seal(last: bool) -> bool:
            looks.append(last)
            if len(looks) == 2:
                writer.close()
            return False

        sealing.repeat_until_stopped(reader, seal, errors.append)
    assert errors == []
    assert looks == [False, False, True]


def test_growth_starts_no_process(settings: Settings) -> None:
    """One that dies at its start would be started with each growth."""
    with BackgroundSealer(settings, NAME) as sealer:
        assert not sealer.report_log_growth(1)
        assert multiprocessing.active_children() == []


@pytest.mark.parametrize("error", [Unavailable("the store is away", "try again"), ValueError("a defect")])
def test_whatever_goes_wrong_is_said_once_and_tried_again(
    environment: Environment,
    settings: Settings,
    looking: None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    failures = 3
    real = LogManager.seal

    def failing(log_manager: LogManager, *arguments: Any) -> Any:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise error
        return real(log_manager, *arguments)

    monkeypatch.setattr(LogManager, "seal", failing)
    stop: Any = Stop(4)
    seal_until_stopped(settings, "t", stop, say)
    assert stop.waits == [POLL_SECONDS, *[RETRY_SECONDS] * 3, POLL_SECONDS]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("compactor: sealing t: ")
    assert str(error) in line
    assert waiting(environment) == 0


def test_a_wake_does_not_shorten_the_wait_after_an_error(
    environment: Environment, settings: Settings, looking: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a damaged segment is read again at each roll. The end of the writer is noticed all the same."""
    tries: list[int] = []

    def failing(sealing: SegmentSealer, topic: TopicRecord) -> None:
        tries.append(topic.id)
        raise Unavailable("the store is away", "try again")

    class Woken(Stop):
        """Woken twice in each wait but the first; the last answer is the end of the writer."""

        def poll(self, seconds: float) -> bool:
            self.waits.append(seconds)
            return len(self.waits) % 3 != 1

        def recv_bytes(self) -> bytes:
            if len(self.waits) > self._looks:
                raise EOFError
            return b"w"

    monkeypatch.setattr(SegmentSealer, "seal_and_sweep", failing)
    stop: Any = Woken(9)
    seal_until_stopped(settings, "t", stop, say)
    assert stop.waits[0] == POLL_SECONDS
    assert all(RETRY_SECONDS / 2 < wait <= RETRY_SECONDS for wait in stop.waits[1:])
    assert len(tries) == 1 + 3 + 1


def test_a_sealer_that_cannot_begin_says_why(
    settings: Settings, looking: None, capsys: pytest.CaptureFixture[str]
) -> None:
    stop: Any = Stop(1)
    seal_until_stopped(settings, "nosuch", stop, say)
    assert "nosuch" in capsys.readouterr().err


def test_an_orphan_seals_nothing_more(
    environment: Environment, settings: Settings, looking: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dead:
        def is_alive(self) -> bool:
            return False

    monkeypatch.setattr(multiprocessing, "parent_process", Dead)
    stop: Any = Stop(0)
    seal_until_stopped(settings, "t", stop)
    assert waiting(environment) == 1
