"""The job on a real cluster: Spark's standalone master and two workers, an S3 server, PostgreSQL.

The driver is a process of its own (`driver.py`); it has the executors' code only from the zip that it is sent, because
their Python does not check what is installed in editable form. semantics.md W3, A1; properties 1, 5, 15.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from compactor import reference
from compactor.engines.engine import InProcessEngine
from storage.clock import SystemClock
from storage.ledger import names
from storage.ledger.manifest import read_manifest
from storage.log.directory import LogDirectory
from storage.metadata.store import MetadataStore
from storage.model import TopicName
from storage.objects.interface import StoreLocation
from storage.objects.registry import open_store
from storage.topic import Topic
from tests.cluster.conftest import credentials
from tests.cluster.driver import SIZING
from tests.processes import process
from tests.servers.fixtures_s3 import use_credentials
from tests.servers.light_java import LIGHT_JAVA, with_properties
from tests.servers.postgres import PostgresServer
from tests.servers.spark_cluster import SparkCluster, until
from tests.servers.versitygw import Versitygw
from tests.workbench import Workbench, compacted_only, content

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Deployment:
    """The resources of a user of a cluster: a database, a bucket, a folder, and settings in the environment.

    `spark_settings` reach a driver as properties of its Java, not in a file of SPARK_CONF_DIR: a Java whose class path
    has that folder ignores the archive of `light_java`, and takes twice the CPU to start.
    """

    bench: Workbench
    folder: Path
    settings: Mapping[str, str]
    spark_settings: dict[str, str]

    @property
    def environment(self) -> dict[str, str]:
        properties = with_properties(LIGHT_JAVA["SPARK_SUBMIT_OPTS"], self.spark_settings)
        return {**self.settings, "SPARK_SUBMIT_OPTS": properties}

    @property
    def environment_with_file(self) -> dict[str, str]:
        """The same settings in a file, as a user gives them."""
        folder = self.folder / "conf"
        folder.mkdir()
        lines = [f"{name} {value}\n" for name, value in self.spark_settings.items()]
        (folder / "spark-defaults.conf").write_text("".join(lines))
        return {**self.settings, "SPARK_CONF_DIR": str(folder)}

    def fill(self, name: str, seed: int = 7, messages: int = 2000) -> Topic:
        """A topic whose first half is compacted: keys come back, one in ten is deleted, some messages have none."""
        draw = random.Random(seed)
        topic = self.bench.topic(name)
        self.append(topic, draw, messages // 2)
        self.bench.compact(topic)
        self.append(topic, draw, messages // 2)
        return topic

    def append(self, topic: Topic, draw: random.Random, messages: int) -> None:
        rows: list[tuple[bytes | None, bytes | None]] = []
        for number in range(messages):
            key = f"key-{draw.randrange(messages)}".encode() if draw.random() < 0.95 else None
            rows.append((key, None if draw.random() < 0.1 else draw.randbytes(60) + b"%d" % number))
        self.bench.append(topic, [content(*rows)], ledger_bytes=40_000)

    @contextmanager
    def driver(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """The driver at work; ended with the context."""
        with subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.driver", str(self.folder), *arguments],
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def drive(self, *arguments: str) -> dict[str, Any]:
        """Run the driver, and return its report."""
        with self.driver(*arguments) as process:
            return report_of(process)

    def notes(self, pattern: str) -> list[dict[str, Any]]:
        return [json.loads(file.read_text()) for file in sorted(self.folder.glob(pattern))]

    def on_one_core(self) -> None:
        """One executor, for a test that needs no second one."""
        self.spark_settings.update({"spark.cores.max": "1"})

    def on_both_workers(self) -> None:
        """Two executors before the first job, so that each gets a task of it."""
        ratio, wait = "spark.scheduler.minRegisteredResourcesRatio", "spark.scheduler.maxRegisteredResourcesWaitingTime"
        self.spark_settings.update({"spark.cores.max": "2", ratio: "1.0", wait: "300s"})

    def stalled(self, driver: subprocess.Popen[str], phase: int) -> int:
        """The process of the attempt of a phase that goes no further."""

        def look() -> int | None:
            if driver.poll() is not None:
                report_of(driver)
                raise AssertionError("the driver ended without an attempt that stalls")
            return next((int(note["pid"]) for note in self.notes(f"stalled-{phase}")), None)

        return until(look, "the attempt that stalls")


def report_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    report: dict[str, Any] = json.loads(out.splitlines()[-1])
    return report


def equals_the_reference(topic: Topic) -> bool:
    return compacted_only(topic) == reference.compact([], topic.messages())


def parent(pid: int) -> int:
    status = process(pid)
    assert status is not None
    return status.parent


@pytest.fixture(scope="session")
def executor_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This Python with its packages, but without the `.pth` files that make an editable install importable."""
    script = tmp_path_factory.mktemp("python") / "python"
    site = sysconfig.get_path("purelib")
    script.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{site}" exec "{sys.executable}" -S "$@"\n')
    script.chmod(0o755)
    return script


