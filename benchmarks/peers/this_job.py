"""This job as a contender: import by the product's own path, compaction by a warm session in its own process.

Its memory is that of this process, the Spark driver's JVM and the Python workers, without import and comparison. The
topic is imported once for all rounds. The compacted ledger of each run is deleted, so each run starts from raw.
"""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from api.cli.local.opening import open_topic
from benchmarks.data import Shape
from benchmarks.peers.contender import Compaction, Messages, PeerFailed
from benchmarks.peers.records import Survivors, survivors_of_parts

OURS = "this job"
_LEDGER_BYTES = 128 << 20
_STOP_SECONDS = 30


@dataclass
class ThisJob:
    """The compactor in a session of `local[threads]`."""

    threads: int
    folder: Path
    limit: float
    name: str = OURS
    family: str = OURS
    _process: BaseProcess | None = field(default=None, init=False)
    _connection: Connection | None = field(default=None, init=False)
    _imported: dict[str, str] = field(default_factory=dict, init=False)
    _parts: list[str] = field(default_factory=list, init=False)

    def start(self) -> None:
        self.folder.mkdir()
        context = multiprocessing.get_context("spawn")
        self._connection, child_end = context.Pipe()
        self._process = context.Process(target=_serve, args=(child_end, self.folder, self.threads), daemon=True)
        self._process.start()
        child_end.close()
        self._receive("its start")

    def load(self, messages: Messages, topic: str) -> float:
        """Import the messages once. Later topics with the same messages are aliases of the first one."""
        if messages.name in self._imported:
            self._imported[topic] = self._imported[messages.name]
            return 0.0
        from api.components import open_environment
        from api.settings.settings import Settings
        from benchmarks.importing import import_parquet

        started = time.perf_counter()
        with open_environment(Settings(data=str(self.folder / "data"))) as environment:
            import_parquet(environment, topic, messages.parquet, _LEDGER_BYTES)
        self._imported[messages.name] = self._imported[topic] = topic
        return time.perf_counter() - started

    def compact(self, topic: str) -> Compaction:
        assert self._connection is not None, "start() comes first"
        self._connection.send(self._imported[topic])
        seconds, self._parts, phases = self._receive(f"compacting {topic}")
        return Compaction(seconds, phases)

    def survivors(self, topic: str, shape: Shape) -> Survivors:
        return survivors_of_parts(self._parts, shape.payload_bytes)

    def forget(self, topic: str) -> None:
        assert self._connection is not None, "start() comes first"
        self._connection.send(None)
        self._receive(f"forgetting {topic}")

    def process(self) -> int:
        assert self._process is not None, "start() comes first"
        assert self._process.pid is not None
        return self._process.pid

    def stop(self) -> None:
        if self._process is None or self._connection is None:
            return
        self._connection.close()
        self._process.join(_STOP_SECONDS)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join()

    def _receive(self, step: str) -> tuple[float, list[str], str]:
        assert self._connection is not None, "start() comes first"
        if not self._connection.poll(self.limit):
            raise PeerFailed(f"{OURS}: {step} did not end within {self.limit:.0f} s; --limit gives it more")
        try:
            answer = self._connection.recv()
        except EOFError as error:
            raise PeerFailed(f"{OURS}: its process ended during {step}") from error
        if isinstance(answer, str):
            raise PeerFailed(f"{OURS}: {step} failed: {answer}")
        seconds, parts, phases = answer
        return float(seconds), list(parts), str(phases)


def _serve(connection: Connection, folder: Path, threads: int) -> None:
    """Serve requests in the child: compact the topic of each name, delete the last run at each None."""
    from api.components import open_environment
    from api.settings.settings import Settings
    from benchmarks.this_job import ThisJob as Runs, Without
    from compactor.engines.spark import SparkEngine, SparkSettings, open_session
    from storage.model import TopicName
    from storage.objects.local import LocalStore

    try:
        session = open_session(SparkSettings(folder / "spark.log", f"local[{threads}]"))
        with open_environment(Settings(data=str(folder / "data"))) as environment:
            engine = SparkEngine(session)
            engine.warm_up()
            assert isinstance(environment.store, LocalStore)
            connection.send((0.0, [], ""))
            runs: Runs | None = None
            while True:
                try:
                    request = connection.recv()
                except EOFError:
                    break
                if request is None:
                    assert runs is not None
                    runs.forget()
                    connection.send((0.0, [], ""))
                    continue
                topic = open_topic(environment, TopicName.parse(request))
                runs = Runs(environment, environment.store, engine, topic)
                result = runs.compact(Without())
                phases = ", ".join(
                    f"{name.removesuffix('_ms').replace('_', ' ')} {value} ms"
                    for name, value in result.run.statistics.items()
                    if name.startswith("phase_") and name.endswith("_ms")
                )
                connection.send((result.seconds, result.files, phases))
        session.stop()
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        connection.send(f"{type(error).__name__}: {error} ({os.path.basename(last.filename)}:{last.lineno})")
