"""Several services on one database compact by themselves, under writes, while they are killed and started again.

At the end every topic's compacted view is what a plain fold of its messages gives, every trigger that was accepted was
executed, none made two runs, no two runs of a topic overlap in time, and nothing is left requested or running.

COMPACTOR_SOAK_SECONDS: how long it writes and kills, for each number of services (6 in CI).
COMPACTOR_SOAK_MASTER: a Spark master; without it tasks run in the services themselves.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from storage.clock import SystemClock
from storage.environment import Environment
from storage.errors import CompactorError
from storage.log.directory import LogDirectory
from storage.metadata.policy_store import namespace_scope
from storage.metadata.records import RunRecord, RunState
from storage.metadata.store import MetadataStore
from storage.model import TopicName
from storage.objects.registry import open_store
from storage.topic import Topic
from tests.budgets import IN_SOAK
from tests.entries import single
from tests.servers.postgres import PostgresServer
from tests.servers.service_forks import service_forks
from tests.workbench import compacted_only, ensure_topic, view

SECONDS = float(os.environ.get("COMPACTOR_SOAK_SECONDS", "6"))
MASTER = os.environ.get("COMPACTOR_SOAK_MASTER", "in-process")
BY_THRESHOLD, BY_HAND = (50, 10) if IN_SOAK else (20, 10)
"""Topics that are compacted by a threshold, and by triggers alone: there a lost trigger shows."""
SETTLES_WITHIN_SECONDS = 120
pytestmark = [pytest.mark.slow, pytest.mark.budgeted, pytest.mark.timeout(SECONDS + 3 * SETTLES_WITHIN_SECONDS)]
SETTINGS = {
    "COMPACTOR_SPARK_MASTER": MASTER,
    "COMPACTOR_COMPACTION_MONITOR_INTERVAL": "1s",
    "COMPACTOR_COMPACTION_RUN_DEAD_AFTER": "6s",
    "COMPACTOR_COMPACTION_RETRY_FIRST": "500ms",
    "COMPACTOR_COMPACTION_BATCH_TOPICS": "10",
    "COMPACTOR_LEADER_LEASE_TERM": "3s",
    "COMPACTOR_SHUTDOWN_GRACE": "1s",
    "COMPACTOR_LIMITS_REQUESTS_PER_SECOND": "0",
}


class OneService:
    """A place where a service runs, is killed, and runs again."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        folder.mkdir()
        self.log = folder / "serve.log"
        clean = {name: value for name, value in os.environ.items() if not name.startswith("COMPACTOR_")}
        self._environment = clean | environment
        self.url = ""
        self.starts = 0
        self.start()

    def start(self) -> None:
        self.starts += 1
        self.url = ""
        self._from = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("a") as written:
            self.process = service_forks().start(["serve", "--port", "0"], self._environment, written)

    def find_url(self) -> str:
        """Return the URL of the service; empty: it has none yet."""
        if not self.url:
            with self.log.open() as log:
                log.seek(self._from)
                answer = [json.loads(line) for line in log if line.endswith("\n") and '"event": "serving"' in line]
            self.url = answer[-1]["url"] if answer else ""
        return self.url

    def end(self, how: signal.Signals) -> int:
        self.process.send_signal(how)
        try:
            return self.process.wait(60)
        finally:
            self.process.kill()