@pytest.fixture
def deployment(
    tmp_path: Path,
    spark_cluster: SparkCluster,
    versitygw: Versitygw,
    postgres_server: PostgresServer,
    executor_python: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Deployment]:
    spark_cluster.fill_up()
    use_credentials(monkeypatch, versitygw)
    url = f"s3://{versitygw.make_bucket()}/cluster"
    database = postgres_server.new_database()
    clock = SystemClock()
    metadata = MetadataStore(database, clock)
    metadata.upgrade()
    bench = Workbench(
        metadata,
        open_store(StoreLocation(url, versitygw.endpoint)),
        clock,
        LogDirectory(tmp_path / "log"),
        InProcessEngine(),
        SIZING,
    )
    settings = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path),
        "PYSPARK_PYTHON": str(executor_python),
        **LIGHT_JAVA,
        "COMPACTOR_SPARK_MASTER": spark_cluster.url,
        "COMPACTOR_STORE": url,
        "COMPACTOR_S3_ENDPOINT": versitygw.endpoint,
        "COMPACTOR_DATABASE": database.render_as_string(hide_password=False),
        "COMPACTOR_DATA": str(tmp_path / "data"),
        **credentials(versitygw.access_key, versitygw.secret_key),
    }
    spark_settings = {**spark_cluster.configuration, "spark.executor.memory": "512m", "spark.executor.instances": "2"}
    yield Deployment(bench, tmp_path, settings, spark_settings)
    metadata.close()
    bench.store.close()


def test_one_session_serves_several_runs_and_payload_goes_past_the_driver(
    deployment: Deployment, spark_cluster: SparkCluster
) -> None:
    """In the second run, which is incremental, SIGKILL ends the executor of a task and the worker that started it, in
    each phase; the other worker does the rest."""
    topics = [deployment.bench.topic("new"), deployment.fill("half", seed=1)]
    deployment.append(topics[0], random.Random(2), 2000)
    deployment.on_both_workers()
    killed_in = (3, 4)
    with deployment.driver("--stall-from", "3", "new", "half") as process:
        driver = process.pid
        for phase in killed_in:
            executor = parent(parent(deployment.stalled(process, phase)))
            spark_worker = parent(executor)
            os.kill(executor, 9)
            spark_cluster.kill_worker(spark_worker)
            spark_cluster.fill_up()
        report = report_of(process)
    assert all(map(equals_the_reference, topics))
    assert report["ledgers"] == [topic.snapshot().compacted.ledger_id for topic in topics]  # type: ignore[union-attr]

    ran = deployment.notes("ran-*")
    assert {note["phase"] for note in ran} == {1, 2, 3, 4}
    assert len({note["executor"] for note in ran if note["phase"] < killed_in[0]}) == 2, "both workers take part"
    assert driver not in {note["pid"] for note in ran}
    assert all("compactor-package-" in note["package"] for note in ran), "the package came with the session"
    assert {names.parse(name).kind for name, _ in report["reads"]} == {names.ObjectKind.MANIFEST}
    for phase in killed_in:
        again = {note["executor"] for note in deployment.notes(f"ran-{phase}-0-*")}
        assert len(again) == 2, "the task was done a second time, elsewhere"


