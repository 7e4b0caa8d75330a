"""Spark engine: the session, and phases as Spark jobs. The only module that imports pyspark.

A phase is one Spark job over task numbers, as an RDD: a DataFrame's `mapInArrow` costs 50 ms more each time. Spark
schedules, retries and speculates. The data goes from the object store through a Python worker to the object store,
never through the JVM or the driver. One warm session serves many runs (shared_session.py); its first job starts the
Python workers. Our packages travel to the executors of a cluster with the session, credentials do not. A monitor
(driver_monitor.py) ends a job that has lost its executors.

Java has its own process group, so a signal to ours ends only this process. Java ends when its stdin closes, or is
killed during its start (jvm.py).

Errors: Misconfigured (no usable Java, a session that cannot start, executors without a package that tasks need),
Unavailable (no master, Spark failed a task, the driver failed), Fenced (the job was cancelled). The failure of a task
is its outcome, a `TaskFailure`.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import pickle
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from py4j.clientserver import ClientServer, JavaParameters, PythonParameters
from py4j.java_gateway import java_import
from pyspark import SparkConf, SparkContext, StatusTracker, TaskContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.serializers import CPickleSerializer
from pyspark.sql import SparkSession

from compactor.engines import cluster
from compactor.engines.driver_monitor import DriverMonitor, DriverStatus, JobWatch
from compactor.engines.engine import TaskFailure, TaskInputs, answers_or_raise, partition_tasks
from compactor.engines.java import find_java_home
from compactor.engines.jvm import Jvm
from compactor.engines.kinds import SPARK
from storage.errors import CompactorError, Fenced, Misconfigured, Unavailable

Answer = TypeVar("Answer")

_POLL_SECONDS = 0.2
_EXECUTORS_WITHIN_SECONDS = 10.0
_EXECUTORS_SETTLE_SECONDS = 1.0
_STARTS_WITHIN_SECONDS = 300.0
_JAVA_ENDS_WITHIN_SECONDS = 10.0
JAVA_NAMES = (
    "org.apache.spark.SparkConf",
    "org.apache.spark.api.java.*",
    "org.apache.spark.api.python.*",
    "org.apache.spark.ml.python.*",
    "org.apache.spark.mllib.api.python.*",
    "org.apache.spark.resource.*",
    "org.apache.spark.sql.Encoders",
    "org.apache.spark.sql.OnSuccessCall",
    "org.apache.spark.sql.functions",
    "org.apache.spark.sql.classic.*",
    "org.apache.spark.sql.api.python.*",
    "org.apache.spark.sql.hive.*",
    "scala.Tuple2",
)
"""The Java names that PySpark uses without their package: the imports of its `launch_gateway`."""
_NO_PYTHON = "Cannot run program"
_OTHER_PYTHON = "PYTHON_VERSION_MISMATCH"


@dataclass(frozen=True)
class SparkSettings:
    """Settings of a session. `log_file`: the file of the driver's log."""

    log_file: Path
    master: str = "local[*]"

    @property
    def is_local(self) -> bool:
        """True if driver and executors are one process on this machine."""
        return cluster.is_local(self.master)