@dataclass
class World:
    """The topics, what was written to them, and what was asked for."""

    metadata: MetadataStore
    topics: list[Topic]
    model: dict[TopicName, dict[bytes, bytes | None]] = field(default_factory=dict)
    last: dict[TopicName, int] = field(default_factory=dict)
    accepted: list[tuple[Topic, int]] = field(default_factory=list)
    tries: Counter[TopicName] = field(default_factory=Counter)
    """Triggers that were taken, or may have been: all but those that were refused."""
    refused: int = 0
    kills: int = 0
    failures: list[BaseException] = field(default_factory=list)

    def write(self, topics: list[Topic], ended: threading.Event, chance: random.Random) -> None:
        """Bursts of messages, topic by topic, until the end."""
        while not ended.is_set():
            topic = chance.choice(topics)
            try:
                with topic.append_log() as log:
                    for _ in range(chance.randint(1, 40)):
                        key = b"key %d" % chance.randrange(12)
                        payload = None if chance.random() < 0.2 else chance.randbytes(chance.randrange(1, 200))
                        answer = log.append(single(key, payload, publish_time=time.time_ns() // 1_000_000))
                        self.model[topic.name][key] = payload
                        self.last[topic.name] = answer.first.offset
            except CompactorError as error:
                self.failures.append(error)
                return
            ended.wait(chance.random() * 0.1)

    def ask(self, services: list[OneService], ended: threading.Event, chance: random.Random) -> None:
        """Trigger one topic after the other, at any service that answers."""
        with httpx.Client(timeout=10) as client:
            while not ended.wait(0.1):
                topic = chance.choice(self.topics if chance.random() < 0.5 else self.topics[BY_THRESHOLD:])
                before = self.last.get(topic.name, -1)
                status = self.trigger(client, chance.choice(services), topic)
                if status == 204:
                    self.accepted.append((topic, before))
                elif status == 409:
                    self.refused += 1

    def trigger(self, client: httpx.Client, service: OneService, topic: Topic) -> int:
        """Request a run as `trigger` does, and count it."""
        status = trigger(client, service, topic)
        self.tries[topic.name] += status != 409
        return status


def trigger(client: httpx.Client, service: OneService, topic: Topic) -> int:
    """Return the answer's status; 0: there was none, so the effect is unknown."""
    name = topic.name
    if not service.find_url():
        return 0
    try:
        where = f"{service.url}/admin/v2/persistent/{name.tenant}/{name.namespace}/{name.topic}/compaction"
        return client.put(where).status_code
    except httpx.HTTPError:
        return 0


def triggered(world: World, client: httpx.Client, service: OneService, topic: Topic) -> bool:
    return world.trigger(client, service, topic) == 204


def kill_and_start(services: list[OneService], ended: threading.Event, chance: random.Random, world: World) -> None:
    """One after the other, at any moment; sometimes the polite way, sometimes all of them."""
    while not ended.wait(chance.uniform(2, 6)):
        chosen = services if chance.random() < 0.15 else [chance.choice(services)]
        how = signal.SIGTERM if chance.random() < 0.25 else signal.SIGKILL
        for service in chosen:
            service.end(how)
            world.kills += 1
        ended.wait(chance.uniform(0, 1.5))
        for service in chosen:
            service.start()


@pytest.fixture(params=[pytest.param(2, marks=pytest.mark.soak), 3])
def world_and_services(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[World, list[OneService]]]:
    """Two services on SQLite, three on PostgreSQL; one store and one log directory."""
    environment = {"COMPACTOR_DATA": str(tmp_path / "data"), **SETTINGS}
    url = f"sqlite:///{tmp_path / 'data' / 'metadata.db'}"
    if request.param == 3:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        url = server.new_database().render_as_string(hide_password=False)
        environment["COMPACTOR_DATABASE"] = url
    clock = SystemClock()
    metadata = MetadataStore(url, clock)
    metadata.upgrade()
    (tmp_path / "data" / "objects").mkdir(parents=True, exist_ok=True)
    store = open_store((tmp_path / "data" / "objects").as_uri())
    log = LogDirectory(tmp_path / "data" / "log")
    names = [TopicName("soak", "limited", f"t{number}") for number in range(BY_THRESHOLD)]
    names += [TopicName("soak", "asked", f"t{number}") for number in range(BY_HAND)]
    wired = Environment(metadata, store, clock, log)
    topics = [ensure_topic(wired, name) for name in names]
    metadata.policies.change([namespace_scope("soak/limited")], {"compaction.threshold.messages": 60})
    metadata.policies.change([namespace_scope("soak/limited")], {"compaction.threshold.bytes": 6000})
    world = World(metadata, topics, {topic.name: {} for topic in topics})
    services = [OneService(tmp_path / f"service {number}", environment) for number in range(request.param)]
    yield world, services
    for service in services:
        service.process.kill()
        service.process.wait()
    metadata.close()
    store.close()


def test_every_topic_is_compacted_rightly_and_once_at_a_time(
    world_and_services: tuple[World, list[OneService]],
) -> None:
    world, services = world_and_services
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    live_through(world, services, seed)
    for service in services:
        until(service.find_url, "a service answers")

    until(lambda: is_quiet(world), "nothing is requested, nothing runs, nothing fails")
    lost = [(str(topic.name), offset) for topic, offset in world.accepted if horizon(topic) < offset]
    assert lost == [], "triggers that were accepted and not executed"

    with httpx.Client(timeout=10) as client:
        for topic in world.topics:
            until(partial(triggered, world, client, services[0], topic), f"{topic.name} can be triggered")
    until(lambda: is_quiet(world), "all is compacted")
    for topic in world.topics:
        model = {key: payload for key, payload in world.model[topic.name].items() if payload is not None}
        assert view(list(topic.messages(read_compacted=True))) == model, topic.name
        assert {message.key: message.payload for message in compacted_only(topic)} == model, topic.name

    named = world.metadata.runs.newest(1_000_000)
    by_hand = Counter(name for name, run in named if run.cause == "manual")
    assert by_hand - world.tries == Counter(), "runs without a trigger, or two for one trigger"
    history = [run for _, run in named]
    assert overlapping(history) == []
    states = {state.value: sum(run.state is state for run in history) for state in RunState}
    assert states["RUNNING"] == 0
    assert states["SUCCESS"] >= len(world.topics)
    taken_over = sum("stopped answering" in run.error.summary for run in history)
    print(
        f"{len(services)} services, {SECONDS:.0f} s: {world.kills} kills, {sum(map(len, world.model.values()))} keys, "
        f"{sum(world.last.values()) + len(world.last)} messages, {len(world.accepted)} triggers accepted, "
        f"{world.refused} refused, runs {states}, {taken_over} taken over; {services[0].starts} starts of the first"
    )
    until(lambda: len(world.metadata.services.live()) == len(services), "those that were killed are purged")
    assert [service.end(signal.SIGTERM) for service in services] == [0] * len(services)
    assert world.metadata.services.live() == []
    assert world.metadata.services.leader() is None


def live_through(world: World, services: list[OneService], seed: int) -> None:
    """Write, ask and kill, as long as it is to last."""
    ended = threading.Event()
    half = len(world.topics) // 2
    work: list[tuple[Callable[..., None], tuple[object, ...]]] = [
        (world.write, (world.topics[:half], ended, random.Random(seed))),
        (world.write, (world.topics[half:], ended, random.Random(seed + 1))),
        (world.ask, (services, ended, random.Random(seed + 2))),
        (kill_and_start, (services, ended, random.Random(seed + 3), world)),
    ]

    def guarded(task: Callable[..., None], arguments: tuple[object, ...]) -> None:
        try:
            task(*arguments)
        except BaseException as error:
            world.failures.append(error)

    threads = [threading.Thread(target=guarded, args=item) for item in work]
    for thread in threads:
        thread.start()
    threading.Event().wait(SECONDS)
    ended.set()
    for thread in threads:
        thread.join()
    if world.failures:
        raise world.failures[0]


def is_quiet(world: World) -> bool:
    """Nothing is requested, runs or fails."""
    control = world.metadata.compaction_control
    failing = [item for item in control.all().values() if item.failures]
    running = world.metadata.runs.newest(1, state=RunState.RUNNING)
    return not (control.requests() or running or failing)


def horizon(topic: Topic) -> int:
    position = topic.snapshot().horizon
    return position.offset if position else -1


def overlapping(history: list[RunRecord]) -> list[tuple[RunRecord, RunRecord]]:
    """Pairs of runs of one topic, one of which begins before the other has ended."""
    by_topic: dict[int, list[RunRecord]] = {}
    for run in sorted(history, key=lambda run: (run.started_at, run.run_id)):
        by_topic.setdefault(run.topic_id, []).append(run)
    pairs = [pair for runs in by_topic.values() for pair in pairwise(runs)]
    return [(first, then) for first, then in pairs if first.finished_at is None or then.started_at < first.finished_at]


def until(holds: Callable[[], object], what: str) -> None:
    """Wait for other processes, which do not report here when they are ready."""
    deadline = time.monotonic() + SETTLES_WITHIN_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"not within {SETTLES_WITHIN_SECONDS} s: {what}"
        threading.Event().wait(0.2)
