"""From a URL to a store: one table, the one place to add a store to.

A new store is a module that implements `ObjectStore`, a line in `OPENERS`, and an entry in the list of
tests/conformance/objects/conftest.py. Openers import their module when they are called, so a process that never uses
S3 never pays for (or needs) boto3. Opening makes no request: a wrong bucket shows at the first call, or in `check`.
What can go wrong here is the URL: `Misconfigured`. This module must not know credentials.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from urllib.parse import urlsplit

from storage.errors import Misconfigured
from storage.objects.interface import ObjectStore, StoreLocation

Opener = Callable[[StoreLocation], ObjectStore]


def _open_file(location: StoreLocation) -> ObjectStore:
    from storage.objects.local import LocalStore

    return LocalStore.at(location)


def _open_s3(location: StoreLocation) -> ObjectStore:
    from storage.objects.s3 import S3Store

    return S3Store(location)


OPENERS: Mapping[str, Opener] = MappingProxyType({"file": _open_file, "s3": _open_s3})
"""URL scheme to what opens it."""


def open_store(
    location: StoreLocation | str, *, s3_endpoint: str | None = None, s3_region: str | None = None
) -> ObjectStore:
    """The store at a location, or at a URL with the S3 settings beside it."""
    if isinstance(location, str):
        location = StoreLocation(location, s3_endpoint, s3_region)
    scheme = urlsplit(location.url).scheme
    opener = OPENERS.get(scheme)
    if opener is None:
        raise Misconfigured(
            f"store URL {location.url!r} has no scheme that is known here",
            "write file:///folder or s3://bucket/prefix",
        )
    return opener(location)
