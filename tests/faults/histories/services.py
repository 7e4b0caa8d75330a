"""The services of the random histories, with a faulty link to PostgreSQL, a faulty proxy to S3 and a faulty disk each.

Each service is a process. Either both share one log directory, so that a topic moves when its owner ends; or each has
its own, so that a topic's unsealed messages wait for its service. A service may be killed (SIGKILL), stopped
(SIGSTOP), ended (SIGTERM); its link to the database may be cut at a COMMIT or for a while, its requests to the store
may fail in every way that `s3_proxy` knows, and calls to its disk as `disk_faults` says. Everything listens on
loopback; processes are ended by the pids of those that were started here.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import httpx

from storage.metadata.store import MetadataStore
from tests.clocks import ManualClock
from tests.faults.histories.disk_faults import DiskFaults
from tests.faults.s3_proxy import S3Proxy
from tests.processes import free_port
from tests.servers.cut_link import PostgresLink
from tests.servers.postgres import PostgresServer
from tests.servers.versitygw import Versitygw

SETTINGS = {
    "COMPACTOR_SPARK_MASTER": "in-process",
    "COMPACTOR_COMPACTION_MONITOR_INTERVAL": "1s",
    "COMPACTOR_COMPACTION_RUN_DEAD_AFTER": "6s",
    "COMPACTOR_COMPACTION_RETRY_FIRST": "500ms",
    "COMPACTOR_COMPACTION_RETRY_MOST": "5s",
    "COMPACTOR_LEADER_LEASE_TERM": "3s",
    "COMPACTOR_MAINTENANCE_INTERVAL": "3s",
    "COMPACTOR_MAINTENANCE_SEAL_INTERVAL": "500ms",
    "COMPACTOR_GC_INTERVAL": "10s",
    "COMPACTOR_GC_GRACE": "60s",
    "COMPACTOR_PRODUCERS_IDLE": "2s",
    "COMPACTOR_SHUTDOWN_GRACE": "2s",
    "COMPACTOR_LIMITS_REQUESTS_PER_SECOND": "0",
    "COMPACTOR_FORWARDING_TIMEOUT": "5s",
    "COMPACTOR_BROKER_KEEP_ALIVE_INTERVAL": "5s",
}
_NO_OTHER_AWS = {
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_DEFAULT_REGION": "us-east-1",
}
_ENDS_WITHIN_SECONDS = 60
_STARTS_WITHIN_SECONDS = 300
_TRY_AGAIN = 6

LONGEST_STOP_SECONDS = 75.0
"""Beyond every lease: a writer's (15 s), a sealer's claim and a reader's pin (60 s), a run's heartbeat."""


class Service:
    """One service, over all the processes that it is."""

    def __init__(
        self,
        name: str,
        folder: Path,
        environment: Mapping[str, str],
        link: PostgresLink,
        s3: S3Proxy,
        disk: DiskFaults,
    ) -> None:
        self.name = name
        self.link = link
        self.s3 = s3
        self.disk = disk
        self.folder = folder
        self.broker_port = free_port()  # stays the same over all processes: clients connect again to it
        self._log = folder / "serve.log"
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("COMPACTOR_", "AWS_"))}
        port = {"COMPACTOR_BROKER_SERVICE_PORT": str(self.broker_port)}
        self._environment = {**clean, **SETTINGS, **environment, **port, **disk.environment}
        self._url = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._from = 0
        self.starts = 0
        self.stopped = False

    def start(self) -> None:
        self.starts += 1
        self._url = ""
        self._from = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as written:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "api.cli.main", "serve", "--port", "0"],
                env=self._environment,
                stdout=written,
                stderr=written,
            )

    @property
    def url(self) -> str:
        """Return the URL of the service, or an empty text until it serves."""
        if not self._url and self._log.exists():
            with self._log.open() as log:
                log.seek(self._from)
                lines = [line for line in log if line.endswith("\n") and '"event": "serving"' in line]
            self._url = str(json.loads(lines[-1])["url"]) if lines else ""
        return self._url

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def end(self, how: signal.Signals) -> None:
        """Send it a signal and wait for its end."""
        assert self._process is not None
        self._process.send_signal(how)
        try:
            self._process.wait(_ENDS_WITHIN_SECONDS)
        finally:
            self._process.kill()
            self._process.wait()
            self._url = ""

    def stop(self) -> None:
        """SIGSTOP: it does nothing until `go_on`, whatever leases it holds."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        self.stopped = True

    def go_on(self) -> None:
        if self.stopped and self._process is not None:
            self._process.send_signal(signal.SIGCONT)
        self.stopped = False

    def wait_until_it_answers(self) -> None:
        """Wait until it is ready. Raises AssertionError if that takes too long, with the end of its log.

        A service whose database fails while it starts ends with the exit code for "try again"; it is started again.
        """
        deadline = time.monotonic() + _STARTS_WITHIN_SECONDS
        while time.monotonic() < deadline:
            if not self.is_alive:
                if self._process is None or self._process.returncode != _TRY_AGAIN:
                    break
                self.start()
            if self.url:
                with suppress(httpx.HTTPError):
                    if httpx.get(f"{self.url}/readyz", timeout=5).status_code == 200:
                        return
            time.sleep(0.1)
        ended = self._process.poll() if self._process else None
        raise AssertionError(f"{self.name} does not answer (exit code {ended}): {self.log_end()}")

    def log_end(self) -> str:
        """Return the end of its log."""
        return self._log.read_text(errors="replace")[-3000:] if self._log.exists() else ""

    def logged(self) -> Iterator[dict[str, object]]:
        """Yield every line that all its processes logged."""
        with self._log.open(errors="replace") as log:
            for line in log:
                with suppress(ValueError):
                    record = json.loads(line)
                    if isinstance(record, dict):
                        yield record