def open_session(
    settings: SparkSettings, notify: Callable[[str], None] = lambda _: None, jvm: Jvm | None = None
) -> SparkSession:
    """Start a session, and return it. `notify` gets lines for the user; Spark's own output goes to the log file.

    `jvm`: the JVM to launch, whose `kill` cancels the start from another thread; None: a new one.

    Only the settings of the first session of a process count, because a process has one JVM. On a cluster, Spark's own
    files have the other settings (`spark-defaults.conf` in SPARK_CONF_DIR). Raises Misconfigured, Unavailable.
    """
    cluster.check_master(settings.master)
    # Py4J logs stack traces when a call is interrupted or Java dies, beside the errors that it raises. Python prints
    # records without a handler, so this one takes them; handlers of the application still get them.
    logging.getLogger("py4j").addHandler(logging.NullHandler())
    facing = cluster.local_address_for_master(settings.master) if settings.master.startswith("spark://") else None
    java = find_java_home(os.environ)
    if shutil.which("bash") is None:
        raise Misconfigured("Spark's start scripts need bash, and PATH has none", "install bash")
    if java.note:
        notify(java.note)
    os.environ["JAVA_HOME"] = str(java.path)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if settings.is_local:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if facing and not {"SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME"} & os.environ.keys():
            # Spark would take the first address of this machine's name, which executors may not reach.
            os.environ["SPARK_LOCAL_IP"] = os.environ["SPARK_LOCAL_HOSTNAME"] = facing
    with tempfile.TemporaryDirectory(prefix="compactor-spark-") as folder:
        configuration = SparkConf().setMaster(settings.master).setAppName("compactor")
        configuration.setAll(list(_configuration(settings, Path(folder)).items()))
        jvm = jvm or Jvm()
        try:
            session = _start_session(configuration, settings.log_file, jvm)
            if not settings.is_local:  # also the first use of a master that rejects this driver
                _prepare_executors(session, settings, notify)
        except BaseException as error:
            if jvm.process is not None:
                jvm.kill()
                _clear_pyspark_state()
            if not isinstance(error, Exception):
                raise
            if _is_caused_by_interrupt(error):
                raise KeyboardInterrupt from error
            raise Misconfigured(
                f"Spark could not start with master {settings.master} ({_first_line(error)})",
                "set COMPACTOR_SPARK_MASTER to local[*] or to a reachable master; if that has a "
                f"spark.authenticate.secret, set it in SPARK_CONF_DIR; see {settings.log_file}",
            ) from error
    return session


def _start_session(configuration: SparkConf, log_file: Path, jvm: Jvm) -> SparkSession:
    """Start a session, and a JVM if this process has none; return the session.

    The stderr of the JVM, which Python workers inherit, is the log file. Workers write stack traces there that
    mean nothing to a user, such as when Spark disconnects an idle worker.
    """
    if SparkContext._gateway is not None:
        return SparkSession.builder.config(conf=configuration).getOrCreate()
    # Java may be stopped and never answer. Its end gives every waiting call an error.
    late = threading.Timer(_STARTS_WITHIN_SECONDS, jvm.kill)
    late.daemon = True
    late.start()
    try:
        with open(log_file, "ab", opener=lambda file, flags: os.open(file, flags, 0o600)) as log:
            submit = Path(_find_spark_home()) / "bin" / "spark-submit"
            port, secret = jvm.launch(submit, configuration.getAll(), log)
        SparkContext(conf=configuration, gateway=_connect_gateway(port, secret, jvm))
        return SparkSession.builder.config(conf=configuration).getOrCreate()
    finally:
        late.cancel()


def _connect_gateway(port: int, secret: str, jvm: Jvm) -> Any:
    """Return PySpark's gateway to the running JVM, with a Java thread per Python thread.

    It equals that of `launch_gateway`, which takes port and secret from the environment, where other new processes
    would inherit them.
    """
    gateway = ClientServer(
        java_parameters=JavaParameters(port=port, auth_token=secret, auto_convert=True),
        python_parameters=PythonParameters(port=0, eager_load=False),
    )
    gateway.proc = jvm.process
    for name in JAVA_NAMES:
        java_import(gateway.jvm, name)
    return gateway


