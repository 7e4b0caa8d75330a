"""`python -m benchmarks.service`: time to the first answer of a service; stats, status and pages with many topics.

The benchmark imports and compacts one topic, and copies its rows in SQL under other names until the database has 10,000
topics and 100,000 ledgers (stats and status read SQL alone). Another topic has 100 ledgers and 20 runs, for the pages
of the dashboard. A `compactor serve` process answers over one loopback connection, and over eight; pages over one.
SQLite and PostgreSQL take turns.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx
import pyarrow as pa
from sqlalchemy import Connection, insert, select

from api.components import open_environment
from api.settings.settings import Settings
from benchmarks.bench_session import say
from compactor.engines.engine import InProcessEngine
from compactor.two_phase import TwoPhaseCompactor
from storage.environment import Environment
from storage.log.bulk_append import INPUT_SCHEMA
from storage.metadata import tables
from storage.model import TopicName
from tests.servers.postgres import PostgresServer
from tests.workbench import ensure_topic

START_GOAL_SECONDS = 2.0
P99_GOAL_MS = 20.0
LEDGERS = 10
NAMESPACES = 100
CALLS = ("stats", "internalStats", "compaction")
PAGE_LEDGERS = 100
PAGE_TOPIC = TopicName("bench", "pages", "hundred-ledgers")
_TOPIC_PAGE = f"/dashboard/topics/{PAGE_TOPIC.tenant}/{PAGE_TOPIC.namespace}/{PAGE_TOPIC.topic}"
PAGES = (
    ("first page of all topics", "/", 150.0),
    (f"page of a topic with {PAGE_LEDGERS} ledgers", _TOPIC_PAGE, 100.0),
    ("page of its messages, raw and compacted", f"{_TOPIC_PAGE}/messages?view=both", 150.0),
)
"""Pages of the dashboard with the goals of their medians, in milliseconds (issue 26)."""


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark. Return 0 whatever the speed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.service", description=__doc__)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--requests", type=int, default=2000, help="of each call, in each round")
    parser.add_argument("--pages", type=int, default=50, help="requests of each page, in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--starts", type=int, default=7)
    parser.add_argument("--databases", nargs="+", choices=("sqlite", "postgresql"), default=["sqlite", "postgresql"])
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="compactor-bench-") as folder, databases(options.databases) as urls:
        environments = {}
        for kind, url in urls.items():
            variables = environments[kind] = environment(Path(folder) / kind, url)
            say(f"filling {kind} with {options.topics} topics")
            fill(variables, options.topics)
        print("| database | what | median | p99 | most | goal |\n|---|---|---:|---:|---:|---|")
        for kind, variables in environments.items():
            start_seconds(variables)  # compiles our modules; installed packages are compiled
            starts = [start_seconds(variables) for _ in range(options.starts)]
            goal = "reached" if max(starts) <= START_GOAL_SECONDS else "MISSED"
            print(
                f"| {kind} | first answer after the start, s | {statistics.median(starts):.2f} | | {max(starts):.2f} "
                f"| {START_GOAL_SECONDS:.0f}: {goal} |",
                flush=True,
            )
        for number in range(options.rounds):
            for kind, variables in environments.items():
                with serving(variables) as url:
                    for call in CALLS:
                        for connections in (1, 8):
                            times = request_times(
                                url, random_topic(call, options.topics), options.requests, connections
                            )
                            p99 = percentile_99(times)
                            report(
                                kind, f"{call}, {connections} at a time, round {number + 1}", times, p99, P99_GOAL_MS
                            )
                    for title, path, page_goal in PAGES:
                        times = request_times(url, partial(_fixed, path), options.pages, 1)
                        report(kind, f"{title}, round {number + 1}", times, statistics.median(times), page_goal)
    return 0


@contextmanager
def databases(kinds: list[str]) -> Iterator[dict[str, str]]:
    """Return database URLs by kind. The URL of SQLite is empty, which means the embedded database."""
    urls = {"sqlite": ""} if "sqlite" in kinds else {}
    if "postgresql" not in kinds:
        yield urls
        return
    server = PostgresServer()
    try:
        yield {**urls, "postgresql": server.new_database().render_as_string(hide_password=False)}
    finally:
        server.stop()


def environment(folder: Path, database: str) -> dict[str, str]:
    folder.mkdir()
    settings = {"COMPACTOR_DATA": str(folder), "COMPACTOR_SPARK_MASTER": "in-process"}
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**inherited, **settings, **({"COMPACTOR_DATABASE": database} if database else {})}


def name_of(number: int) -> TopicName:
    return TopicName("bench", f"n{number % NAMESPACES}", f"topic-{number}")


def fill(variables: dict[str, str], topics: int) -> None:
    """Create one topic with data, and copy its rows under other names."""
    from storage.clock import SystemClock
    from storage.metadata.store import MetadataStore

    settings = Settings.load(variables)
    if settings.database:
        MetadataStore(settings.database_url, SystemClock()).upgrade()
    with open_environment(settings) as environment:
        first = compacted_topic(environment, name_of(0), LEDGERS, compacted_every=4)
        for number in range(1, topics):
            environment.metadata.tenancy.ensure_topic(name_of(number))
        with environment.metadata.database.write() as connection:
            copy_rows(connection, first)
        compacted_topic(environment, PAGE_TOPIC, PAGE_LEDGERS, compacted_every=5)


def compacted_topic(environment: Environment, name: TopicName, ledgers: int, compacted_every: int) -> int:
    """Create a topic with `ledgers` ledgers of 1,000 messages; return its id. `compacted_every`: ledgers for a run."""
    topic = ensure_topic(environment, name)
    table = pa.Table.from_pylist(
        [{"key": b"key-%d" % (n % 100), "payload": b"%0100d" % n} for n in range(1000)], schema=INPUT_SCHEMA
    )
    compactor = TwoPhaseCompactor(environment, InProcessEngine())
    for number in range(1, ledgers + 1):
        topic.bulk_append(workers=1).append([table])
        if number % compacted_every == 0:
            compactor.compact(topic.name)
    return topic.record.id


def copy_rows(connection: Connection, first: int) -> None:
    """Copy the rows of the first topic for every other topic."""
    others = [scalar for scalar in connection.execute(select(tables.topics.c.id)).scalars() if scalar != first]
    ids = iter(range(1_000_000, 1_000_000 + len(others) * (LEDGERS + 8)))
    for table, own in (
        (tables.ledgers, ("ledger_id",)),
        (tables.compacted_ledgers, ("ledger_id",)),
        (tables.cursors, ()),
        (tables.runs, ("run_id", "attempt_id")),
    ):
        rows = [dict(row) for row in connection.execute(select(table).where(table.c.topic_id == first)).mappings()]
        created = []
        for topic in others:
            for row in rows:
                new = {**row, "topic_id": topic}
                new |= {name: secrets.token_hex(16) if name == "attempt_id" else next(ids) for name in own}
                created.append(new)
            if len(created) > 5000:
                connection.execute(insert(table), created)
                created = []
        if created:
            connection.execute(insert(table), created)


@contextmanager
def serving(variables: dict[str, str]) -> Iterator[str]:
    """Run a service process that answers; end it by its pid."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [str(Path(sys.executable).with_name("compactor")), "serve", "--port", str(port)]
    with open(Path(variables["COMPACTOR_DATA"]) / "serve.log", "ab") as log:
        process = subprocess.Popen(command, env=variables, stdout=log, stderr=log)
    try:
        until = time.monotonic() + 60
        with httpx.Client() as client:
            while True:
                try:
                    if client.get(f"{url}/livez").status_code == 200:
                        break
                except httpx.TransportError:
                    if process.poll() is not None or time.monotonic() > until:
                        raise
                time.sleep(0.01)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def start_seconds(variables: dict[str, str]) -> float:
    started = time.perf_counter()
    with serving(variables):
        return time.perf_counter() - started


