"""The list of object stores: a store is in the conformance suite by being in `STORES`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage.objects.interface import ObjectStore, StoreLocation
from storage.objects.local import LocalStore
from storage.objects.s3 import S3Requests, S3Store
from tests.servers.fixtures_s3 import S3Server, moto_server, use_credentials, versitygw

__all__ = ["moto_server", "versitygw"]

PART_BYTES = 5 << 20
"""The smallest part that S3 servers take."""
THRESHOLD_BYTES = 6 << 20

Opener = Callable[[pytest.FixtureRequest, Path], ObjectStore]


def s3_store(server: S3Server, bucket: str, *, attempts: int = 3) -> S3Store:
    """A store with prefix on the server, whose large objects are small enough for tests."""
    return S3Store(
        StoreLocation(f"s3://{bucket}/some/prefix", server.endpoint, "us-east-1"),
        S3Requests(THRESHOLD_BYTES, PART_BYTES, attempts),
    )


def _local(request: pytest.FixtureRequest, folder: Path) -> ObjectStore:
    return LocalStore(folder / "objects of mine")


def _on_server(fixture: str) -> Opener:
    def open_it(request: pytest.FixtureRequest, folder: Path) -> ObjectStore:
        server: S3Server = request.getfixturevalue(fixture)
        use_credentials(request.getfixturevalue("monkeypatch"), server)
        return s3_store(server, server.make_bucket())

    return open_it


STORES: dict[str, Opener] = {
    "local": _local,
    "moto": _on_server("moto_server"),
    "versitygw": _on_server("versitygw"),
}


@pytest.fixture(params=list(STORES))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    """An empty store, once for each in the list."""
    opened = STORES[request.param](request, tmp_path)
    try:
        yield opened
    finally:
        opened.close()
