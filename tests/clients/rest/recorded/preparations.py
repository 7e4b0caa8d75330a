"""Preparations of the tables of calls, between two calls: `@advance 5000` is `advance(scene, "5000")`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fastapi import HTTPException, Request
from starlette.responses import Response

from api.broker.refusals import SubscriptionHasConsumers
from api.broker.serving.connected_clients import LiveSubscriptionState, LiveTopicState
from api.broker.stats_tree import ConsumerStats, ProducerStats, SubscriptionStats, TopicStats
from api.broker.threads import WaitsFor
from api.http.problems import RestException
from api.http.router import Routes
from api.http.tokens import create_token
from compactor.maintenance.tasks import Maintenance, MaintenanceTask
from storage import errors
from storage.metadata.records import ServiceRecord
from storage.model import TopicName
from tests.clocks import ManualClock
from tests.serving import RecordedTransport, Served, second_service
from tests.workbench import content

SECRET = bytes(32)
"""The key of all tokens."""
ELSEWHERE = "http://elsewhere.example:8080"


@dataclass
class Scene:
    """A service, what was done to it, and what has to be undone."""

    served: Served
    clock: ManualClock
    patch: pytest.MonkeyPatch
    folder: Path
    role: str = ""
    client: Any = None
    second: tuple[Served, RecordedTransport] | None = None
    stack: list[Callable[[], None]] = field(default_factory=list)
    arrival: threading.Event = field(default_factory=threading.Event)
    ending: threading.Event = field(default_factory=threading.Event)
    waiting: list[Future[Any]] = field(default_factory=list)
    held: list[Any] = field(default_factory=list)
    """The pools whose threads are held."""

    def begin(self) -> None:
        self.client = self.served.client
        self.served.broker.maintenance.__exit__(None, None, None)  # nothing is sealed or trimmed by itself
        app: Any = self.client.app
        app.router.routes.extend(raising(self).routes)

    def close(self) -> None:
        self.ending.set()
        while self.stack:
            self.stack.pop()()

    @property
    def metadata(self) -> Any:
        return self.served.broker.environment.metadata

    def topic(self, name: str) -> Any:
        return self.metadata.topics.get(TopicName.parse(f"persistent://public/default/{name}"))


def advance(scene: Scene, milliseconds: str) -> None:
    """Let time go by."""
    scene.clock.advance(int(milliseconds))


def role(scene: Scene, name: str = "") -> None:
    """Send the token of a role with the calls that follow; without a name, none."""
    scene.role = name


def compact(scene: Scene) -> None:
    """Execute what is requested, as the leader does."""
    scene.served.compact_requested()


def append(scene: Scene, topic: str, count: str, keys: str) -> None:
    """Import messages into a topic: they are sealed."""
    rows = content(*((b"key-%d" % (number % int(keys)), b"value-%d" % number) for number in range(int(count))))
    scene.served.topic(f"persistent://public/default/{topic}").bulk_append().append([rows])


def roll(scene: Scene, topic: str) -> None:
    """Close the active segment of a topic."""
    scene.served.broker.logs.close_topics(scene.topic(topic))
    opened = scene.served.topic(f"persistent://public/default/{topic}")
    opened.log_manager().roll(opened.record)


def seal(scene: Scene, topic: str) -> None:
    """Let the segments of a topic become ledgers."""
    roll(scene, topic)
    opened = scene.served.topic(f"persistent://public/default/{topic}")
    list(opened.log_manager().seal(opened.record))


def claim(scene: Scene, topic: str) -> None:
    """Begin a run in a process that never ends it."""
    scene.metadata.runs.claim(scene.topic(topic).id, "worker:4711:cafe", {}, 60_000)


def fail(scene: Scene, topic: str) -> None:
    """Let a run of a topic fail with an error that names a host."""
    error = errors.ErrorText.from_error(
        errors.Unavailable("cannot read object x of bucket acme at minio.internal", "try again")
    )
    topic_id = scene.topic(topic).id
    scene.metadata.runs.fail(scene.metadata.runs.claim(topic_id, "worker:4711:cafe", {}, 60_000), error)
    scene.metadata.compaction_control.record_failure(topic_id, error, 0)


def lease(scene: Scene, topic: str, owner: str) -> None:
    """Let a process own a topic's log."""
    scene.metadata.leases.acquire(scene.topic(topic).id, owner, 60_000)


