"""A service that is killed and starts again, at the same ports."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import httpx

from benchmarks.peers.broker import free_ports
from tests.servers.compactor_service import RunningService, compactor_service


class Lives:
    """The lives of one service. `environment`: of each."""

    def __init__(self, folder: Path, stack: ExitStack, **environment: str) -> None:
        self._folder, self._stack, self._environment = folder, stack, environment
        self._life = ExitStack()
        port, broker_service_port = free_ports(2)
        self._ports = ("--port", str(port), "--broker-service-port", str(broker_service_port))
        self.service = self.start()
        stack.callback(lambda: self._life.close())
        self.rest = stack.enter_context(httpx.Client(base_url=self.service.url, timeout=60))

    def start(self) -> RunningService:
        """Begin another life."""
        self.service = self._life.enter_context(compactor_service(self._folder, *self._ports, **self._environment))
        return self.service

    def kill(self) -> None:
        """End the life by SIGKILL."""
        self.service.process.kill()
        self.service.process.wait()
        self._life.close()

    def entries(self, topic: str) -> int:
        """Return the number of entries that have ever been stored in a topic, `tenant/namespace/topic`."""
        answer = self.rest.get(f"/admin/v2/persistent/{topic}/internalStats")
        return int(answer.json()["entriesAddedCounter"]) if answer.is_success else 0