def _prepare_executors(session: SparkSession, settings: SparkSettings, notify: Callable[[str], None]) -> None:
    """Send our packages to the executors, and wait a moment for executors: a run is sized by the available cores."""
    folder = Path(tempfile.mkdtemp(prefix="compactor-package-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # executors that start later fetch it
    # Spark refuses a second file of one name, and a process may open a second session.
    session.sparkContext.addPyFile(str(cluster.zip_packages(folder / f"{folder.name}.zip")))
    java_context = session.sparkContext._jsc.sc()
    start = settled = time.monotonic()
    executors = 0
    while executors == 0 or time.monotonic() - settled < _EXECUTORS_SETTLE_SECONDS:
        if time.monotonic() - start > _EXECUTORS_WITHIN_SECONDS:
            if executors == 0:
                notify(
                    f"{settings.master} has given no executors yet: waiting; see its web page and {settings.log_file}"
                )
            return
        time.sleep(_POLL_SECONDS)
        if (now := java_context.getExecutorMemoryStatus().size() - 1) != executors:  # the driver is one of them
            executors, settled = now, time.monotonic()


def _configuration(settings: SparkSettings, folder: Path) -> dict[str, str]:
    """Return Spark's own settings. `folder` is needed only until the JVM has started."""
    logging = folder / "log4j2.properties"
    logging.write_text(_LOGGING, encoding="utf-8")
    log_file = shlex.quote(f"-Dcompactor.spark.log={settings.log_file}")
    configuration = {
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={logging.as_uri()} {log_file}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.adaptive.enabled": "false",
        # Over TCP every second task starts 40 ms later, by a delayed acknowledgement between JVM and Python worker.
        "spark.python.unix.domain.socket.enabled": "true",
    }
    if settings.is_local:
        configuration |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return configuration


_LOGGING = """\
appenders = file
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = ${sys:compactor.spark.log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSS} %p %c{1}: %m%n%ex
logger.repl.name = org.apache.spark.api.python.PythonGatewayServer
logger.repl.level = warn
"""


class SparkDriver:
    """The `DriverClient` of a session. Calls have no deadline. Only `kill_java` may be called from any thread."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._java = getattr(SparkContext._gateway, "proc", None)  # None: another process started it
        self._has_executors: bool | None = None

    def status(self, group: str) -> DriverStatus:
        context = self._session.sparkContext
        java_context = context._jsc.sc()
        if java_context.isStopped():
            return DriverStatus(stopped=True, executors=None)
        tracker = self._session.sparkContext.statusTracker()
        ended, running = (
            _count_finished_and_running_tasks(tracker, tracker.getJobIdsForGroup(group)) if group else (0, 0)
        )
        # Spark gives the cores to the oldest job (FIFO).
        is_waiting = (
            bool(group)
            and not running
            and _count_finished_and_running_tasks(tracker, tracker.getActiveJobsIds())[1] > 0
        )
        return DriverStatus(False, self._count_executors(java_context), ended, is_waiting)

    def cancel(self, group: str) -> None:
        self._session.sparkContext.cancelJobGroup(group)

    def kill_java(self) -> None:
        if self._java is not None:
            self._java.kill()

    def _count_executors(self, java_context: Any) -> int | None:
        """Return the number of executors; None: not counted, because they start with jobs or are the driver itself."""
        if self._has_executors is None:
            dynamic = str(java_context.conf().get("spark.dynamicAllocation.enabled", "false")).lower() == "true"
            self._has_executors = not dynamic and not cluster.is_local(str(java_context.master()))
        if not self._has_executors:
            return None
        return int(java_context.getExecutorMemoryStatus().size()) - 1  # the driver is one of them


def _count_finished_and_running_tasks(tracker: StatusTracker, job_ids: Iterable[int]) -> tuple[int, int]:
    """Return the numbers of finished and of running tasks of the jobs."""
    jobs = [info for info in map(tracker.getJobInfo, job_ids) if info]
    stages = [info for job in jobs for info in map(tracker.getStageInfo, job.stageIds) if info]
    return sum(stage.numCompletedTasks for stage in stages), sum(stage.numActiveTasks for stage in stages)


class SparkEngine:
    """An `Engine` that runs each phase as one Spark job.

    `monitor`: the DriverMonitor that all engines of this Spark session share; None: make one for `session`.
    """

    engine_choice = SPARK

    def __init__(self, session: SparkSession, monitor: DriverMonitor | None = None) -> None:
        self.session = session
        self.monitor = monitor or DriverMonitor(SparkDriver(session))
        self._group = self._cancelled_group = ""
        self._watch: JobWatch | None = None

    @property
    def parallelism(self) -> int:
        """The number of tasks that can run concurrently: Spark's default parallelism. Raises Unavailable."""
        try:
            return int(self.monitor.ask(lambda: self.session.sparkContext.defaultParallelism))
        except Exception as error:  # DriverTimeout, or a Java that has died
            raise self._error_of_failed_job(error) from error

    @property
    def is_waiting(self) -> bool:
        """True if other jobs of the session use all cores, so that no task of this engine's job runs."""
        return self._watch is not None and self._watch.is_waiting

    def warm_up(self) -> None:
        """Start the Python workers and let them import the modules of the tasks. Raises Fenced if this takes minutes,
        and Unavailable."""
        late = threading.Timer(_STARTS_WITHIN_SECONDS, self.cancel)
        late.daemon = True
        late.start()
        try:
            answers_or_raise(self.run(self.parallelism, _import_phase_modules, lambda _: None))
        finally:
            late.cancel()

    def run(
        self,
        count: int,
        task: Callable[[int], Answer],
        on_progress: Callable[[int], None],
        weights: Sequence[float] | None = None,
    ) -> list[Answer | TaskFailure]:
        if count == 0:
            return []
        self._group = f"compactor-{os.urandom(8).hex()}"
        common, inputs = (task.task, task.inputs) if isinstance(task, TaskInputs) else (task, range(count))
        pickled = _pickled(common)
        partitions = partition_tasks(count, weights, self.parallelism)

        def report(ended: int) -> None:
            on_progress(ended * count // len(partitions))

        try:  # any call fails if Java has ended; the watch kills a Java that is stopped
            with JobWatch(self.monitor, self._group, report) as self._watch:
                context = self.session.sparkContext
                context.setJobGroup(self._group, "compaction", interruptOnCancel=True)
                failures = cluster.max_task_failures(
                    str(context.master), context.getConf().get("spark.task.maxFailures")
                )
                packed = [[(number, _pickled(inputs[number])) for number in numbers] for numbers in partitions]
                rows = (
                    context.parallelize(packed, len(packed))
                    .mapPartitions(_partition_function(pickled, failures))
                    .collect()
                )
        except Exception as error:
            if _is_caused_by_interrupt(error):
                raise KeyboardInterrupt from error
            raise self._error_of_failed_job(error) from error
        outcomes = {number: pickle.loads(outcome) for number, outcome in rows}  # noqa: S301  our own workers'
        return [outcomes[number] for number in range(count)]

    def cancel(self) -> None:
        """Stop the current job without waiting for its end. May be called from another thread."""
        self._cancelled_group = self._group
        self.monitor.cancel(self._cancelled_group)

    def on_same_session(self) -> SparkEngine:
        """Return another engine on the same session."""
        return SparkEngine(self.session, self.monitor)

    def stop_session(self) -> None:
        """Stop the session and all its engines. A Java that does not answer is killed."""
        with contextlib.suppress(Exception):  # the stop of a dead Java fails too, and would hide the first error
            self.monitor.ask(self.session.stop)
        self.monitor.close()

    def stop_session_and_java(self) -> None:
        """Do `stop_session`, and end its Java, even if Java does not answer. A new session can then start."""
        java = getattr(SparkContext._gateway, "proc", None)
        self.stop_session()
        if java is not None:
            with contextlib.suppress(OSError):
                java.stdin.close()  # then Java ends by itself and cleans up
            with contextlib.suppress(subprocess.TimeoutExpired):
                java.wait(_JAVA_ENDS_WITHIN_SECONDS)
            java.kill()
            java.wait()
        _clear_pyspark_state()

    def _error_of_failed_job(self, error: Exception) -> CompactorError:
        if self.monitor.failure:
            return Unavailable(
                self.monitor.failure, "the next run gets a new Spark session; check Spark's master and workers"
            )
        if self._cancelled_group == self._group:
            return Fenced("the compaction was cancelled", "start it again if it is still wanted")
        if any(sign in str(error) for sign in (_NO_PYTHON, _OTHER_PYTHON)):
            version = ".".join(map(str, sys.version_info[:2]))
            return Misconfigured(
                f"Spark's executors have no Python {version} at {self.session.sparkContext.pythonExec}",
                f"set PYSPARK_PYTHON to the path of a Python {version} that every executor has",
            )
        return Unavailable(
            f"Spark gave up on a task ({_first_line(error)})",
            "check the executors' logs (if a worker was killed, give workers more memory), then run it again",
        )


def _clear_pyspark_state() -> None:
    """Remove an ended Java from PySpark's state, so that the next session starts a new one."""
    with contextlib.suppress(Exception):
        if SparkContext._active_spark_context is not None:
            SparkContext._active_spark_context.stop()
    SparkContext._active_spark_context = None
    if SparkContext._gateway is not None:
        with contextlib.suppress(Exception):
            SparkContext._gateway.shutdown()
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None  # type: ignore[attr-defined,unused-ignore]


def _is_caused_by_interrupt(error: BaseException) -> bool:
    """Return whether a KeyboardInterrupt caused an error: PySpark calls Java once more then, which may fail."""
    context = error.__context__
    return context is not None and (isinstance(context, KeyboardInterrupt) or _is_caused_by_interrupt(context))


def _pickled(task: object) -> bytes:
    """Return a pickled task or input. Workers unpickle it inside their function, which so gets the error of a failed
    import."""
    return bytes(CPickleSerializer().dumps(task))  # type: ignore[no-untyped-call]


Inputs = list[tuple[int, bytes]]
"""The tasks of one partition: number and pickled input of each."""


def _partition_function(
    pickled_task: bytes, max_task_failures: int
) -> Callable[[Iterable[Inputs]], Iterable[tuple[int, bytes]]]:
    """Return the function that workers run over a partition. It yields each task's number and pickled outcome."""

    def body(partition: Iterable[Inputs]) -> Iterator[tuple[int, bytes]]:
        context = TaskContext.get()
        last = context is None or context.attemptNumber() + 1 >= max_task_failures
        task: Callable[[Any], Any] | None = None
        for number, pickled_input in chain.from_iterable(partition):
            outcome: object
            try:
                task = task or pickle.loads(pickled_task)  # noqa: S301  our own driver's
                outcome = task(pickle.loads(pickled_input))  # noqa: S301  our own driver's
            except Exception as error:
                if not last and not (isinstance(error, CompactorError) and not isinstance(error, Unavailable)):
                    raise  # Spark's retry may succeed, with the store available or more memory
                outcome = TaskFailure(_error_for_driver(error))
            yield number, pickle.dumps(outcome)

    return body


def _error_for_driver(error: Exception) -> Exception:
    """Convert the error of a task to the one that the driver gets (W3): a CompactorError; RuntimeError for a defect.

    Of an error that Spark transports, only Java's stack trace is visible.
    """
    if isinstance(error, CompactorError):
        return error
    if isinstance(error, ImportError):
        return Misconfigured(
            f"Spark's executors cannot import a package that tasks need ({error}; Python is {sys.executable})",
            "install the packages of requirements/runtime.lock there, and set PYSPARK_PYTHON to that Python's path",
        )
    if isinstance(error, MemoryError):
        return Unavailable(
            "a task ran out of memory", "give Spark's Python workers more memory, then run it again", is_public=True
        )
    defect = RuntimeError(f"a task failed with {type(error).__name__}: {error}")
    defect.add_note(traceback.format_exc())
    return defect


def _import_phase_modules(_: int) -> None:
    import compactor.phase_one
    import compactor.phase_two  # noqa: F401


def _first_line(error: Exception) -> str:
    lines = (str(error).strip() or type(error).__name__).splitlines()
    # The first line of Py4J only says that a call to Java failed; the second has the error.
    cause = lines[1] if lines[0].startswith("An error occurred while calling") and len(lines) > 1 else lines[0]
    return cause.removeprefix(": ")[:300]