@dataclass(frozen=True)
class Deployment:
    """A database, a store and the services on them; the tests may open both as long as it runs."""

    services: list[Service]
    database_url: str
    store_url: str
    endpoint: str


@contextmanager
def servers(folder: Path) -> Iterator[tuple[PostgresServer, Versitygw]]:
    """Servers for `deployment`. Raises PostgresNotFound, ToolMissing."""
    with ExitStack() as stack:
        postgres = PostgresServer()
        stack.callback(postgres.stop)
        folder.mkdir(parents=True)
        yield postgres, stack.enter_context(Versitygw(folder))


@contextmanager
def deployment(
    folder: Path, count: int, postgres: PostgresServer, s3: Versitygw, library: Path | None, *, shares_log: bool
) -> Iterator[Deployment]:
    """Yield so many running services with a database and a bucket of their own; `folder` is created.

    `library`: that of `disk_faults.build`. `shares_log`: the services have one log directory.
    """
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        bucket = s3.make_bucket()
        url = postgres.new_database()
        metadata = MetadataStore(url, ManualClock())
        metadata.upgrade()
        metadata.close()
        credentials = {**_NO_OTHER_AWS, "AWS_ACCESS_KEY_ID": s3.access_key, "AWS_SECRET_ACCESS_KEY": s3.secret_key}
        services = []
        for number in range(count):
            link = PostgresLink(url)
            stack.callback(link.close)
            proxy = stack.enter_context(S3Proxy(s3.endpoint))
            place = folder / f"service-{number}"
            place.mkdir()
            environment = {
                **credentials,
                "COMPACTOR_DATA": str(place / "data"),
                "COMPACTOR_LOG": str((folder if shares_log else place) / "log"),
                "COMPACTOR_DATABASE": link.url.render_as_string(hide_password=False),
                "COMPACTOR_STORE": f"s3://{bucket}/compactor",
                "COMPACTOR_S3_ENDPOINT": proxy.endpoint,
            }
            disk = DiskFaults(library, place)
            services.append(Service(place.name, place, environment, link, proxy, disk))
        stack.callback(_end_all, services)
        for service in services:
            service.start()
        for service in services:
            service.wait_until_it_answers()
        stack.enter_context(mock.patch.dict(os.environ, credentials))
        yield Deployment(services, url.render_as_string(hide_password=False), f"s3://{bucket}/compactor", s3.endpoint)


def _end_all(services: list[Service]) -> None:
    for service in services:
        service.go_on()
        if service.is_alive:
            service.end(signal.SIGKILL)
