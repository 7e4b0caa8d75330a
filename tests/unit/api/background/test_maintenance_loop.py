"""Maintenance loop: what is rolled is sealed by a process that is restarted if it dies; maintenance runs beside it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from api.background.maintenance_loop import MaintenanceLoop
from api.background.sealer_process import BackgroundSealer
from api.cli.local.opening import open_topic
from api.components import open_environment
from api.settings.settings import Settings
from compactor.maintenance.tasks import Maintenance
from storage.errors import CompactorError, Misconfigured, Unavailable
from storage.metadata.records import ServiceRecord
from storage.model import TopicName
from storage.objects.capability_check import CapabilityReport
from storage.objects.local import LocalStore
from storage.store_trial import StoreTrial
from tests.clocks import ManualClock
from tests.entries import single
from tests.workbench import ensure_topic

pytestmark = pytest.mark.slow


def eventually(true: Callable[[], bool]) -> None:
    """Asked again and again, for as long as a slow machine may take."""
    never = threading.Event()
    for _ in range(600):
        if true():
            return
        never.wait(0.1)
    raise AssertionError("it did not come true in a minute")


def sealers() -> list[BaseProcess]:
    """The living processes that seal."""
    return [process for process in active_children() if process.name == "sealer"]


def test_what_is_rolled_is_sealed_and_maintenance_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("api.background.maintenance_loop.POLL_SECONDS", 0.05)
    settings = Settings(data=str(tmp_path / "data"), maintenance_seal_interval_ms=1, maintenance_interval_ms=1)
    runs: list[str] = []
    real = Maintenance.run_due

    def counted(maintenance: Maintenance) -> object:
        tasks = real(maintenance)
        runs.extend(task.value for task in tasks)
        return tasks

    monkeypatch.setattr(Maintenance, "run_due", counted)
    with open_environment(settings) as environment:
        topics = [ensure_topic(environment, TopicName.parse(name)) for name in ("a", "b")]

        def append_and_roll() -> None:
            for topic in topics:
                with topic.append_log() as log:
                    log.append(single(b"k", b"v"))
                    log.roll()

        def sealed(count: int) -> bool:
            return all(len(topic.snapshot().ledgers) == count for topic in topics)

        append_and_roll()  # left by the previous owner of the directory
        with MaintenanceLoop(settings, environment, lambda: True):
            eventually(lambda: sealed(1))
            (process,) = sealers()
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            append_and_roll()
            eventually(lambda: sealed(2))
            eventually(lambda: {"sweep", "retention", "garbage"} <= set(runs))
            (again,) = sealers()
        assert not again.is_alive()
        assert [record.message for record in caplog.records if record.name.startswith("compactor.maintenance")] == []
        assert [len(list(topic.messages())) for topic in topics] == [2, 2]


def test_a_tail_that_nobody_has_open_is_rolled_and_sealed_for_another_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two services with a log directory each; the one that compacts is not the one where the messages are."""
    monkeypatch.setattr("api.background.maintenance_loop.POLL_SECONDS", 0.05)
    first = Settings(data=str(tmp_path / "first"))
    second = Settings(data=str(tmp_path / "second"), database=first.database_url, store=first.store_url)
    with open_environment(first) as local, open_environment(second) as remote:
        topic = ensure_topic(local, TopicName.parse("idle"))
        with topic.append_log() as log:
            log.append(single(b"k", b"v"))
        other = open_topic(remote, topic.name)
        with pytest.raises(Misconfigured, match="is in the log directory"):
            other.log_manager().roll_and_seal(other.record, 60_000)
        living = [ServiceRecord("first:1:aa", "http://first", local.log.uid, 1, local.clock.now_ms())]
        monkeypatch.setattr(remote.metadata.services, "live", lambda: living)
        with MaintenanceLoop(first, local, lambda: False):
            other.log_manager().roll_and_seal(other.record, 60_000)
        assert [ledger.messages for ledger in other.snapshot().ledgers] == [1]
        assert [message.key for message in other.messages()] == [b"k"]


def test_its_thread_outlives_whatever_goes_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A thread that ended would end all maintenance, in silence."""
    monkeypatch.setattr("api.background.maintenance_loop.POLL_SECONDS", 0.01)
    settings = Settings(data=str(tmp_path / "data"), maintenance_seal_interval_ms=1)
    looks: list[None] = []

    def fail(*_: object) -> None:
        looks.append(None)
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with open_environment(settings) as environment:
        assert environment.log.uid
        monkeypatch.setattr(environment.metadata.segments, "topics_with_segments", fail)
        with MaintenanceLoop(settings, environment, lambda: True) as loop:
            eventually(lambda: len(looks) > 2)
            monkeypatch.setattr(BackgroundSealer, "wake", fail)
            loop.wake_sealer()
    assert "cannot be started now" in caplog.text


def test_a_store_that_was_away_at_the_start_is_tried_until_it_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(data=str(tmp_path / "data"), maintenance_interval_ms=60_000)
    answers: list[CompactorError | None] = [Unavailable("away", "wait"), Misconfigured("it overwrites", "replace it")]
    checks: list[None] = []

    def check(store: LocalStore) -> CapabilityReport:
        checks.append(None)
        if answers and (error := answers.pop(0)) is not None:
            raise error
        return CapabilityReport(store.url, ())

    monkeypatch.setattr(LocalStore, "check_capabilities", check)
    with open_environment(settings) as environment:
        clock = ManualClock()
        loop = MaintenanceLoop(settings, replace(environment, clock=clock), lambda: False)
        woken: list[None] = []
        monkeypatch.setattr(BackgroundSealer, "wake", lambda *_: woken.append(None))
        for waited_ms, expected in ((0, 1), (4_999, 1), (1, 2), (59_999, 2), (1, 3), (60_000, 3)):
            clock.advance(waited_ms)
            loop.run_store_trial_if_due()
            loop.wake_sealer()
            assert len(checks) == expected
            assert bool(woken) == (expected == 3), "nothing is sealed into a store that has not passed"
        assert "nothing is sealed into this object store: it overwrites: replace it" in caplog.text
        assert StoreTrial(environment.metadata, environment.store, 1).try_unless_passed() is False
