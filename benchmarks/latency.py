"""Runs on an S3 server, with and without time added to each request, beside the same runs on a local directory.

The server is a real one on this machine (versitygw), behind a proxy that holds each request for that time. In each
round every way compacts the same data from its raw ledgers (full), and then a share of new messages. A small run goes
to the process, a large one to Spark, as in a service.

`waits`: the time added to a run divided by the time added to a request: about how many requests follow each other.
"""

from __future__ import annotations

import argparse
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from api.components import open_environment
from api.settings.settings import Settings
from benchmarks import machine
from benchmarks.bench_session import Session, say
from benchmarks.contenders import THREADS
from benchmarks.data import STANDARD, Shape
from benchmarks.this_job import forget_compacted
from compactor.engines.auto import AutoEngine
from compactor.engines.spark import SparkEngine, SparkSettings, open_session
from compactor.two_phase import TwoPhaseCompactor
from storage.environment import Environment
from storage.model import TopicName
from storage.topic import Topic
from tests.servers.versitygw import Versitygw
from tests.workbench import ensure_topic

LOCAL, SERVER = "local directory", "S3 server"


class DelayedServer:
    """A proxy in front of an HTTP server. It holds each request for `delay` seconds; `requests` counts them."""

    def __init__(self, endpoint: str) -> None:
        parts = urlsplit(endpoint)
        assert parts.hostname is not None
        assert parts.port is not None
        self._server = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.delay = 0.0
        self.requests = 0
        self._lock = threading.Lock()
        self._start(self._accept)

    def close(self) -> None:
        """Accept no more connections."""
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                for end in (client, server):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                answered = threading.Event()
                answered.set()
                self._start(self._send_requests, client, server, answered)
                self._start(self._send_answers, server, client, answered)

    def _send_requests(self, client: socket.socket, server: socket.socket, answered: threading.Event) -> None:
        with _closing_at_end(server):
            while data := client.recv(1 << 18):
                if answered.is_set():  # so a request begins
                    answered.clear()
                    with self._lock:
                        self.requests += 1
                    time.sleep(self.delay)
                server.sendall(data)

    def _send_answers(self, server: socket.socket, client: socket.socket, answered: threading.Event) -> None:
        with _closing_at_end(client):
            while data := server.recv(1 << 18):
                if not data.startswith(b"HTTP/1.1 100"):  # the client continues with the same request
                    answered.set()
                client.sendall(data)

    @staticmethod
    def _start(target: object, *arguments: object) -> None:
        threading.Thread(target=target, args=arguments, daemon=True).start()  # type: ignore[arg-type]


@contextmanager
def _closing_at_end(target: socket.socket) -> Iterator[None]:
    with suppress(OSError):
        yield
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


@dataclass
class Way:
    """A store with the topic. `title`: of its line. `delay`: seconds added to each request."""

    title: str
    session: Session
    topic: Topic
    server: DelayedServer | None
    delay: float
    seconds: dict[str, list[float]] = field(default_factory=dict)
    requests: dict[str, list[int]] = field(default_factory=dict)

    def compact(self, run: str) -> None:
        """Compact the topic, and note time and requests under the name of the run."""
        if self.server is not None:
            self.server.delay, self.server.requests = self.delay, 0
        self.session.engine.warm_up()
        engine = AutoEngine(lambda: self.session.engine, THREADS)
        os.sync()
        started = time.perf_counter()
        outcome = TwoPhaseCompactor(self.session.environment, engine).compact(self.topic.name)
        self.seconds.setdefault(run, []).append(time.perf_counter() - started)
        assert outcome.run is not None
        if self.server is not None:
            self.requests.setdefault(run, []).append(self.server.requests)
            self.server.delay = 0.0
        say(f"{self.title}, {run}: {self.seconds[run][-1]:.2f} s, {outcome.run.statistics['engine']}")


def main(arguments: list[str]) -> int:
    """Run the benchmark and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks latency", description=__doc__.split("\n\n")[0])
    parser.add_argument("--standard", choices=sorted(STANDARD), default="10m")
    parser.add_argument("--delay", type=float, default=20, help="ms added to each request: %(default)s")
    parser.add_argument("--share", type=float, default=0.01, help="share of new messages: %(default)s")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    base, delay = STANDARD[options.standard], options.delay / 1000
    new = replace(base, messages=max(1, int(base.messages * options.share)))
    with tempfile.TemporaryDirectory(prefix="latency-benchmark-") as folder, _ways(Path(folder), delay) as ways:
        for topic_of in {id(way.topic): way for way in ways}.values():
            topic_of.session.append(topic_of.topic, base)
        full, later = f"full run of {base.messages:,}", f"{options.share:.1%} new"
        for number in range(options.rounds + 1):
            _round(ways, full, later, replace(new, seed=100 + number), counted=number > 0)
        print(machine.summary(machine.describe(Path(folder))), end="\n\n")
        print(_table(ways, (full, later), delay))
    return 0


def _round(ways: list[Way], full: str, later: str, new: Shape, *, counted: bool) -> None:
    """Let each way compact from raw, then once more with new messages. The first round warms up."""
    for way in ways:
        if way.topic.snapshot().compacted is not None:
            forget_compacted(way.session.environment, way.topic)
        way.compact(full if counted else "warm-up")
        way.session.append(way.topic, new)
        way.compact(later if counted else "warm-up")


@contextmanager
def _ways(folder: Path, delay: float) -> Iterator[list[Way]]:
    """Yield the ways: a local directory, and the server without and with the delay, on one topic."""
    for name in ("spark", "local", "remote", "server"):
        (folder / name).mkdir()
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parent.parent)
    with Versitygw(folder / "server") as server, closing(DelayedServer(server.endpoint)) as delayed:
        os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"] = server.access_key, server.secret_key
        remote = Settings(
            data=str(folder / "remote"), store=f"s3://{server.make_bucket()}/ledgers", s3_endpoint=delayed.endpoint
        )
        spark = open_session(SparkSettings(folder / "spark" / "spark.log", f"local[{THREADS}]"))
        try:
            engine = SparkEngine(spark)
            with (
                open_environment(Settings(data=str(folder / "local"))) as local_environment,
                open_environment(remote) as remote_environment,
            ):
                yield [
                    _way(LOCAL, folder, local_environment, engine, None, 0),
                    _way(SERVER, folder, remote_environment, engine, delayed, 0),
                    _way(f"{SERVER}, {delay * 1000:.0f} ms added", folder, remote_environment, engine, delayed, delay),
                ]
        finally:
            spark.stop()


def _way(
    title: str, folder: Path, environment: Environment, engine: SparkEngine, server: DelayedServer | None, delay: float
) -> Way:
    topic = ensure_topic(environment, TopicName.parse("latency"))
    return Way(title, Session(folder, environment, engine), topic, server, delay)


def _table(ways: list[Way], runs: tuple[str, ...], delay: float) -> str:
    lines = [
        "| run | store | seconds, median | min–max | without delay = 1 | requests | waits |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for run in runs:
        without = next(way for way in ways if way.title == SERVER).seconds[run]
        for way in ways:
            seconds = way.seconds[run]
            ratio = median(seconds) / median(without)
            requests = f"{median(way.requests[run]):.0f}" if way.server is not None else ""
            waits = f"{(median(seconds) - median(without)) / delay:.0f}" if way.delay else ""
            lines.append(
                f"| {run} | {way.title} | {median(seconds):.2f} | {min(seconds):.2f}–{max(seconds):.2f} | {ratio:.2f} "
                f"| {requests} | {waits} |"
            )
    return "\n".join(lines)
