"""Counts of what a call costs: statements of the database, and requests of an object store.

The object store is in memory, and tasks in this process find it by its location.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import event

from storage.errors import ObjectDamaged, ObjectExists, ObjectMissing
from storage.ledger import names
from storage.metadata.store import MetadataStore
from storage.objects import registry
from storage.objects.capability_check import CapabilityReport
from storage.objects.interface import ObjectInfo, ObjectStore, ObjectWriter, StoreLocation

if TYPE_CHECKING:
    from typing_extensions import Buffer


def statements(store: MetadataStore, call: Callable[[], object]) -> list[str]:
    """Return the statements that a call executes in this thread; one with many rows of values counts once."""
    seen: list[str] = []
    thread = threading.get_ident()

    def before(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        if threading.get_ident() == thread:
            seen.append(statement)

    event.listen(store.database.engine, "before_cursor_execute", before)
    try:
        call()
    finally:
        event.remove(store.database.engine, "before_cursor_execute", before)
    return seen


class CountedStore(ObjectStore):
    """Objects in a dict; `requests` counts (operation, kind of object), a streamed object as one put.

    What a request costs on a local disk or over a network is not here to be seen: only how many there are.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        """Until `patch` is undone, its location opens as this same store."""
        self.objects: dict[str, bytes] = {}
        self.requests: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()
        patch.setattr(registry, "OPENERS", {**registry.OPENERS, "memory": lambda _: self})

    @property
    def location(self) -> StoreLocation:
        return StoreLocation("memory:///")

    def put(self, name: str, data: Buffer) -> None:
        self._count("put", name)
        with self._lock:
            if name in self.objects:
                raise ObjectExists(f"there is an object {name}", "choose another name")
            self.objects[name] = bytes(memoryview(data))

    def create(self, name: str) -> ObjectWriter:
        return _Writer(name, self)

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        self._count("get", name)
        data = self._object(name)
        end = len(data) if length is None else start + length
        if end > len(data):
            raise ObjectDamaged(f"object {name} is too short", "restore it")
        return data[start:end]

    def size(self, name: str) -> int:
        self._count("size", name)
        return len(self._object(name))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        self._count("list", prefix)
        for name in sorted(self.objects):
            if name.startswith(prefix):
                yield ObjectInfo(name, len(self.objects[name]), 0)

    def delete(self, name: str) -> None:
        self._count("delete", name)
        self.objects.pop(name, None)

    def check_capabilities(self) -> CapabilityReport:
        raise NotImplementedError

    def _object(self, name: str) -> bytes:
        if name not in self.objects:
            raise ObjectMissing(f"there is no object {name}", "restore it")
        return self.objects[name]

    def _count(self, operation: str, name: str) -> None:
        parsed = names.parse(name)
        with self._lock:
            self.requests[operation, str(parsed.kind) if parsed else "other"] += 1


class _Writer(ObjectWriter):
    """Gathers an object's bytes."""

    def __init__(self, name: str, store: CountedStore) -> None:
        super().__init__(name)
        self._store = store
        self._data = bytearray()

    def _open(self) -> None:
        return

    def _append(self, view: memoryview) -> None:
        self._data += view

    def _commit(self) -> None:
        self._store.put(self.name, self._data)

    def _discard(self) -> None:
        return