def service(scene: Scene, name: str, url: str) -> None:
    """Let there be a row of a live service, with the log directory of this one."""
    log_uid = scene.served.broker.environment.log.uid
    scene.metadata.services.heartbeat(ServiceRecord(name, url, log_uid, 1, 1))


def leave(scene: Scene, name: str) -> None:
    """Remove the row of a service."""
    scene.metadata.services.leave(name)


def quotas(scene: Scene) -> None:
    """Compare backlogs with their quotas."""
    environment = scene.served.broker.environment
    maintenance = Maintenance(environment, dict.fromkeys(MaintenanceTask, 1), 60_000, lambda: True)
    maintenance.run_due()
    scene.served.broker.maintenance.maintenance = maintenance


def damage(scene: Scene, kind: str) -> None:
    """Cut the objects of a kind short."""
    for path in _objects(scene, kind):
        path.write_bytes(path.read_bytes()[:-8])


def lose(scene: Scene, kind: str) -> None:
    """Delete the objects of a kind."""
    for path in _objects(scene, kind):
        path.unlink()


def _objects(scene: Scene, kind: str) -> list[Path]:
    objects = [path for path in (scene.folder / "data" / "objects").rglob("*") if path.is_file() and kind in str(path)]
    assert objects, kind
    return objects


def losefile(scene: Scene) -> None:
    """Delete all files of segments in the log directory."""
    paths = [path for path in (scene.folder / "data" / "log").rglob("*") if path.is_file() and path.name != "uid"]
    assert paths
    for path in paths:
        path.unlink()


def full(scene: Scene, topic: str) -> None:
    """Keep a topic busy, so that its log is not closed for another one's."""
    logs = scene.served.broker.logs
    opened = scene.served.topic(f"persistent://public/default/{topic}")
    scene.stack.append(logs.hold(opened).release)


def polling(scene: Scene, caller: str) -> None:
    """Let a read of a caller wait for messages."""
    turn = scene.served.context.polls.counted_wait(caller)
    turn.__enter__()
    scene.stack.append(lambda: turn.__exit__(None, None, None))


def clients(scene: Scene, subscription: str) -> None:
    """Let a producer and a consumer of each topic be connected; the consumer keeps its subscription."""

    class Live:
        def prepare_deletion(self, force: bool) -> None:
            if not force:
                raise SubscriptionHasConsumers("the subscription has 1 consumer", "end it, or force it")

    consumer = SubscriptionStats(type="Shared", msg_rate_out=2.5, consumers=(ConsumerStats(consumer_name="c"),))
    connected = LiveTopicState(
        TopicStats(msg_rate_in=1.5, publishers=(ProducerStats(producer_id=1, producer_name="p"),)),
        {subscription: LiveSubscriptionState(consumer, 1)},
    )
    live = scene.served.broker.clients
    scene.patch.setattr(live, "of_topic", lambda _: connected)
    scene.patch.setattr(live, "subscription", lambda _, name: Live() if name == subscription else None)


def alone(scene: Scene) -> None:
    """Undo `clients`."""
    live = scene.served.broker.clients
    scene.patch.setattr(live, "of_topic", lambda _: LiveTopicState())
    scene.patch.setattr(live, "subscription", lambda _, __: None)


def hold(scene: Scene, kind: str, waiting: str = "0") -> None:
    """Keep all threads of a pool, and let as many calls wait for one as `waiting` says."""
    pool = scene.served.broker.pools[WaitsFor[kind]]
    threads = threading.Semaphore(0)

    def wait() -> None:
        threads.release()
        scene.ending.wait(60)

    scene.held.append(pool)
    for _ in range(pool.size):
        scene.waiting.append(scene.client.portal.start_task_soon(pool.run_without_deadline, wait))
    for _ in range(pool.size):
        assert threads.acquire(timeout=60)
    for _ in range(int(waiting)):
        scene.client.portal.start_task_soon(pool.run_without_deadline, lambda: None)


