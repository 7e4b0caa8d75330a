"""From a URL to a store: one table, the only place to add a store to.

A new store is a module that implements `ObjectStore`, a line in `OPENERS`, and an entry in the list of
tests/conformance/objects/conftest.py. Openers import their module when they are called, so a process that never uses S3
need not import (or have) boto3. Opening makes no request: a wrong bucket fails at the first call, or in
`check_capabilities`. Error: `Misconfigured`, for a bad URL. Must not know: credentials.
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
"""The opener of each URL scheme."""


def open_store(location: StoreLocation | str) -> ObjectStore:
    """Return the store at a location, or at a URL without settings of S3. Makes no request.

    Raises Misconfigured for a URL that is malformed or has an unknown scheme.
    """
    if isinstance(location, str):
        location = StoreLocation(location)
    scheme = urlsplit(location.url).scheme
    opener = OPENERS.get(scheme)
    if opener is None:
        raise Misconfigured(
            f"store URL {location.url!r} has no scheme that is known here",
            "write file:///folder or s3://bucket/prefix",
        )
    return opener(location)
