"""Apache Kafka's log cleaner: one broker in combined mode (KRaft), with documented default settings except these:

- `log.cleaner.threads`, and as many partitions as threads, because one thread cleans a partition;
- `log.cleaner.backoff.ms` 50 instead of 15,000, so that threads start together; it has no effect while they work;
- the topic is compacted only after all messages are loaded and its segments are closed, so all of it is cleanable.

The time comes from the cleaner's own log: from the start of the first pass to the end of the last. It excludes the
delay between our command and the start of the cleaner. It includes the swap of segments and the cleaner's own fsync.
"""

from __future__ import annotations

import time
import uuid
from base64 import urlsafe_b64encode
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.data import KEY_BYTES, Shape
from benchmarks.peers.artifacts import LOG_SETTINGS, Artifacts
from benchmarks.peers.broker import ADDRESS, Broker, free_ports
from benchmarks.peers.cleaner_log import elapsed, is_done, read_passes
from benchmarks.peers.contender import Compaction, Deadline, Messages, PeerFailed
from benchmarks.peers.records import Survivors, survivors_of_file

CLIENT = "KafkaMessages"
BATCH_BYTES = 128 << 10
"""Batch size of the producer. Kafka's default is 16 KiB; larger batches are less work for its cleaner."""

_POLL_SECONDS = 0.05
_HEAP = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")
"""Options of Kafka's start script."""

_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{address}:{controller_port}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://{address}:{port},CONTROLLER://{address}:{controller_port}
advertised.listeners=PLAINTEXT://{address}:{port}
log.dirs={folder}/logs
offsets.topic.replication.factor=1
log.cleaner.threads={threads}
log.cleaner.backoff.ms=50
"""


@dataclass
class Kafka:
    """A broker whose cleaner has `threads` threads, for topics with as many partitions. `settings`: lines of its file
    of settings, besides ours, which may name the placeholders of ours. `format_options`: of its storage tool."""

    artifacts: Artifacts
    threads: int
    folder: Path
    compression: bool
    limit: float
    family: str = "Kafka"
    heap: tuple[str, ...] = _HEAP
    settings: str = ""
    format_options: tuple[str, ...] = ()
    _broker: Broker | None = field(default=None, init=False)
    _port: int = field(default=0, init=False)

    @property
    def name(self) -> str:
        return f"Kafka {self.artifacts.version}, cleaner threads and partitions: {self.threads}"

    def start(self) -> None:
        self.folder.mkdir()
        self._port, controller_port = free_ports(2)
        settings = self.folder / "server.properties"
        settings.write_text(
            (_SETTINGS + self.settings).format(
                address=ADDRESS,
                port=self._port,
                controller_port=controller_port,
                folder=self.folder,
                threads=self.threads,
            )
        )
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # One argument with its value, which may begin with a hyphen.
        arguments = "format", f"--cluster-id={cluster}", f"--config={settings}", *self.format_options
        self.artifacts.run("kafka.tools.StorageTool", *arguments, limit=self.limit)
        self.launch()

    def launch(self) -> None:
        """Start the broker on its data, formatted or older, at its port."""
        options = (*self.heap, "-Duser.language=en", f"-Dlog4j2.configurationFile={LOG_SETTINGS}")
        settings = str(self.folder / "server.properties")
        command = self.artifacts.command("kafka.Kafka", settings, options=options)
        self._broker = Broker(self.name, command, self.folder)
        self._broker.wait_for("Kafka Server started", self.limit, "its start")

    def load(self, messages: Messages, topic: str) -> float:
        sizes = str(KEY_BYTES), str(messages.shape.payload_bytes)
        codec = "lz4" if self.compression else "none"
        arguments = str(messages.records), *sizes, codec, str(self.threads), str(BATCH_BYTES)
        return self.artifacts.send(self.address, topic, *arguments, limit=self.limit)

    def compact(self, topic: str) -> Compaction:
        broker = self._started()
        start = broker.log_end()
        answer = self._client("compact", topic)
        ends = {f"{topic}-{partition}": int(end) for partition, end in map(str.split, answer.splitlines())}
        if len(ends) != self.threads:
            raise PeerFailed(f"{self.name}: {CLIENT} compact answered {answer!r}")
        deadline = Deadline(self.limit, f"{self.name}: cleaning {topic}")
        while not is_done(passes := read_passes(broker.log_since(start), topic), ends):
            if "as uncleanable" in broker.log_since(start):
                raise PeerFailed(f"{self.name}: the cleaner gave up on {topic}: {broker.log_since(start)[-1500:]}")
            broker.check(deadline)
            time.sleep(_POLL_SECONDS)
        message = (
            " + ".join(f"{pass_.seconds:.1f}" for pass_ in passes if pass_.partition == partition) for partition in ends
        )
        return Compaction(elapsed(passes), f"the cleaner says, by partition: {'; '.join(message)} s")

    def survivors(self, topic: str, shape: Shape) -> Survivors:
        file = self.folder / "survivors"
        self._client("read", topic, str(file), str(KEY_BYTES), str(shape.payload_bytes))
        try:
            return survivors_of_file(file, shape.payload_bytes)
        finally:
            file.unlink()

    def forget(self, topic: str) -> None:
        self._client("delete", topic)

    def process(self) -> int:
        return self._started().pid

    def stop(self) -> None:
        if self._broker is not None:
            self._broker.stop()

    def _client(self, command: str, topic: str, *arguments: str) -> str:
        return self.artifacts.run_client(command, self.address, topic, *arguments, limit=self.limit)

    @property
    def address(self) -> str:
        """Its host and port."""
        return f"{ADDRESS}:{self._port}"

    def _started(self) -> Broker:
        assert self._broker is not None, "start() comes first"
        return self._broker
