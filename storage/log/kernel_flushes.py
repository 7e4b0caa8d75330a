"""Flushes of many files at once without a thread for each: Linux's asynchronous fdatasync (io_submit, FDSYNC).

The kernel does for each file what fdatasync(2) does, in threads of its own, and reports the error of each file. One
thread of this process waits for the ends. So the flushes of a thousand files overlap: the file system commits them
together, and the disk flushes its cache a few times.

Where the kernel has no room, or the system does not have the call or forbids it (another architecture, a sandbox),
`begin_flushes` takes fewer flushes, or none, and the caller uses `os.fdatasync`. Must not know: segments.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import platform
import threading
from collections.abc import Callable, Sequence

FileDescriptor = int
FlushEnd = Callable[[OSError | None], object]
"""Is called once when a flush has ended, with its error; must be quick, and must not raise."""

MOST = 2048
"""Flushes under way at once; fewer where the system has room for fewer (fs.aio-max-nr)."""
_FEWER = 256
IDLE_SECONDS = 5
"""The time without a flush after which the waiting thread ends."""
_CALLS = {"x86_64": (206, 209, 208), "aarch64": (0, 2, 4)}
"""The numbers of io_setup, io_submit and io_getevents, by architecture."""
_FDSYNC = 3
_NOT_KNOWN = frozenset({errno.EINVAL, errno.ENOSYS, errno.EPERM})
"""Errors of a kernel, or of a file system, that does not have the call."""
_log = logging.getLogger(__name__)


class _Request(ctypes.Structure):
    """`struct iocb` of a little-endian machine."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("flags", ctypes.c_int32),
        ("operation", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("descriptor", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("more_flags", ctypes.c_uint32),
        ("event_descriptor", ctypes.c_uint32),
    )


class _Event(ctypes.Structure):
    """`struct io_event`."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("request", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("result2", ctypes.c_int64),
    )


class _Timespec(ctypes.Structure):
    """`struct timespec`."""

    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class KernelFlushes:
    """A flusher of files that uses the asynchronous fdatasync of Linux, for one process. Thread-safe."""

    def __init__(self, machine: str | None = None) -> None:
        """`machine`: the architecture, as `uname -m` names it; None: this one."""
        self._lock = threading.Lock()
        self._is_waited_for = False
        self._is_known = True
        self._free: list[int] = []
        self._ends: list[FlushEnd | None] = [None] * MOST
        self._requests = (_Request * MOST)()
        self._events = (_Event * MOST)()
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        self._call.restype = ctypes.c_long
        self._context = ctypes.c_ulong(0)
        calls = _CALLS.get(machine or platform.machine())
        if calls is not None:
            setup, self._submit, self._get_events = (ctypes.c_long(number) for number in calls)
            for size in (MOST, _FEWER):
                if self._call(setup, ctypes.c_long(size), ctypes.byref(self._context)) == 0:
                    self._free = list(range(size))
                    break
        self._most = len(self._free)

    @property
    def is_supported(self) -> bool:
        """True if this system can flush files asynchronously."""
        return self._is_known and self._context.value != 0

    def begin_flushes(self, flushes: Sequence[tuple[FileDescriptor, FlushEnd]]) -> int:
        """Begin to flush files, each a descriptor and a callback that another thread calls at the end of its flush.

        Return the number of flushes that were begun, the first ones; the caller flushes the others.
        """
        with self._lock:
            if not self.is_supported or not (self._is_waited_for or self._start_thread()):
                return 0
            slots = [self._free.pop() for _ in range(min(len(flushes), len(self._free)))]
            if not slots:
                return 0
            pointers = (ctypes.POINTER(_Request) * len(slots))()
            for place, (slot, (descriptor, end)) in enumerate(zip(slots, flushes, strict=False)):
                request = self._requests[slot]
                request.data, request.operation, request.descriptor = slot, _FDSYNC, descriptor
                pointers[place] = ctypes.pointer(request)
                self._ends[slot] = end
            begun = max(0, int(self._call(self._submit, self._context, ctypes.c_long(len(slots)), pointers)))
            self._free += slots[begun:]
            if not begun and ctypes.get_errno() in _NOT_KNOWN:
                self._is_known = False
        return begun

    def _start_thread(self) -> bool:
        """Start the thread that waits for the ends of flushes; return False if no thread can be started. The caller
        holds the lock."""
        try:
            threading.Thread(target=self._wait_for_flushes, name="flushes", daemon=True).start()
        except RuntimeError:  # the limit of threads
            return False
        self._is_waited_for = True
        return True

    def _wait_for_flushes(self) -> None:
        events, seconds = self._events, _Timespec(IDLE_SECONDS, 0)
        while True:
            count = self._call(
                self._get_events, self._context, ctypes.c_long(1), ctypes.c_long(MOST), events, ctypes.byref(seconds)
            )
            if count <= 0:  # the time has passed, or a signal came
                with self._lock:
                    if len(self._free) == self._most:
                        self._is_waited_for = False
                        return
                continue
            ended = [(event.data, event.result) for event in events[:count]]
            with self._lock:
                ends = [(self._ends[slot], result) for slot, result in ended]
                self._free += [slot for slot, _ in ended]
            for end, result in ends:
                assert end is not None
                try:
                    end(None if result >= 0 else OSError(-result, os.strerror(-result)))
                except Exception:
                    _log.exception("the end of a flush was not noted")


_by_process: dict[int, KernelFlushes] = {}
_creation = threading.Lock()


def kernel_flushes() -> KernelFlushes:
    """Return the one asynchronous flusher of this process; a process that was forked has its own."""
    with _creation:
        pid = os.getpid()
        if pid not in _by_process:
            _by_process[pid] = KernelFlushes()
        return _by_process[pid]
