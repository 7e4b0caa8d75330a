"""Fixtures of all tests: hypothesis, temporary folders, a workbench, a local object store, a Spark.

Hypothesis has no deadline: a test must not assert a time, not even through its tools. With CI=true it draws the same
examples each time, a third of all, and topics hash their keys alike, so that a change is judged by what it changed;
without, it draws a half, others each time, and topics differ, too.
"""

from __future__ import annotations

import functools
import gc
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import httpx
import pytest
import typer.main
from hypothesis import settings
from sqlalchemy import URL, Engine as DatabaseEngine
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.util import LRUCache

from compactor.engines.engine import Engine
from storage.clock import Clock
from storage.metadata import engine as engine_module, schema
from storage.metadata.engine import SQLITE, Database
from storage.objects.interface import ObjectStore
from storage.objects.registry import open_store
from storage.topic import Topic
from tests.budgets import IN_CI, examples
from tests.servers.light_java import LIGHT_JAVA
from tests.workbench import Workbench, hashing_alike

pytest_plugins = ["tests.costs", "tests.distribution"]


settings.register_profile("compactor", deadline=None, print_blob=True, derandomize=IN_CI, max_examples=examples(100))
settings.load_profile("compactor")

_SERVERS = frozenset(
    ("postgres_server", "postgres_database", "postgresql", "versitygw", "moto_server", "moto", "spark_engine")
)
"""Fixtures of servers and of Spark, and parameters that stand for them."""
_TMPFS, _TMPFS_BYTES = Path("/dev/shm"), 4 << 30


def pytest_configure(config: pytest.Config) -> None:
    """Temporary folders are in memory where there is room: an fsync takes 1 ms on a disk, 3 µs there.

    What a power cut leaves is proven by tests that take away what was not flushed, not by the disk below.
    Whatever starts Spark inherits the options of `LIGHT_JAVA`. And modules are compiled once, wherever they are
    imported: an environment that forbids to store bytecode costs each worker 11 s of CPU, each child process up to 2 s.
    Imports and collection free nothing, so there is no garbage collection until they are over: it took a sixth of them.
    """
    gc.disable()
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for name, options in LIGHT_JAVA.items():
        os.environ.setdefault(name, options)
    if _TMPFS.is_dir() and shutil.disk_usage(_TMPFS).free >= _TMPFS_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_TMPFS))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The fast tier starts no server and no Java: a test with a fixture or a parameter of one is slow."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        parameters = [value for value in callspec.params.values() if isinstance(value, str)] if callspec else []
        if not _SERVERS.isdisjoint((*getattr(item, "fixturenames", ()), *parameters)):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Collect garbage from here on, but not modules and tests: they live to the end.

    Seldom: with Python's own thresholds it took 3 to 7 % of the CPU of the tests.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    gc.enable()


def pytest_unconfigure() -> None:
    """Let pytest collect all garbage, or C extensions report at the exit that they leak."""
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def _migrated_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A new SQLite file is a copy of one that was migrated: a copy takes 0.1 ms, the migrations 33 ms.

    In this process; services and commands that a test starts migrate their own.
    """
    template = tmp_path_factory.mktemp("migrated") / "metadata.db"
    migrate = schema.upgrade

    def upgrade(database: Database, clock: Clock) -> None:
        file = Path(database.url.database or "")
        if database.dialect == SQLITE and file.parent.is_dir() and not file.exists():
            if not template.exists():
                created = Database(f"sqlite:///{template}")
                migrate(created, clock)
                created.close()
            file.touch(0o600)  # as the migrations make it
            shutil.copyfile(template, file)
        migrate(database, clock)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "upgrade", upgrade)
        yield


@pytest.fixture(scope="session", autouse=True)
def _compiled_once() -> Iterator[None]:
    """Engines share what they have compiled: compiling each statement for each test took a tenth of its time.

    A statement is found by its dialect, so dialects of one class are equal here: a run has one version of PostgreSQL.
    """
    compiled, open_engine = LRUCache(4000), engine_module.open_engine

    def sharing(url: URL) -> DatabaseEngine:
        engine = open_engine(url)
        engine._compiled_cache = compiled
        return engine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_module, "open_engine", sharing)
        for dialect_class in (SQLiteDialect_pysqlite, PGDialect_psycopg):
            patch.setattr(dialect_class, "__eq__", lambda dialect, other: type(dialect) is type(other))
            patch.setattr(dialect_class, "__hash__", lambda dialect: hash(type(dialect)))
        yield


@pytest.fixture(scope="session", autouse=True)
def _commands_once() -> Iterator[None]:
    """A program's commands are built once: that was 0.1 s of CPU for each command line, three quarters of its time.

    In this process; programs that a test starts build their own.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        yield


@pytest.fixture(scope="session", autouse=True)
def _certificates_once() -> Iterator[None]:
    """Clients of HTTP share what they trust by default: each request without a client took 48 ms of CPU to read it.

    In this process, and not where a test names its own certificates.
    """
    create = functools.cache(httpx.create_ssl_context)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("httpx._transports.default.create_ssl_context", create)
        yield


@pytest.fixture(scope="session", autouse=True)
def _the_same_hash_seed() -> Iterator[None]:
    """In this process; services and commands that a test starts draw their own."""
    with hashing_alike() if IN_CI else nullcontext():
        yield


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    """SQLite, a local store and a log below the test's folder, a clock that stands still. Some tests have their own."""
    bench = Workbench.embedded(tmp_path)
    yield bench
    bench.metadata.close()


@pytest.fixture
def topic(bench: Workbench) -> Topic:
    """A topic without messages."""
    return bench.topic()


@pytest.fixture(scope="session")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> ObjectStore:
    """A local store that tests share, so that hypothesis can use it: give each object a name of its own."""
    return open_store(tmp_path_factory.mktemp("objects").as_uri())


@pytest.fixture(scope="session")
def spark_credentials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file where Spark's workers search for S3 credentials: their environment is fixed when Spark starts."""
    file = tmp_path_factory.mktemp("aws") / "credentials"
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
        yield file


@pytest.fixture(scope="session")
def spark_engine(tmp_path_factory: pytest.TempPathFactory, spark_credentials: Path) -> Iterator[Engine]:
    """Spark on two cores of this machine, shared by all tests."""
    from compactor.engines.spark import SparkEngine, SparkSettings, open_session

    log_file = tmp_path_factory.mktemp("spark") / "spark.log"
    session = open_session(SparkSettings(log_file, "local[2]"))
    yield SparkEngine(session)
    session.stop()
