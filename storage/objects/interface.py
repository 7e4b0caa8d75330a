"""An object store: immutable bytes under a name, created once or not at all.

It is not a file system: nothing is renamed, appended to or overwritten, there are no folders to create, and names are
compared as text. It is not a cache, does not know what its bytes mean (checksums and formats belong to storage/ledger)
and does not decide what exists (SQL and manifests do). It may be used by many threads at once; it must not be carried
over a pickle or a fork: carry its `location` and open it again.

Invariants that every store keeps, and that tests/conformance/objects checks for each:
  - an object appears whole or not at all, under a name that had none: of several writers of one name exactly one wins,
    the others get `ObjectExists`;
  - when `put` or a writer's clean exit returns, the object is durable, and `get`, `size` and `list` see it;
  - a call that fails leaves no object, and a call whose answer was lost does not report its own object as foreign;
  - `list` is complete and ascends by name (by UTF-8 bytes, as S3 does), and never shows unfinished objects.

Errors (storage/errors.py): `ObjectExists`, `ObjectMissing`, `ObjectDamaged` (shorter than requested), `StorageFull`,
`Unavailable`, `Misconfigured`, and `InvalidInput` for an impossible name or range.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from storage.errors import InvalidInput

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from storage.objects.capability_check import CapabilityReport

MAX_NAME_BYTES = 900
"""S3 keys hold 1024 bytes; the rest is left to the prefix in the store's URL."""
MAX_SEGMENT_BYTES = 255
"""The limit of file systems, and of S3 servers that keep objects in one, for the bytes between two slashes."""


@dataclass(frozen=True)
class StoreLocation:
    """The location of a store: all that an executor needs to open it, without secrets (its own environment has those).

    `url`: `file:///folder` or `s3://bucket/prefix`. `s3_endpoint`: for servers other than AWS, else None.
    """

    url: str
    s3_endpoint: str | None = None
    s3_region: str | None = None


@dataclass(frozen=True)
class ObjectInfo:
    """One object of a listing. `size` in bytes, `modified_ms` since the Unix epoch by the store's own clock."""

    name: str
    size: int
    modified_ms: int


def check_object_name(name: str) -> str:
    """Return the name if a store may hold it; raise InvalidInput otherwise.

    It must be relative and printable, with `/` between segments. No segment may be empty or begin with a dot: `..`
    would leave the store, and dot names are the stores' own.
    """
    if not name or not name.isprintable():
        _refuse_name(name, "it is empty or holds unprintable characters")
    if len(name.encode()) > MAX_NAME_BYTES:
        _refuse_name(name, f"it is longer than {MAX_NAME_BYTES} bytes")
    for segment in name.split("/"):
        if not segment or segment.startswith("."):
            _refuse_name(name, "a segment is empty or begins with a dot")
        if len(segment.encode()) > MAX_SEGMENT_BYTES:
            _refuse_name(name, f"a segment is longer than {MAX_SEGMENT_BYTES} bytes")
    return name


def _refuse_name(name: str, reason: str) -> None:
    raise InvalidInput(
        f"object name {name!r} is not allowed, {reason}", "give a relative, printable name such as ledgers/1/data"
    )


def check_range(name: str, start: int, length: int | None) -> None:
    """Raise InvalidInput unless `start` and `length` can name a range of an object."""
    if start < 0 or (length is not None and length < 0):
        raise InvalidInput(
            f"range start={start} length={length} of object {name} is negative", "ask for a range inside the object"
        )


class ObjectWriter(ABC):
    """A writer of one object, in memory that does not grow with it; a Python file for pyarrow.

    Only a clean exit of its `with` block creates the object (`ObjectExists` if another was first); an exit by an
    exception drops every byte. `close` only ends the writing, because pyarrow also closes its sinks when it fails.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._position = 0
        self._closed = True

    def write(self, data: Buffer, /) -> int:
        """Add all of `data`; return the number of its bytes.

        Raises ValueError outside the `with` block or after `close`.
        """
        if self._closed:
            raise ValueError(f"object {self.name}: write outside of its with block, or after close")
        view = memoryview(data).cast("B")
        self._append(view)
        self._position += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        """Return the number of written bytes: the offset of the next one."""
        return self._position

    def flush(self) -> None:
        """Do nothing: an object is durable once it exists, not before."""
        return

    def close(self) -> None:
        """End the writing; the `with` block decides whether there will be an object."""
        self._closed = True

    @property
    def closed(self) -> bool:
        return self._closed

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def __enter__(self) -> Self:
        self._open()
        self._closed = False
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._closed = True
        try:
            if kind is None:
                self._commit()
        finally:
            self._discard()

    @abstractmethod
    def _open(self) -> None:
        """Acquire temporary space."""

    @abstractmethod
    def _append(self, view: memoryview) -> None:
        """Store the bytes; `view` is not valid afterwards."""

    @abstractmethod
    def _commit(self) -> None:
        """Create the object, durable and create-if-absent."""

    @abstractmethod
    def _discard(self) -> None:
        """Release everything but the object; called once, after `_commit` or instead of it; must not raise."""


class ObjectStore(ABC):
    """Immutable objects by name; the module docstring lists the promises."""

    preferred_read_bytes: int = 8 << 20
    """The size up to which neighbouring ranges are best read together: a request costs more than unneeded bytes."""

    concurrent_requests: int = 0
    """The requests that a reader or writer may send ahead of the one whose answer it uses. 0: answers come at once."""

    can_vanish: bool = False
    """True if other files may appear at the location without an error: the folder of a disk that is not mounted."""

    @property
    @abstractmethod
    def location(self) -> StoreLocation:
        """The location from which `storage.objects.registry.open_store` opens this store, in any process."""

    @property
    def url(self) -> str:
        """The store's URL, for humans."""
        return self.location.url

    @abstractmethod
    def put(self, name: str, data: Buffer) -> None:
        """Create an object with the bytes of `data`, durable at return. Raises `ObjectExists` if the name is taken."""

    @abstractmethod
    def create(self, name: str) -> ObjectWriter:
        """Return a writer for an object too large for memory; use it in a `with` statement."""

    @abstractmethod
    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Return `length` bytes from `start`, or all bytes from there; never fewer.

        Raises `ObjectMissing` if there is no such object, `ObjectDamaged` if it ends before the range does.
        """

    def read_into(self, name: str, start: int, target: memoryview) -> None:
        """Fill all of `target` with the bytes from `start` on; the caller may reuse that memory. Raises as `get`."""
        target[:] = self.get(name, start, len(target))

    @abstractmethod
    def size(self, name: str) -> int:
        """Return the size of an object in bytes. Raises `ObjectMissing` if there is no such object."""

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield objects whose name begins with `prefix` (any text, not only whole segments), ascending by name."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete an object, which need not exist: idempotent."""

    @abstractmethod
    def check_capabilities(self) -> CapabilityReport:
        """Check every promise of the module docstring with temporary objects; return the report, also of broken
        promises.

        Raises any store error.
        """

    def with_timeout(self, seconds: float) -> ObjectStore:
        """Return a store of the same objects for a caller that cannot wait.

        Its calls raise Unavailable after about `seconds` without an answer. The caller closes it separately, unless it
        is this store itself. A store that waits for no other machine, or that throttles, returns itself.
        """
        return self

    def close(self) -> None:
        """Close connections; the store opens new ones if it is used again. Idempotent."""
        return
