"""A service in this process, and a client of its application: no port, no thread of a server.

Compactions are executed when a test says so (`Served.compact_requested`), in this process, without Spark: what is
asked of a service while a compaction runs can be seen without a race.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any, cast

import httpx

from api.app import make_app
from api.broker.broker import Broker
from api.broker.serving.logs import TopicLogs
from api.cli.local.opening import open_topic
from api.http.context import HttpContext
from api.http.owner_proxy import OwnerProxy
from api.service import running_service
from api.settings.settings import Settings
from compactor.engines.engine import Engine, InProcessEngine
from compactor.run.run_policies import run_policies_from_stored
from compactor.two_phase import TwoPhaseCompactor
from storage.errors import CompactorError
from storage.log.group_commit import AppendOutcome
from storage.model import TopicName
from storage.objects.interface import ObjectStore
from storage.topic import Topic
from tests.asgi import TestClient
from tests.servers.sealer_forks import forking_sealers
from tests.servers.service_forks import service_forks


def append_to(logs: TopicLogs, topic: Topic, entries: Sequence[bytes]) -> list[AppendOutcome]:
    """Append entries, and wait for their answers. The log is released before this returns."""
    answered: SimpleQueue[list[AppendOutcome]] = SimpleQueue()
    held = logs.hold(topic)
    try:
        held.new_append(entries, [""] * len(entries), answered.put).submit_remaining()
        return answered.get(timeout=30)
    finally:
        held.release()


class WatchedStore:
    """A store that no thread asks that was started for another kind of waiting: its route would say what is not so."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        thread = threading.current_thread().name
        assert thread not in ("database-pool", "log-pool", "parsing-pool"), f"{thread} asks the store for {name}"
        return getattr(self._store, name)


@dataclass
class Served:
    """The service, and who asks it."""

    context: HttpContext
    client: TestClient
    engine: Engine

    @property
    def broker(self) -> Broker:
        """The broker of the service."""
        return self.context.broker

    def ask(self, verb: str, path: str, body: str | None = None) -> httpx.Response:
        """One request; a body goes as JSON, as it is."""
        headers = {"content-type": "application/json"} if body is not None else {}
        return self.client.request(verb, path, content=body, headers=headers)

    def topic(self, name: str) -> Topic:
        """The topic of that name, which exists."""
        return open_topic(self.broker.environment, TopicName.parse(name))

    def compact_requested(self) -> None:
        """Execute the requests as the service that leads does: each is one run, and its error is the run's."""
        environment = self.broker.environment
        metadata = environment.metadata
        compactor = TwoPhaseCompactor(environment, self.engine)
        for topic, _ in metadata.compaction_control.requests():
            try:
                compactor.compact(topic.name, lambda record: run_policies_from_stored(metadata, record))
            except CompactorError:
                continue  # the run's row tells it
            finally:
                metadata.compaction_control.withdraw(topic.id)


@contextmanager
def serving(folder: Path, engine: Engine | None = None, **others: Any) -> Iterator[Served]:
    """A service with its data below `folder`, whose control loop has ended: nothing is compacted by itself."""
    settings = Settings(data=str(folder / "data"), spark_master="in-process", compaction_automatic=False, **others)
    with forking_sealers(lambda: service_forks().run), running_service(settings) as context:
        broker = context.broker
        broker.control.drain(0)
        watched = cast(ObjectStore, WatchedStore(broker.environment.store))
        broker.environment = broker.long_work_environment = replace(broker.environment, store=watched)
        with TestClient(make_app(context), raise_server_exceptions=False) as client:
            yield Served(context, client, engine or InProcessEngine())


class RecordedTransport(httpx.AsyncBaseTransport):
    """Takes requests to an application in this process, and keeps them; `away`: it cannot be reached."""

    def __init__(self, app: Any) -> None:
        self._inner = httpx.ASGITransport(app, raise_app_exceptions=False)
        self.requests: list[httpx.Request] = []
        self.away = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if self.away:
            raise httpx.ConnectError("connection refused")
        return await self._inner.handle_async_request(request)


@contextmanager
def second_service(first: Served, folder: Path) -> Iterator[tuple[Served, RecordedTransport]]:
    """Another service on the database and store of `first`, with its own log directory; it forwards to `first`."""
    settings = Settings(
        data=str(folder / "data"),
        database=first.broker.settings.database_url,
        store=first.broker.settings.store_url,
        spark_master="in-process",
        compaction_automatic=False,
        limits_requests_per_second=0.0,
    )
    with running_service(settings) as context:
        context.broker.control.drain(0)
        transport = RecordedTransport(first.client.app)
        context.proxy = OwnerProxy(5_000, transport)
        context.broker.environment.log.uid  # noqa: B018  it has one, as a directory that was written to
        with TestClient(make_app(context), raise_server_exceptions=False) as client:
            yield Served(context, client, first.engine), transport
