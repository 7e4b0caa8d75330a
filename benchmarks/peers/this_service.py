"""This project's service as a contender: messages by Pulsar's Java client, compactions by the admin REST.

Its process is `compactor serve` with default settings, but for automatic compaction, which is off, and the limit of
requests, so that polling is not refused. Its compactions include sealing. All work is in this process and below it.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers.artifacts import Artifacts
from benchmarks.peers.contender import Deadline, PeerFailed
from benchmarks.peers.pulsar_topics import PulsarTopics, TopicsContender
from benchmarks.peers.this_job import OURS
from tests.servers.compactor_service import SERVE, RunningService, compactor_service


@dataclass
class ThisService(TopicsContender):
    """A service with its data below `folder`. `artifacts`: those of Pulsar's client. `engine`: compaction.engine."""

    artifacts: Artifacts
    folder: Path
    limit: float
    threads: int
    engine: str = "auto"
    family: str = OURS
    _running: ExitStack = field(default_factory=ExitStack, init=False)
    _service: RunningService | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        return f"this service, engine {self.engine}"

    def start(self) -> None:
        self.folder.mkdir()
        environment = {
            "COMPACTOR_SPARK_MASTER": f"local[{self.threads}]",
            "COMPACTOR_COMPACTION_ENGINE": self.engine,
            "COMPACTOR_COMPACTION_AUTOMATIC": "false",
            "COMPACTOR_LIMITS_REQUESTS_PER_SECOND": "0",
        }
        try:
            self._service = self._running.enter_context(compactor_service(self.folder, command=SERVE, **environment))
        except AssertionError as error:
            raise PeerFailed(f"{self.name}: {error}") from error

    def process(self) -> int:
        return self._started().process.pid

    def stop(self) -> None:
        self._running.close()

    @property
    def topics(self) -> PulsarTopics:
        service = self._started()

        def check(deadline: Deadline) -> None:
            if service.process.poll() is not None:
                raise PeerFailed(f"{self.name} ended with exit code {service.process.poll()}: see {service.log}")
            deadline.check()

        urls = service.broker_service_url, service.url
        return PulsarTopics(self.name, self.artifacts, *urls, self.folder, self.limit, check)

    def _started(self) -> RunningService:
        assert self._service is not None, "start() comes first"
        return self._service
