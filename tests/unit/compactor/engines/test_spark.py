"""The Spark engine: whose error comes out of a phase, and that a cancel is over with its phase."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest
from pyspark.java_gateway import launch_gateway

from api.cli.local.engine import open_engine
from api.settings.settings import Settings
from compactor.engines.driver_monitor import DriverCaller, DriverStatus
from compactor.engines.engine import PARTITIONS_PER_CORE, Engine, TaskFailure, answers_or_raise
from compactor.engines.jvm import GatewayAddress, Jvm
from compactor.engines.spark import JAVA_NAMES, SparkDriver, SparkEngine, SparkSettings, open_session
from storage.errors import Fenced, Misconfigured, ObjectMissing, Unavailable
from tests.processes import process


def test_answers_come_in_order(spark_engine: Engine) -> None:
    seen: list[int] = []
    assert spark_engine.run(5, lambda number: number * number, seen.append) == [0, 1, 4, 9, 16]
    assert spark_engine.run(0, lambda number: number, seen.append) == []


# Tasks are functions inside functions: these travel whole, and a worker need not find this module.


def test_an_error_of_ours_comes_back_as_it_was_raised(spark_engine: Engine) -> None:
    def missing(number: int) -> int:
        raise ObjectMissing(f"object {number} is gone", "restore it")

    def away(number: int) -> int:
        raise Unavailable("the store is away", "wait")

    with pytest.raises(ObjectMissing, match="object 0 is gone: restore it"):
        answers_or_raise(spark_engine.run(1, missing, print))
    with pytest.raises(Unavailable, match=r"^the store is away: wait$"):
        answers_or_raise(spark_engine.run(1, away, print))


def test_any_other_error_keeps_its_kind_text_and_place(spark_engine: Engine) -> None:
    """W3: the original error is kept and shown, and a defect is not taken for a machine that is busy."""

    def defect(number: int) -> int:
        return {0: 1}[number + 41]

    with pytest.raises(RuntimeError, match="KeyError: 41") as raised:
        answers_or_raise(spark_engine.run(1, defect, print))
    assert "in defect" in raised.value.__notes__[0]


def test_a_package_that_a_worker_lacks_is_named(spark_engine: Engine) -> None:
    class Lacking:
        def __call__(self, number: int) -> int:
            return number

        def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
            return importlib.import_module, ("no_such_package",)

    expected = "executors cannot import a package that tasks need (No module named 'no_such_package'; Python is "
    with pytest.raises(Misconfigured, match=re.escape(expected)) as raised:
        answers_or_raise(spark_engine.run(1, Lacking(), print))
    assert "install the packages of requirements/runtime.lock" in raised.value.remedy


def test_light_tasks_share_partitions_and_a_bad_one_fails_alone(spark_engine: Engine) -> None:
    def where(number: int) -> int:
        from pyspark import TaskContext

        if number == 400:
            raise ObjectMissing("object 400 is gone", "restore it")
        return int(TaskContext.get().partitionId())

    outcomes = spark_engine.run(1000, where, print, weights=[100.0] * 1000)
    assert isinstance(outcomes[400], TaskFailure)
    assert str(outcomes[400].error) == "object 400 is gone: restore it"
    partitions = Counter(outcome for outcome in outcomes if not isinstance(outcome, TaskFailure))
    assert len(partitions) == PARTITIONS_PER_CORE * spark_engine.parallelism
    assert sum(partitions.values()) == 999


def ended(pid: int) -> bool:
    """Return whether the process has ended: it is absent or a zombie."""
    status = process(pid)
    return status is None or status.state == "Z"


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait for another process, which gives nothing to wait on, for two minutes at most."""
    pause = threading.Event()
    for _ in range(1200):
        if holds():
            return
        pause.wait(0.1)
    raise AssertionError(f"{what} did not come")


def test_a_cancel_ends_what_runs(spark_engine: Engine, tmp_path: Path) -> None:
    """Python code that never checks for its end is ended as well: Spark kills its process."""
    running = tmp_path / "running"

    def loop(number: int) -> int:
        running.with_suffix(".new").write_text(str(os.getpid()))
        running.with_suffix(".new").rename(running)
        while True:
            pass

    def cancel() -> None:
        until(running.exists, "the task")
        spark_engine.cancel()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    with pytest.raises(Fenced, match="the compaction was cancelled"):
        spark_engine.run(1, loop, print)
    canceller.join()
    until(lambda: ended(int(running.read_text())), "the end of the cancelled task")
    assert spark_engine.run(2, lambda number: number, print) == [0, 1]


