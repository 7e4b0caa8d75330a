"""Patches that make a life repeat from its seed, and quickly: threads, nonces and time are the simulation's.

Engines, with the statements that they have compiled, outlive one life and serve the next: compiling them again for
each simulated process of each life cost a fifth of its time. So does a database without topics, which is copied.
"""

from __future__ import annotations

import atexit
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

import pyarrow as pa
from sqlalchemy import URL, Engine, event

from storage.ledger.rows_file import RowsReader
from storage.log.segment_writer import SegmentWriter
from storage.metadata import engine as engine_module
from storage.metadata.store import MetadataStore
from storage.model import RowsObject
from storage.objects import registry
from storage.objects.interface import ObjectStore
from tests.clocks import ManualClock
from tests.failpoint_listeners import observed
from tests.faults.engine.report import Report
from tests.faults.faulty_store import PREFIX
from tests.faults.simulation.process import SCHEME
from tests.faults.simulation.world import World

OWN_FOLDER = Path("/dev/shm")
POLL_SECONDS = 2.5
"""Who waits for another looks so seldom: a look costs more here than the time that goes by."""


@contextmanager
def simulated(seed: int, report: Report, database_url: str | None = None) -> Iterator[World]:
    """A new world, with everything in the code that has a will of its own (threads, nonces) held still."""
    nonces = random.Random(f"nonces of {seed}")
    with ExitStack() as stack:
        folder = _folder() / "life"
        folder.mkdir()
        stack.callback(shutil.rmtree, folder)
        if database_url is None:
            shutil.copy(_template(), folder / "metadata.db")
            database_url = f"sqlite:///{folder}/metadata.db"
        else:
            _upgrade(database_url)
        for target, stands_still in {
            "uuid.uuid4": lambda: mock.Mock(hex=f"{nonces.getrandbits(128):032x}"),
            "secrets.token_hex": lambda count: f"{nonces.getrandbits(8 * count):0{2 * count}x}",
            "secrets.randbits": nonces.getrandbits,
            "storage.log.bulk_append.ThreadPoolExecutor": _AtOnce,
            "storage.metadata.engine.open_engine": stack.enter_context(_engines()),
        }.items():
            stack.enter_context(mock.patch(target, stands_still))
        world = World(seed, database_url, folder, report)
        stack.callback(world.close)
        stack.enter_context(mock.patch.object(SegmentWriter, "__init__", world.noting_writers()))
        stack.enter_context(mock.patch("storage.log.log_manager.Xxh3KeyHasher", return_value=world.hasher))
        for module in (
            "storage.log.lease",
            "storage.log.bulk_append",
            "storage.log.topic_log",
            "storage.log.log_manager",
        ):
            stack.enter_context(mock.patch(f"{module}.Heartbeat", world.heart))
        for module in ("storage.log.lease", "storage.log.log_manager"):
            stack.enter_context(mock.patch(f"{module}._POLL_SECONDS", POLL_SECONDS))
        stack.enter_context(mock.patch("storage.reading.snapshot_reader.RowsReader", _DecodedOnce(world)))
        opener = {PREFIX + SCHEME: lambda location: world.processes[urlsplit(location.url).netloc].store}
        stack.enter_context(mock.patch.object(registry, "OPENERS", {**registry.OPENERS, **opener}))
        stack.enter_context(observed(world))
        yield world


@cache
def _folder() -> Path:
    """This process's; in it one life follows the other under the same path."""
    folder = tempfile.mkdtemp(dir=OWN_FOLDER if OWN_FOLDER.is_dir() else None, prefix="simulation-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@cache
def _template() -> Path:
    """A database without a topic; made once a process, and copied."""
    path = _folder() / "template.db"
    _upgrade(f"sqlite:///{path}")
    return path


def _upgrade(database_url: str) -> None:
    metadata = MetadataStore(database_url, ManualClock())
    metadata.upgrade()
    metadata.close()


_opened: dict[tuple[str, int], Engine] = {}
"""By database URL, the engines of a life's processes in the order in which they ask for one."""


@contextmanager
def _engines() -> Iterator[Callable[[URL], Engine]]:
    """Replacement of `storage.metadata.engine.open_engine` with an engine per process: faults go to one process."""
    created = engine_module.open_engine
    used: list[Engine] = []

    def open_engine(url: URL) -> Engine:
        key = (url.render_as_string(hide_password=False), len(used))
        if key not in _opened:
            _opened[key] = created(url)
            if url.drivername == "sqlite":
                event.listen(_opened[key], "connect", _do_not_wait)
        used.append(_opened[key])
        return _opened[key]

    try:
        yield open_engine
    finally:
        for engine in used:
            engine.dispose()


def _do_not_wait(connection: Any, _record: object) -> None:
    """Nothing here has to last: SQLite need not wait for the disk."""
    connection.execute("PRAGMA synchronous = OFF").close()


class _DecodedOnce:
    """Stands for RowsReader where a topic is read: of an object that the simulation itself has read it keeps the rows.

    What a simulated process reads is always read, checked and decoded: it may meet a fault.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._kept: dict[str, tuple[tuple[bytes, int], RowsReader]] = {}

    def __call__(self, store: ObjectStore, rows_object: RowsObject) -> RowsReader:
        name = rows_object.stored.name
        stored = self._world.objects.stored.get(name)
        if store is not self._world.store or stored is None:
            return RowsReader(store, rows_object)
        if name not in self._kept or self._kept[name][0] is not stored:
            self._kept[name] = (stored, _KeptRows(store, rows_object))
        return self._kept[name][1]


class _KeptRows(RowsReader):
    """Decodes each row group once."""

    def __init__(self, store: ObjectStore, rows_object: RowsObject) -> None:
        super().__init__(store, rows_object)
        self._tables: dict[tuple[int, tuple[str, ...]], pa.Table] = {}

    def read(self, number: int, columns: list[str] | None = None) -> pa.Table:
        key = (number, tuple(columns or ()))
        if key not in self._tables:
            self._tables[key] = super().read(number, columns)
        return self._tables[key]


class _AtOnce:
    """An executor that does what it is given at once, in this thread."""

    def __init__(self, *_: object, **__: object) -> None:
        return

    def __enter__(self) -> _AtOnce:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def submit(self, work: Callable[..., Any], *arguments: object) -> _Done:
        try:
            return _Done(work(*arguments), None)
        except Exception as error:
            return _Done(None, error)


class _Done:
    def __init__(self, answer: Any, error: Exception | None) -> None:
        self._answer = answer
        self._error = error

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._answer

    def cancel(self) -> None:
        return
