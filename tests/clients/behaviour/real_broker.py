"""A real Pulsar broker whose answers are recorded: standalone, from Maven's central repository, with tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.peers.artifacts import get_artifacts
from benchmarks.peers.pulsar import CLIENT, Pulsar
from tests.clients.behaviour.endpoint import PROXY, SECRET_KEY, SUPERUSER, Endpoint, token_of

_HEAP = ("-Xms256m", "-Xmx512m", "-XX:MaxDirectMemorySize=768m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_START_SECONDS = 240


@contextmanager
def real_broker(folder: Path) -> Iterator[tuple[str, Endpoint]]:
    """Start a broker; yield its version and its endpoint. Raises PeerFailed."""
    token = token_of(SUPERUSER)
    settings = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
        "tokenSecretKey": SECRET_KEY,
        "superUserRoles": f"{SUPERUSER},{PROXY}",
        "proxyRoles": PROXY,
        "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
        "brokerClientAuthenticationParameters": f"token:{token}",
        "statsUpdateFrequencyInSecs": "2",  # each minute by default
        "statsUpdateInitialDelayInSecs": "1",
    }
    artifacts = get_artifacts("pulsar", CLIENT, folder)
    broker = Pulsar(artifacts, folder / "broker", False, _START_SECONDS, heap=_HEAP, settings=settings, token=token)
    try:
        broker.start()
        yield artifacts.version, Endpoint(broker.web_url, broker.url)
    finally:
        broker.stop()