DRIVER = """
    import os, signal, sys
    from pathlib import Path
    from pyspark import SparkContext
    from compactor.engines.spark import SparkEngine, SparkSettings, open_session

    def terminate(*_):
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, terminate)  # as the command line does
    folder = Path(sys.argv[1])

    def loop(number):
        (folder / "new").write_text(str(os.getpid()))
        (folder / "new").rename(folder / "running")
        while True:
            pass

    session = open_session(SparkSettings(folder / "spark.log", "local[1]"))
    (folder / "java").write_text(str(SparkContext._gateway.proc.pid))
    try:
        SparkEngine(session).run(1, loop, lambda ended: None)
    except KeyboardInterrupt:
        print("interrupted")
    finally:
        session.stop()
"""


class FakeJvm(Jvm):
    """A JVM without a process, for a session with fakes of PySpark's classes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.java_options = ""
        self.log_settings = ""
        self.gateways: list[Any] = []
        gateways = self.gateways

        class Context:
            _gateway = None

            def __init__(self, conf: object, gateway: object) -> None:
                gateways.append(gateway)

        builder = SimpleNamespace(config=lambda conf: builder, getOrCreate=FakeSpark)
        monkeypatch.setattr("compactor.engines.spark.SparkContext", Context)
        monkeypatch.setattr("compactor.engines.spark.SparkSession", SimpleNamespace(builder=builder))
        monkeypatch.setattr("compactor.engines.spark.ClientServer", lambda **_: SimpleNamespace(jvm=None))
        monkeypatch.setattr("compactor.engines.spark.java_import", lambda *_: None)

    def launch(self, submit: Path, options: Iterable[tuple[str, str]], log: IO[bytes]) -> GatewayAddress:
        self.java_options = dict(options)["spark.driver.extraJavaOptions"]
        (file,) = re.findall(r"-Dlog4j2.configurationFile=file://(\S+)", self.java_options)
        self.log_settings = Path(file).read_text(encoding="utf-8")
        return GatewayAddress(1234, "secret")


def test_java_logs_to_the_file_of_the_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    jvm = FakeJvm(monkeypatch)
    open_session(SparkSettings(tmp_path / "spark.log"), jvm=jvm)
    (named,) = re.findall(r"-D(\S+)=" + re.escape(str(tmp_path / "spark.log")), jvm.java_options)
    assert f"fileName = ${{sys:{named}}}\n" in jvm.log_settings


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_the_process_group(tmp_path: Path, number: signal.Signals) -> None:
    """A service manager sends it. SIGTERM is an interrupt, not a failure of Spark. Even after SIGKILL nothing
    of Spark is left."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(DRIVER), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        until((tmp_path / "running").exists, "the task")
        os.killpg(process.pid, number)
        out, errors = process.communicate()
    finally:
        process.kill()
        process.communicate()
    if number == signal.SIGTERM:
        assert (process.returncode, out) == (0, "interrupted\n"), errors
    for name in ("java", "running"):
        until(lambda name=name: ended(int((tmp_path / name).read_text())), f"the end of {name}")  # type: ignore[misc]


def test_a_master_that_cannot_be_used_is_told_before_java_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("compactor.engines.spark.find_java_home", None)
    with pytest.raises(Misconfigured, match="Spark Connect has no RDDs"):
        open_session(SparkSettings(tmp_path / "spark.log", "sc://spark.example"))
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(Unavailable, match="no Spark master answers"):
        open_session(SparkSettings(tmp_path / "spark.log", f"spark://127.0.0.1:{port}"))


