"""An unmodified standalone broker of Pulsar, from the libraries of `pulsar-broker.lock` or another lock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from benchmarks.peers.artifacts import Artifacts
from benchmarks.peers.broker import ADDRESS
from benchmarks.peers.pulsar import Pulsar
from tests.clients.java.jvm import OPTIONS, java
from tests.clients.java.maven import class_path

VERSION = "4.2.4"
LOCKS = {VERSION: "pulsar-broker.lock", "4.0.7": "pulsar-broker-4.0.lock"}
CLUSTER = "standalone"
_HERE = Path(__file__).resolve().parent
_HEAP = (*OPTIONS, "-Xmx512m", "-XX:MaxDirectMemorySize=768m", "-XX:-UsePerfData")
_STARTS_WITHIN_SECONDS = 240


@contextmanager
def pulsar_broker(
    folder: Path,
    *,
    version: str = VERSION,
    jar: Path | None = None,
    arguments: tuple[str, ...] = (),
    address: str = ADDRESS,
    **settings: str,
) -> Iterator[Pulsar]:
    """Start one with its data in `folder`, and end it. `jar`: of a plug-in. `arguments`: of its program. `address`: at
    which it listens."""
    libraries = class_path(_HERE / LOCKS[version])
    artifacts = Artifacts(version, Path(java()), libraries if jar is None else f"{jar}:{libraries}", "")
    broker = Pulsar(
        artifacts,
        folder / "broker",
        False,
        _STARTS_WITHIN_SECONDS,
        heap=_HEAP,
        settings=settings,
        arguments=arguments,
        address=address,
    )
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()


def replicate_to(
    admin: httpx.Client, cluster: str, url: str, broker_service_url: str, namespace: str, source: str = CLUSTER
) -> None:
    """Let the broker replicate a namespace of the tenant `public`, which it creates, to another cluster.

    `source`: the broker's own cluster.
    """
    clusters = [source, cluster]
    for method, path, body in (
        ("PUT", f"clusters/{cluster}", {"serviceUrl": url, "brokerServiceUrl": broker_service_url}),
        ("POST", "tenants/public", {"adminRoles": [], "allowedClusters": clusters}),
        ("PUT", f"namespaces/public/{namespace}", {"replication_clusters": clusters}),
    ):
        answer = admin.request(method, f"/admin/v2/{path}", json=body)
        assert answer.is_success, answer.text