@pytest.mark.soak
def test_speculation_gives_the_same_result(deployment: Deployment) -> None:
    """An attempt that has written everything and then hangs loses, in each phase; its objects are in no manifest."""
    deployment.spark_settings.update(
        {
            "spark.speculation": "true",
            "spark.speculation.quantile": "0.5",
            "spark.speculation.minTaskRuntime": "1ms",
            "spark.speculation.multiplier": "1.0",
        }
    )
    topic = deployment.fill("t")
    with deployment.driver("--stall-from", "1", "t") as process:
        losers = {phase: deployment.stalled(process, phase) for phase in (1, 2)}
        report_of(process)
    assert equals_the_reference(topic)
    for phase, loser in losers.items():
        attempts = {note["pid"] for note in deployment.notes(f"ran-{phase}-0-*")}
        assert loser in attempts
        assert len(attempts) == 2, "the attempt that hung was overtaken"

    compacted = topic.snapshot().compacted
    assert compacted is not None
    manifest = read_manifest(deployment.bench.store, compacted.manifest)
    run = names.run_prefix(manifest.topic_uid, compacted.attempt_id)
    created = {stored.name for stored in deployment.bench.store.list(run)}
    served = {part.rows.stored.name for part in manifest.parts} | {
        item.name for level in manifest.index for item in level
    }
    assert created & served
    assert created - served, "the losers' objects are there, and in no manifest"


def test_executors_use_credentials_of_their_own(deployment: Deployment) -> None:
    """None travel: where theirs are wrong, the driver's good ones do not help."""
    deployment.fill("t")
    deployment.on_one_core()
    deployment.spark_settings.update({"spark.executorEnv.AWS_SECRET_ACCESS_KEY": "not-the-secret"})
    with deployment.driver("t") as process:
        _, errors = process.communicate()
    assert process.returncode != 0
    assert "SignatureDoesNotMatch" in errors or "credentials" in errors, errors


@pytest.mark.soak
def test_an_executor_without_a_package_says_which(deployment: Deployment) -> None:
    lacking = deployment.folder / "lacking"
    lacking.mkdir()
    (lacking / "pyroaring.py").write_text("raise ModuleNotFoundError(\"No module named 'pyroaring'\")\n")
    deployment.fill("t")
    deployment.on_one_core()
    deployment.spark_settings.update({"spark.executorEnv.PYTHONPATH": str(lacking)})
    result = compact_topic(deployment.environment, "t")
    assert result.returncode == 5
    assert "executors cannot import a package that tasks need (No module named 'pyroaring'" in result.stderr
    assert "install the packages of requirements/runtime.lock" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.soak
def test_an_executor_without_that_python_says_so(deployment: Deployment) -> None:
    deployment.fill("t")
    deployment.on_one_core()
    result = compact_topic({**deployment.environment, "PYSPARK_PYTHON": "/nowhere/python"}, "t")
    assert result.returncode == 5
    assert "executors have no Python" in result.stderr
    assert "/nowhere/python" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_the_command_line_on_a_cluster(deployment: Deployment) -> None:
    topic = deployment.fill("t")
    deployment.on_one_core()
    result = compact_topic(deployment.environment_with_file, "t")
    assert result.returncode == 0, result.stderr
    assert equals_the_reference(topic)


def compact_topic(environment: Mapping[str, str], name: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "api.cli.main", "compact-topic", "--topic", str(TopicName.parse(name))],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