def test_a_master_that_does_not_take_the_driver_is_named_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A driver without the secret: Spark tries for a minute, then its Java ends, and the first call fails."""

    def refuse(*_: object) -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    jvm = FakeJvm(monkeypatch)
    monkeypatch.setattr("compactor.engines.cluster.zip_packages", refuse)
    with socket.create_server(("127.0.0.1", 0)) as master, pytest.raises(Misconfigured) as refused:
        open_session(SparkSettings(tmp_path / "spark.log", f"spark://127.0.0.1:{master.getsockname()[1]}"), jvm=jvm)
    assert "Spark could not start with master spark://127.0.0.1" in refused.value.message
    assert "spark.authenticate.secret" in refused.value.remedy


class FakeSpark:
    """A session, its context, tracker and data, whose jobs fail after `meanwhile` was called."""

    master = "local[1]"

    def __init__(self) -> None:
        self.meanwhile: Callable[[], object] = lambda: None
        self.sparkContext = self
        self.defaultParallelism = 1

    def statusTracker(self) -> FakeSpark:  # noqa: N802 (PySpark's name)
        return self

    def getJobIdsForGroup(self, group: str) -> list[int]:  # noqa: N802 (PySpark's name)
        raise ConnectionRefusedError

    def getConf(self) -> dict[str, str]:  # noqa: N802 (PySpark's name)
        return {}

    def setJobGroup(self, *_: object, **__: object) -> None: ...  # noqa: N802 (PySpark's name)

    def cancelJobGroup(self, group: str) -> None: ...  # noqa: N802 (PySpark's name)

    def parallelize(self, *_: object) -> FakeSpark:
        return self

    def mapPartitions(self, body: object) -> FakeSpark:  # noqa: N802 (PySpark's name)
        return self

    def collect(self) -> Any:
        self.meanwhile()
        raise OSError("the job ended")


def test_a_cancel_is_over_with_its_phase() -> None:
    """One engine serves many runs: a later failure is not the cancel of an earlier run."""
    spark = FakeSpark()
    engine = SparkEngine(spark)  # type: ignore[arg-type]
    spark.meanwhile = engine.cancel
    with pytest.raises(Fenced, match="cancelled"):
        engine.run(1, str, print)
    spark.meanwhile = lambda: None
    with pytest.raises(Unavailable, match="the job ended"):
        engine.run(1, str, print)


@pytest.mark.parametrize(("own_running", "other_running", "is_waiting"), [(0, 1, True), (1, 1, False), (0, 0, False)])
def test_a_job_waits_when_only_other_jobs_have_tasks_that_run(
    own_running: int, other_running: int, is_waiting: bool
) -> None:
    stages = {1: own_running, 2: other_running}
    tracker = SimpleNamespace(
        getJobIdsForGroup=lambda _: [1],
        getActiveJobsIds=lambda: [1, 2],
        getJobInfo=lambda job: SimpleNamespace(stageIds=[job]),
        getStageInfo=lambda stage: SimpleNamespace(numCompletedTasks=10 * stage, numActiveTasks=stages[stage]),
    )
    java_context = SimpleNamespace(isStopped=lambda: False, conf=dict, master=lambda: "local[1]")
    context = SimpleNamespace(statusTracker=lambda: tracker, _jsc=SimpleNamespace(sc=lambda: java_context))
    driver = SparkDriver(SimpleNamespace(sparkContext=context))  # type: ignore[arg-type]
    assert driver.status("group") == DriverStatus(stopped=False, executors=None, ended_tasks=10, is_waiting=is_waiting)


def test_the_gateway_imports_what_pyspark_does() -> None:
    source = inspect.getsource(launch_gateway)
    assert tuple(re.findall(r'java_import\(gateway\.jvm, "(.+?)"\)', source)) == JAVA_NAMES


def test_port_and_secret_of_the_gateway_are_never_in_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A process that is started meanwhile would inherit them; and what was set before stays."""
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "7")
    seen = []

    def connected(**_: object) -> SimpleNamespace:
        seen.append({name: value for name, value in os.environ.items() if name.startswith("PYSPARK_GATEWAY")})
        return SimpleNamespace(jvm=None)

    monkeypatch.setattr("pyspark.java_gateway.ClientServer", connected)
    monkeypatch.setattr("pyspark.java_gateway.java_import", lambda *_: None)
    jvm = FakeJvm(monkeypatch)
    monkeypatch.setattr("compactor.engines.spark.ClientServer", connected)
    open_session(SparkSettings(tmp_path / "spark.log"), jvm=jvm)
    (gateway,) = jvm.gateways
    assert gateway.proc is None
    assert [*seen, os.environ.get("PYSPARK_GATEWAY_PORT")] == [{"PYSPARK_GATEWAY_PORT": "7"}, "7"]


def test_a_command_asks_its_driver_from_one_thread_which_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    created: list[DriverCaller] = []
    stopped: list[str] = []

    class Counted(DriverCaller):
        def __init__(self) -> None:
            super().__init__()
            created.append(self)

    session = SimpleNamespace(stop=lambda: stopped.append(threading.current_thread().name))
    monkeypatch.setattr("compactor.engines.driver_monitor.DriverCaller", Counted)
    monkeypatch.setattr("compactor.engines.spark.open_session", lambda *_: session)
    with open_engine(Settings(data=str(tmp_path), spark_master="local[1]", compaction_engine="spark")):
        pass
    assert stopped == ["spark-driver"]
    (caller,) = created
    with pytest.raises(ConnectionAbortedError):
        caller.ask(str, 1)
