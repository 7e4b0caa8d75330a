"""Several engines on one session, each in a thread: their jobs run at once, and a cancel ends those of one alone."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from compactor.engines.engine import Engine
from compactor.engines.jvm import Jvm
from compactor.engines.shared_session import SparkEngineProvider
from compactor.engines.spark import SparkEngine
from storage.errors import Fenced, Misconfigured, Unavailable
from tests.unit.compactor.engines.test_spark import until


def test_a_cancel_ends_the_jobs_of_one_engine_alone(spark_engine: Engine, tmp_path: Path) -> None:
    assert isinstance(spark_engine, SparkEngine)
    first, second = (spark_engine.on_same_session() for _ in range(2))
    go = tmp_path / "go"

    def waits(number: int) -> int:
        (tmp_path / f"began {number}").touch()
        pause = threading.Event()
        while not go.exists():
            pause.wait(0.02)
        return number

    def also_waits(number: int) -> int:
        return waits(number + 10)

    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(first.run, 1, waits, print)
        other = pool.submit(second.run, 1, also_waits, print)
        until((tmp_path / "began 0").exists, "the first")
        until((tmp_path / "began 10").exists, "the second, beside it")
        first.cancel()
        with pytest.raises(Fenced, match="the compaction was cancelled"):
            running.result()
        assert not other.done()
        go.touch()
        assert other.result() == [10]
        # The same thread, and the same engine, continue afterwards.
        assert pool.submit(first.run, 2, also_waits, print).result() == [10, 11]


def test_engines_share_a_session_and_none_comes_after_the_end(
    spark_engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(spark_engine, SparkEngine)
    opened = []

    def open_it(*_: object) -> object:
        opened.append(threading.current_thread())
        assert isinstance(spark_engine, SparkEngine)
        return spark_engine.session

    monkeypatch.setattr("compactor.engines.spark.open_session", open_it)
    engines = SparkEngineProvider(lambda: tmp_path, "local[*]")
    with ThreadPoolExecutor(3) as pool:
        created = list(pool.map(lambda _: engines.open(), range(3)))
    assert len(opened) == 1
    assert len({id(engine) for engine in created}) == 3
    assert created[0].run(2, lambda number: number, print) == [0, 1]
    monkeypatch.setattr(SparkEngine, "stop_session_and_java", lambda _: None)  # others use the session
    engines.close()
    with pytest.raises(Unavailable, match="Spark was stopped"):
        engines.open()


def test_a_session_that_is_starting_is_given_up_when_the_service_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starting, given_up = threading.Event(), threading.Event()

    class Watched(Jvm):
        def kill(self) -> None:
            given_up.set()

    def open_it(*_: object) -> object:
        starting.set()
        given_up.wait(60)
        raise Misconfigured("Spark could not start", "check its log")

    monkeypatch.setattr("compactor.engines.shared_session.Jvm", Watched)
    monkeypatch.setattr("compactor.engines.spark.open_session", open_it)
    engines = SparkEngineProvider(lambda: tmp_path, "local[*]")
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(engines.open)
        starting.wait(60)
        engines.stop_opening()  # it does not wait
        with pytest.raises(Unavailable, match="Spark was stopped"):
            opening.result()
    engines.close()


@pytest.mark.slow
def test_a_java_that_is_stopped_or_dies_is_followed_by_another(tmp_path: Path) -> None:
    """SIGSTOP while a job runs: no call to it comes back, and no caller may wait forever; then SIGKILL.

    In a process of its own: this one's Java is everybody's.
    """
    script = """
import os, signal, sys, threading
from pathlib import Path
from compactor.engines.driver_monitor import DriverDeadlines
from compactor.engines.shared_session import SparkEngineProvider
from storage.errors import Unavailable

folder = Path(sys.argv[1])
engines = SparkEngineProvider(lambda: folder, "local[1]", deadlines=DriverDeadlines(answer_seconds=5))
engine = engines.open()
java = engine.session.sparkContext._gateway.proc

def task(number):
    (folder / "running").touch()
    threading.Event().wait()

def stop():
    while not (folder / "running").exists():
        threading.Event().wait(0.02)
    os.kill(java.pid, signal.SIGSTOP)

threading.Thread(target=stop).start()
try:
    engine.run(1, task, lambda _: None)
except Unavailable as error:
    print(error)
print(java.wait())
second = engines.open()
print(second.run(3, lambda number: number * 2, lambda _: None))

os.kill(second.session.sparkContext._gateway.proc.pid, signal.SIGKILL)
try:
    engines.open().run(1, abs, lambda _: None)
    engines.open()
except Exception as error:
    print("the second died:", type(error).__name__, file=sys.stderr)
print(engines.open().run(3, lambda number: number * 3, lambda _: None))
engines.close()
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)
    answer, status, *answers = ended.stdout.splitlines()[-4:]
    assert answer.startswith("Spark's driver has not answered for 5 s: the next run gets a new Spark session"), answer
    assert (status, answers) == ("-9", ["[0, 2, 4]", "[0, 3, 6]"]), ended.stderr
