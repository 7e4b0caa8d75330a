"""A Spark master that is killed with its workers and started again: it knows nothing of the application, and Spark's
driver would wait for it forever. The run fails, and the next one gets another session."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.light_java import LIGHT_JAVA, with_properties
from tests.servers.spark_cluster import SparkCluster, until

pytestmark = pytest.mark.soak

SERVICE = """
import sys, threading
from pathlib import Path
from compactor.engines.driver_monitor import DriverDeadlines
from compactor.engines.shared_session import SparkEngineProvider
from storage.errors import CompactorError

folder, master = Path(sys.argv[1]), sys.argv[2]
deadlines = DriverDeadlines(executors_seconds=5)
engines = SparkEngineProvider(lambda: folder, master, lambda line: print("said:", line, flush=True), deadlines)

def task(number):
    (folder / "running").touch()
    threading.Event().wait()

def double(number):
    return number * 2

try:
    engines.open().run(1, task, lambda _: None)
except CompactorError as error:
    print("run:", error, flush=True)
for _ in range(200):
    try:
        engine = engines.open()
        break
    except CompactorError as error:
        print("no engine:", error, flush=True)
        threading.Event().wait(1)
print("answers:", engine.run(3, double, lambda _: None), flush=True)
engines.close()
"""


def test_a_master_that_is_started_again_is_worked_with_again(spark_cluster: SparkCluster, tmp_path: Path) -> None:
    spark_cluster.fill_up()
    command = [sys.executable, "-c", SERVICE, str(tmp_path), spark_cluster.url]
    properties = with_properties(LIGHT_JAVA["SPARK_SUBMIT_OPTS"], spark_cluster.configuration)
    environment = {**os.environ, "SPARK_SUBMIT_OPTS": properties}
    with (
        (tmp_path / "out").open("w") as out,
        subprocess.Popen(command, stdout=out, stderr=out, env=environment) as service,
    ):
        try:
            until(lambda: (tmp_path / "running").exists() or None, "the task")
            spark_cluster.kill_all()
            until(lambda: "no engine:" in (tmp_path / "out").read_text() or None, "the end of the run")
            spark_cluster.start_again()
            assert service.wait(300) == 0, (tmp_path / "out").read_text()
        finally:
            service.kill()
    lines = (tmp_path / "out").read_text().splitlines()
    (failed,) = [line for line in lines if line.startswith("run:")]
    assert failed.startswith("run: Spark has had no executors for 5 s")
    assert lines[-1] == "answers: [0, 2, 4]"
