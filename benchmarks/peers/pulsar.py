"""Apache Pulsar's compaction: one standalone broker with bookie and metadata.

Relevant settings are those of its standalone.conf, except these:
- unlimited retention, so that raw ledgers are not trimmed during a sitting; no functions, no WebSocket service;
- no backups of journals, to save disk space;
- with `flushes`, the bookie acknowledges after a flush to the disk (benchmarks.gateway).

The bookie does not fsync its journal (`journalSyncData=false`, the standalone default), so the compacted ledger may not
be on the disk by the answer SUCCESS.
Messages in the bookie's memory from loading (at most half of its write cache of 1 GiB) may be written during the
compaction, and count as written.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers.artifacts import LOG_SETTINGS, Artifacts
from benchmarks.peers.broker import ADDRESS, Broker, free_ports
from benchmarks.peers.contender import Deadline
from benchmarks.peers.pulsar_topics import POLL_SECONDS, PulsarTopics, TopicsContender

CLIENT = "PulsarMessages"
_HEAP = ("-Xms2g", "-Xmx2g", "-XX:MaxDirectMemorySize=4g", "-XX:+UseG1GC", "-XX:+PerfDisableSharedMem")
"""Options of its start script, without ZGC, which costs throughput and counts resident pages several times."""

_OPENED = (
    "java.base/java.nio",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.platform",
    "java.base/sun.net",
    "java.management/sun.management",
)
_SETTINGS = """\
clusterName=standalone
bindAddress={address}
advertisedAddress={address}
brokerServicePort={port}
webServicePort={web_port}
metadataStoreUrl=
managedLedgerDefaultEnsembleSize=1
managedLedgerDefaultWriteQuorum=1
managedLedgerDefaultAckQuorum=1
bookkeeperUseV2WireProtocol=true
loadManagerClassName=org.apache.pulsar.broker.loadbalance.NoopLoadManager
loadBalancerEnabled=false
webSocketServiceEnabled=false
defaultRetentionTimeInMinutes=-1
defaultRetentionSizeInMB=-1
ledgerStorageClass=org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage
listeningInterface=lo
allowLoopback=true
flushInterval=60000
gcWaitTime=300000
journalSyncData={flushes}
journalMaxGroupWaitMSec=1
journalMaxBackups=0
diskUsageThreshold=0.99
diskUsageWarnThreshold=0.99
"""


@dataclass
class Pulsar(TopicsContender):
    """A standalone broker."""

    artifacts: Artifacts
    folder: Path
    compression: bool
    limit: float
    flushes: bool = False
    family: str = "Pulsar"
    heap: tuple[str, ...] = _HEAP
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of its configuration file in addition to `_SETTINGS`."""
    token: str = ""
    """The token of a superuser, if `settings` require one."""
    arguments: tuple[str, ...] = ()
    """Arguments of its program in addition to those of `launch`."""
    address: str = ADDRESS
    """The address of this machine at which it listens."""
    _broker: Broker | None = field(default=None, init=False)
    _port: int = field(default=0, init=False)
    _web_port: int = field(default=0, init=False)
    _bookie_port: int = field(default=0, init=False)

    @property
    def name(self) -> str:
        return f"Pulsar {self.artifacts.version}, standalone"

    @property
    def url(self) -> str:
        """The URL for Pulsar's binary protocol."""
        return f"pulsar://{self.address}:{self._port}"

    @property
    def web_url(self) -> str:
        """The URL of its admin REST."""
        return f"http://{self.address}:{self._web_port}"

    def start(self) -> None:
        self.folder.mkdir()
        self._port, self._web_port, self._bookie_port = free_ports(3)
        settings = self.folder / "standalone.conf"
        settings.write_text(
            _SETTINGS.format(
                address=self.address, port=self._port, web_port=self._web_port, flushes=str(self.flushes).lower()
            )
            + "".join(f"{name}={value}\n" for name, value in self.settings.items())
        )
        self.launch()

    def launch(self) -> None:
        """Start the process with the settings and data of `start`, after it has ended."""
        opened = tuple(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED)
        netty = ("-Dio.netty.tryReflectionSetAccessible=true", "-Dio.netty.leakDetectionLevel=disabled")
        options = (*self.heap, *opened, *netty, f"-Dlog4j2.configurationFile={LOG_SETTINGS}")
        arguments = {
            "--config": self.folder / "standalone.conf",
            "--advertised-address": self.address,
            "--bookkeeper-dir": self.folder / "bookkeeper",
            "--bookkeeper-port": self._bookie_port,
            "--metadata-dir": self.folder / "metadata",
        }
        command = self.artifacts.command(
            "org.apache.pulsar.PulsarStandaloneStarter",
            *(f"{name}={value}" for name, value in arguments.items()),
            "--no-functions-worker",
            "--no-stream-storage",
            *self.arguments,
            options=options,
        )
        self._broker = Broker(self.name, command, self.folder)
        self._broker.wait_for("messaging service is ready", self.limit, "its start")
        deadline = Deadline(self.limit, f"{self.name}: making its default namespace")
        while self.topics.request("GET", "/admin/v2/namespaces/public/default")[0] != 200:
            self._broker.check(deadline)
            time.sleep(POLL_SECONDS)

    def process(self) -> int:
        return self._started().pid

    def kill(self) -> None:
        """End the process at once; `launch` starts it again."""
        self._started().kill()

    def stop(self) -> None:
        if self._broker is not None:
            self._broker.stop()

    @property
    def topics(self) -> PulsarTopics:
        check = self._started().check
        return PulsarTopics(
            self.name,
            self.artifacts,
            self.url,
            self.web_url,
            self.folder,
            self.limit,
            check,
            self.compression,
            self.token,
        )

    def _started(self) -> Broker:
        assert self._broker is not None, "start() comes first"
        return self._broker