def random_topic(call: str, topics: int) -> Callable[[random.Random], str]:
    """Return a function that draws the path of a call to one of the topics."""

    def draw(choice: random.Random) -> str:
        name = name_of(choice.randrange(topics))
        return f"/admin/v2/persistent/{name.tenant}/{name.namespace}/{name.topic}/{call}"

    return draw


def _fixed(path: str, _: random.Random) -> str:
    return path


def request_times(url: str, draw: Callable[[random.Random], str], requests: int, connections: int) -> list[float]:
    """Return the time to each answer, in milliseconds. `draw`: draws the path of a request."""
    times: list[float] = []

    def one_client(seed: int) -> None:
        choice = random.Random(seed)
        with httpx.Client(base_url=url) as client:
            for _ in range(requests // connections):
                path = draw(choice)
                started = time.perf_counter()
                answer = client.get(path)
                times.append(1000 * (time.perf_counter() - started))
                assert answer.status_code == 200, answer.text

    threads = [threading.Thread(target=one_client, args=(seed,)) for seed in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times


def percentile_99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[98]


def report(database: str, title: str, times: list[float], figure: float, goal: float) -> None:
    """Print the row of some times. `figure`: the one that `goal` is for, in milliseconds."""
    verdict = "reached" if figure <= goal else "MISSED"
    kind = "median" if figure == statistics.median(times) else "p99"
    print(
        f"| {database} | {title}, ms | {statistics.median(times):.1f} | {percentile_99(times):.1f} | {max(times):.1f} "
        f"| {kind} {goal:.0f}: {verdict} |",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