def release(scene: Scene) -> None:
    """Let everything that is held go on, and wait until it has ended."""
    scene.ending.set()
    for future in scene.waiting:
        future.result(60)
    scene.waiting.clear()
    for pool in scene.held:  # a thread takes this call after it has ended the last one
        scene.client.portal.start_task_soon(pool.run_required, lambda: None).result(60)
    scene.held.clear()
    scene.ending = threading.Event()


def verifying(scene: Scene) -> None:
    """Let a topic be verified by another request."""
    assert scene.served.broker.verify_lock.acquire(blocking=False)


def begin(scene: Scene, size: str) -> None:
    """Begin a request with a body of that size, which goes on until `@release`."""
    future: Future[Any] = Future()
    headers = {"authorization": f"Bearer {create_token(SECRET, scene.role, {})}"} if scene.role else {}

    def ask() -> None:
        future.set_result(scene.client.post("/raised/held", content=b"x" * int(size), headers=headers))

    threading.Thread(target=ask, daemon=True).start()
    assert scene.arrival.wait(60)
    scene.arrival.clear()
    scene.waiting.append(future)


def value(scene: Scene, name: str, number: str) -> None:
    """Give a constant of a module another value: what takes many requests then takes few."""
    scene.patch.setattr(name, int(number))


def second(scene: Scene) -> None:
    """Send the calls that follow to another service of the same database and store, with its own log directory."""
    if scene.second is None:
        context = second_service(scene.served, scene.folder / "second")
        scene.second = context.__enter__()
        scene.stack.append(lambda: context.__exit__(None, None, None))
        scene.second[0].broker.maintenance.__exit__(None, None, None)
    scene.client = scene.second[0].client


def first(scene: Scene) -> None:
    """Send the calls that follow to the first service."""
    scene.client = scene.served.client


def away(scene: Scene) -> None:
    """Let no connection between the two services succeed."""
    assert scene.second is not None
    scene.second[1].away = True


# Errors that no call can be made to raise cheaply, through the table of statuses


def _raised() -> dict[str, Exception]:
    """Each kind of error by its name, with one text for operators and one for others."""
    kinds = [errors.CompactorError]
    for kind in kinds:
        kinds.extend(kind.__subclasses__())
    raised: dict[str, Exception] = {}
    with_fields = errors.CursorNotFound, errors.CursorExists, errors.CompactionCursorProtected  # calls raise these
    for kind in kinds:
        if kind.__module__ != errors.__name__ or kind in with_fields:
            continue
        raised[kind.__name__] = kind("something happened to /some/path", "do this")
        raised[f"{kind.__name__}-public"] = kind("something happened to a topic", "do this", is_public=True)
    raised["HTTPException"] = HTTPException(418, "a teapot")
    raised["RestException"] = RestException(404, "a reason\nof two lines", {"Retry-After": "7"})
    raised["unexpected"] = ValueError("at /some/path")
    raised["long"] = RestException(400, "x" * 100_000)
    raised["secret"] = RestException(400, "postgresql://user:password@host/db cannot be reached")
    return raised


def raising(scene: Scene) -> Routes:
    """Routes that only these tables have: one that raises each kind of error, and one that does not end."""
    routes = Routes(prefix="/raised")
    raised = _raised()

    @routes.get("/{name}", response_model=None)
    def raise_it(name: str) -> Response:
        raise raised[name]

    @routes.post("/held", response_model=None, waits_for=WaitsFor.SEQUENCES)
    async def hold_on(request: Request) -> Response:
        await request.body()
        pools = scene.served.broker.pools
        await pools[WaitsFor.SEQUENCES].run_without_deadline(lambda: (scene.arrival.set(), scene.ending.wait(60)))
        return Response("ended")

    return routes
