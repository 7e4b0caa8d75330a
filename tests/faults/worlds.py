"""Places where a topic lives, made over and over from templates: a database and a store, as plain values.

A crash test needs the same beginning for each of its points. `Worlds` builds each stage once, and hands out copies:
files are linked and SQLite's file copied, or objects are copied inside S3 and the database made from a template. The
log directory is local in either, and copied, because segments are written on.
A `World` has no connection and travels as JSON, credentials included, so that another process can open it.
"""

from __future__ import annotations

import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from sqlalchemy import make_url

from compactor.engines.engine import InProcessEngine
from storage.clock import Clock
from storage.log.directory import LogDirectory
from storage.metadata.store import MetadataStore
from storage.objects import registry
from storage.objects.interface import StoreLocation
from storage.objects.s3 import S3Requests, S3Store
from tests.faults.stages import STAGES
from tests.servers.fixtures_s3 import S3Server, use_credentials
from tests.servers.postgres import PostgresServer
from tests.workbench import TINY, Workbench

PART_BYTES = 5 << 20
"""The smallest part of a multipart upload that S3 servers take."""
_Memory: TypeAlias = dict[str, dict[tuple[int, int | None], bytes]]
"""The fetched bytes of each object, by start and length."""


@dataclass(frozen=True)
class World:
    """One database, one store, one log directory. `environment`: what a process needs in its own to open them."""

    database: str
    store: StoreLocation
    log: str
    environment: Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> World:
        fields = json.loads(text)
        return cls(fields["database"], StoreLocation(**fields["store"]), fields["log"], fields["environment"])

    @contextmanager
    def opened(self, clock: Clock, *, alone: bool = False) -> Iterator[Workbench]:
        """Everything wired, with connections of this process's own. The environment must have been set.

        `alone`: nothing else changes this world meanwhile, so no range of an object of S3 is fetched twice.
        """
        memory: _Memory | None = {} if alone else None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(registry, "OPENERS", {**registry.OPENERS, "s3": partial(_OfWorlds, memory=memory)})
            metadata = MetadataStore(self.database, clock)
            try:
                log = LogDirectory(Path(self.log))
                yield Workbench(metadata, registry.open_store(self.store), clock, log, InProcessEngine(), TINY)
            finally:
                metadata.close()


class _OfWorlds(S3Store):
    """All stores of a process on one server have one client: each task opens a store, and a client takes long to make.

    Writers take a multipart upload as early as they may. `memory` is that of all stores of one world in a process that
    alone changes it; each object goes from it before it is deleted.
    """

    def __init__(self, location: StoreLocation, memory: _Memory | None = None) -> None:
        super().__init__(location, S3Requests(PART_BYTES + 1, PART_BYTES))
        self._memory = memory

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Fetch, or return what was fetched before: an object never changes."""
        if self._memory is None:
            return super().get(name, start, length)
        ranges = self._memory.setdefault(name, {})
        if (start, length) not in ranges:
            ranges[start, length] = super().get(name, start, length)
        return ranges[start, length]

    def delete(self, name: str) -> None:
        if self._memory is not None:
            self._memory.pop(name, None)
        super().delete(name)

    def _connect(self) -> Any:
        return _client_of(os.getpid(), os.environ["AWS_ACCESS_KEY_ID"], self.location.s3_endpoint)

    def close(self) -> None:
        """The client stays open."""


@cache
def _client_of(process: int, access_key: str, endpoint: str | None) -> Any:
    return S3Store(StoreLocation("s3://unused", endpoint, "us-east-1")).client


class Worlds(ABC):
    """Hands out copies of stages. `scheme`: of its stores' URLs, as in `Failpoint.store`."""

    scheme: str

    def __init__(self) -> None:
        self._templates: dict[str, World] = {}
        self._made = 0

    def copy(self, stage: str, clock: Clock) -> World:
        """A world of its own for the caller, in which `stage` has happened, at the latest at the time of `clock`."""
        if stage not in self._templates:
            template = self._empty()
            with template.opened(clock) as bench:
                bench.metadata.upgrade()
                STAGES[stage](bench)
            self._templates[stage] = template
        return self._copy(self._templates[stage])

    def _number(self) -> int:
        self._made += 1
        return self._made

    @abstractmethod
    def _empty(self) -> World: ...

    @abstractmethod
    def _copy(self, template: World) -> World: ...


class LocalWorlds(Worlds):
    """SQLite and a local store, below one folder."""

    scheme = "file"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def _empty(self) -> World:
        folder = self._folder / str(self._number())
        folder.mkdir()
        objects = StoreLocation((folder / "objects").as_uri())
        return World(f"sqlite:///{folder / 'metadata.db'}", objects, str(folder / "log"))

    def _copy(self, template: World) -> World:
        created = self._empty()
        shutil.copy(_file_of(template), _file_of(created))
        shutil.copytree(
            _file_of(template).parent / "objects", _file_of(created).parent / "objects", copy_function=os.link
        )
        _copy_log(template, created)
        return created


class S3Worlds(Worlds):
    """PostgreSQL and an S3 server; each world has a prefix of its own in one bucket, and a log in the folder."""

    scheme = "s3"

    def __init__(self, server: S3Server, databases: PostgresServer, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._server = server
        self._databases = databases
        self._bucket = server.make_bucket()
        with pytest.MonkeyPatch.context() as patch:
            use_credentials(patch, server)
            self._environment = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}

    def copy(self, stage: str, clock: Clock) -> World:
        with pytest.MonkeyPatch.context() as patch:
            use_credentials(patch, self._server)
            return super().copy(stage, clock)

    def _empty(self) -> World:
        return self._world(self._databases.new_database().render_as_string(hide_password=False))

    def _world(self, database: str) -> World:
        name = f"world-{self._number()}"
        location = StoreLocation(f"s3://{self._bucket}/{name}", self._server.endpoint, "us-east-1")
        return World(database, location, str(self._folder / name), self._environment)

    def _copy(self, template: World) -> World:
        database = make_url(template.database).database
        assert database is not None
        created = self._world(self._databases.new_database(template=database).render_as_string(hide_password=False))
        source, target = _OfWorlds(template.store), _OfWorlds(created.store)
        for info in source.list():
            where = {"Bucket": self._bucket, "Key": source.key(info.name)}
            source.client.copy_object(Bucket=self._bucket, Key=target.key(info.name), CopySource=where)
        _copy_log(template, created)
        return created


def _copy_log(template: World, target: World) -> None:
    if Path(template.log).exists():
        shutil.copytree(template.log, target.log)


def _file_of(world: World) -> Path:
    database = make_url(world.database).database
    assert database is not None
    return Path(database)
