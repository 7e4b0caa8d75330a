"""An object store that fails on cue, in front of any other, and that tasks find by its location.

A `Script` says which call meets which fault: the nth call of an operation on names of a kind. `faulty(monkeypatch,
script)` adds the URL schemes `faulty+file` and `faulty+s3` to the table of openers for the length of a test; a process
that opens such a location, a task of a run included, gets a store that asks the script at each call.

    FAIL       Unavailable, before anything happened (a 500, 503 or SlowDown that outlasted all retries)
    FULL       StorageFull, before anything happened
    LOST       the call took effect, and then Unavailable: its answer was lost
    TRUNCATED  a read gets fewer bytes than there are: ObjectDamaged, as every store says it (interface.py)
    ALTERED    a read gets other bytes than were written, and nothing says so: one bit in their middle is turned
    MEANWHILE  something happens elsewhere before the call continues, as when it takes long

What a call is: `put` (one for each object, also for one that was streamed), `get` (also into memory), `size`, `list`,
`delete`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

import pytest

from storage.errors import ObjectDamaged, StorageFull, Unavailable
from storage.ledger import names
from storage.ledger.names import ObjectKind
from storage.objects import registry
from storage.objects.capability_check import CapabilityReport
from storage.objects.interface import ObjectInfo, ObjectStore, ObjectWriter, StoreLocation

if TYPE_CHECKING:
    from typing_extensions import Buffer

PREFIX = "faulty+"


class Kind(Enum):
    """Kinds of faults; the module's docstring explains each."""

    FAIL = auto()
    FULL = auto()
    LOST = auto()
    TRUNCATED = auto()
    ALTERED = auto()
    MEANWHILE = auto()


@dataclass(frozen=True)
class Fault:
    """A fault of `kind` for the `nth` call of `operation` (None: any) on objects of kind `on` (None: any).

    `times`: that many in a row do. `meanwhile`: for MEANWHILE, what happens.
    """

    kind: Kind
    operation: str | None = None
    on: ObjectKind | None = None
    nth: int = 1
    times: int = 1
    meanwhile: Callable[[], object] = lambda: None

    def concerns(self, operation: str, name: str) -> bool:
        if self.operation not in (None, operation):
            return False
        parsed = names.parse(name)
        return self.on is None or (parsed is not None and parsed.kind is self.on)


@dataclass
class Script:
    """Faults to come, and the calls (operation and name) that met one. May be asked from many threads."""

    faults: list[Fault] = field(default_factory=list)
    met: list[tuple[str, str]] = field(default_factory=list)
    _seen: dict[int, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, *faults: Fault) -> None:
        """Forget everything, and count from here."""
        with self._lock:
            self.faults, self.met, self._seen = list(faults), [], {}

    def next(self, operation: str, name: str) -> Fault | None:
        """The fault that this call meets."""
        with self._lock:
            met = None
            for number, fault in enumerate(self.faults):
                if fault.concerns(operation, name):
                    seen = self._seen[number] = self._seen.get(number, 0) + 1
                    if fault.nth <= seen < fault.nth + fault.times:
                        met = fault
            if met is not None:
                self.met.append((operation, name))
        if met is not None and met.kind is Kind.MEANWHILE:
            met.meanwhile()
        return met


def faulty(patch: pytest.MonkeyPatch, script: Script) -> None:
    """Until `patch` is undone, locations with PREFIX open as stores that follow the script."""
    openers = dict(registry.OPENERS)
    for scheme in ("file", "s3"):
        openers[PREFIX + scheme] = lambda location: FaultyStore(registry.open_store(without_prefix(location)), script)
    patch.setattr(registry, "OPENERS", openers)


def with_prefix(location: StoreLocation) -> StoreLocation:
    return StoreLocation(PREFIX + location.url, location.s3_endpoint, location.s3_region)


def without_prefix(location: StoreLocation) -> StoreLocation:
    return StoreLocation(location.url.removeprefix(PREFIX), location.s3_endpoint, location.s3_region)


class FaultyStore(ObjectStore):
    """Another store, with faults in between."""

    def __init__(self, inner: ObjectStore, script: Script) -> None:
        self._inner = inner
        self._script = script
        self.preferred_read_bytes = inner.preferred_read_bytes

    @property
    def location(self) -> StoreLocation:
        return with_prefix(self._inner.location)

    def put(self, name: str, data: Buffer) -> None:
        self.write(name, lambda: self._inner.put(name, data))

    def create(self, name: str) -> ObjectWriter:
        return _FaultyWriter(self._inner.create(name), self)

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        fault = self._meet("get", name)
        data = self._inner.get(name, start, length)
        if fault is None or not data:
            return data
        if fault.kind is Kind.TRUNCATED:
            raise ObjectDamaged(f"object {name} in {self.url} is too short", "restore it")
        if fault.kind is Kind.ALTERED:
            middle = len(data) // 2
            return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        return data

    def size(self, name: str) -> int:
        self._meet("size", name)
        return self._inner.size(name)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        self._meet("list", prefix)
        yield from self._inner.list(prefix)

    def delete(self, name: str) -> None:
        self.write(name, lambda: self._inner.delete(name), "delete")

    def check_capabilities(self) -> CapabilityReport:
        return self._inner.check_capabilities()

    def close(self) -> None:
        self._inner.close()

    def write(self, name: str, take_effect: Callable[[], object], operation: str = "put") -> None:
        fault = self._meet(operation, name)
        take_effect()
        if fault is not None and fault.kind is Kind.LOST:
            raise self._unavailable(name)

    def _meet(self, operation: str, name: str) -> Fault | None:
        fault = self._script.next(operation, name)
        lost_nothing = operation in ("get", "size", "list")
        if fault is not None and (fault.kind is Kind.FAIL or (fault.kind is Kind.LOST and lost_nothing)):
            raise self._unavailable(name)
        if fault is not None and fault.kind is Kind.FULL:
            raise StorageFull(f"no space for object {name} in {self.url}", "free space")
        return fault

    def _unavailable(self, name: str) -> Unavailable:
        return Unavailable(f"cannot reach object {name} in {self.url}, as the test wants it", "try again")


class _FaultyWriter(ObjectWriter):
    """Another store's writer, whose commit is a `put`."""

    def __init__(self, inner: ObjectWriter, store: FaultyStore) -> None:
        super().__init__(inner.name)
        self._inner = inner
        self._store = store

        self._is_committed = False

    def _open(self) -> None:
        self._inner.__enter__()

    def _append(self, view: memoryview) -> None:
        self._inner.write(view)

    def _commit(self) -> None:
        self._store.write(self.name, self._commit_inner)

    def _commit_inner(self) -> None:
        self._is_committed = True
        self._inner.__exit__(None, None, None)

    def _discard(self) -> None:
        if not self._is_committed:
            self._inner.__exit__(Unavailable, None, None)
