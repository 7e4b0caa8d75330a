"""`python -m benchmarks checks`: the leader's regular work with many topics of which few have any, in CPU seconds.

The rows of one compacted topic are copied in SQL for all others, as in benchmarks/service.py, but without histories of
runs. The objects of the copies do not exist: nothing here reads them. Some topics get new ledgers and become due.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import func, insert, select, update

from api.components import open_environment
from api.settings.settings import Settings
from benchmarks.service import compacted_topic, databases, environment
from compactor.maintenance.garbage import GarbageCollector
from compactor.scheduling.backlog import BacklogReader
from compactor.scheduling.due import due_topics
from compactor.scheduling.due_queue import DueQueue
from compactor.scheduling.reconciler import Reconciler
from compactor.scheduling.scan_throttle import TOPICS_AT_ONCE
from storage.clock import SystemClock
from storage.environment import Environment
from storage.log.bulk_append import INPUT_SCHEMA
from storage.metadata import tables
from storage.metadata.policy_store import BROKER
from storage.metadata.store import MetadataStore
from storage.model import TopicName

CHECK_GOAL_MS = 50
COLLECTION_GOAL_MS = 1000
LEADER_TTL_MS = 3_600_000
AT_ONCE = 5000


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark. Return 0 whatever the speed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks checks", description=__doc__)
    parser.add_argument("--topics", type=int, default=100_000)
    parser.add_argument("--due", type=int, default=100, help="topics that are due")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--databases", nargs="+", choices=("sqlite", "postgresql"), default=["sqlite", "postgresql"])
    options = parser.parse_args(arguments)
    print("| database | what | CPU, ms: median (least–most) | time, ms | goal |\n|---|---|---:|---:|---|")
    with tempfile.TemporaryDirectory(prefix="compactor-bench-") as folder, databases(options.databases) as urls:
        for kind, url in urls.items():
            settings = Settings.load(environment(Path(folder) / kind, url))
            if settings.database:
                MetadataStore(settings.database_url, SystemClock()).upgrade()
            with open_environment(settings) as opened:
                fill(opened, options.topics)
                measure(opened, kind, options.due, options.rounds)
    return 0


def fill(environment: Environment, topics: int) -> None:
    """Create one compacted topic, and copy its rows for all others."""
    first = compacted_topic(environment, TopicName("bench", "many", "topic-0"), ledgers=2, compacted_every=2)
    environment.metadata.policies.change([BROKER], {"compaction.threshold.messages": 1})
    names = {"ledger_id": iter(range(10**6, 10**9)), "attempt_id": (f"{number:032x}" for number in range(10**9))}
    with environment.metadata.database.write() as connection:
        (model,) = connection.execute(select(tables.topics).where(tables.topics.c.id == first)).mappings()
        rows = [
            {**model, "id": first + number, "uid": f"{number:032x}", "name": f"persistent://bench/many/topic-{number}"}
            for number in range(1, topics)
        ]
        for start in range(0, len(rows), AT_ONCE):
            connection.execute(insert(tables.topics), rows[start : start + AT_ONCE])
        copied = (tables.leases, tables.attempts, tables.ledgers, tables.compacted_ledgers, tables.cursors)
        for table in copied:
            own = [name for name in names if name in table.c and table.c[name].primary_key]
            models = list(connection.execute(select(table).where(table.c.topic_id == first)).mappings())
            rows = [
                {**row, "topic_id": first + number, **{name: next(names[name]) for name in own}}
                for number in range(1, topics)
                for row in models
            ]
            for start in range(0, len(rows), AT_ONCE):
                connection.execute(insert(table), rows[start : start + AT_ONCE])
        above = int(connection.execute(select(func.max(tables.ledgers.c.ledger_id))).scalar_one()) + 1
        connection.execute(update(tables.sequences).values(next_value=above + topics))


def measure(environment: Environment, kind: str, due: int, rounds: int) -> None:
    """Print the CPU time of a check by the queue, and of the scan that it replaces, in turns."""
    metadata, clock = environment.metadata, environment.clock
    token = metadata.services.acquire_leadership("benchmark", LEADER_TTL_MS)
    assert token is not None
    backlogs = BacklogReader(metadata, environment.log)
    queue = DueQueue(metadata, backlogs, clock)
    report(kind, "begin to lead with other policies: queue all", [measured(lambda: begin(environment, token))])
    report(kind, "first check: all topics are queued", [measured(lambda: queue.check(clock.now_ms(), token))])
    topics = metadata.topics.page_by_id(0, due)
    for record in topics:
        append(environment, record.name)
    checks, scans = [], []
    for _ in range(rounds):
        checks.append(measured(lambda: expect(due, len(queue.check(clock.now_ms(), token)))))
        scans.append(measured(lambda: expect(due, scan(environment, backlogs))))
    report(kind, f"check, {due} due", checks, CHECK_GOAL_MS)
    report(kind, "the same by a scan of all topics", scans)
    walk = Reconciler(metadata, backlogs, clock, 0)
    pages = [measured(lambda: walk.walk_next_page_if_due(token)) for _ in range(rounds)]
    report(kind, f"a page of the walk, {TOPICS_AT_ONCE} topics", pages[:1])
    collector = GarbageCollector(environment)
    list(collector.collect_due())  # settles the topics that the appends have queued
    collections = [measured(lambda: expect(0, len(list(collector.collect_due())))) for _ in range(rounds)]
    report(kind, "garbage collection with nothing to collect", collections, COLLECTION_GOAL_MS)


def begin(environment: Environment, token: int) -> None:
    environment.metadata.topic_work.queue_for_new_leader(token, environment.log.known_uid)


def append(environment: Environment, name: TopicName) -> None:
    """Append two messages, more than the threshold, in a ledger."""
    import pyarrow as pa

    from api.cli.local.opening import open_topic

    table = pa.Table.from_pylist([{"key": b"a", "payload": b"1"}, {"key": b"b", "payload": b"2"}], schema=INPUT_SCHEMA)
    open_topic(environment, name).bulk_append(workers=1).append([table])


def scan(environment: Environment, backlogs: BacklogReader) -> int:
    """Return how many topics are due, from the rows of all topics."""
    measured_topics = [
        backlog
        for page in environment.metadata.topics.in_pages(TOPICS_AT_ONCE)
        for backlog in backlogs.read_with_trigger([topic.id for topic in page])
    ]
    controls = environment.metadata.compaction_control.all()
    return len(due_topics(measured_topics, controls, environment.clock.now_ms()))


def expect(expected: int, number: int) -> None:
    assert number == expected, f"{number} topics, not {expected}"


def measured(step: Callable[[], object]) -> tuple[float, float]:
    """Return the CPU and wall time of a step, in milliseconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    step()
    return 1000 * (time.process_time() - cpu), 1000 * (time.perf_counter() - wall)


def report(kind: str, what: str, times: list[tuple[float, float]], goal: float | None = None) -> None:
    cpu, wall = sorted(item[0] for item in times), statistics.median(item[1] for item in times)
    median = statistics.median(cpu)
    reached = "" if goal is None else f"{goal:.0f}: {'reached' if median <= goal else 'MISSED'}"
    print(f"| {kind} | {what} | {median:.1f} ({cpu[0]:.1f}–{cpu[-1]:.1f}) | {wall:.1f} | {reached} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
