"""Comparisons of schemas, in processes that can be killed.

Definitions come from clients, and a comparison holds Python's lock while it computes. Small ones are compared in the
caller's thread, which takes a few milliseconds. All others are compared by a child process: it is started when it is
first needed, serves one check at a time, and is killed when a check exceeds its seconds; the next check starts another.

A check is one caller's request about one schema: it may compare the schema with many versions, and its seconds count
for all of them. At most `PROCESSES` checks run at the same time. One tenant has at most `CHECKS_OF_TENANT` that run or
wait, so that a tenant cannot keep other tenants from comparing theirs.

Blocks. The child imports this module and Avro, and nothing else of the service.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import NamedTuple

from api.broker.avro_resolution import MalformedDefinition, TooComplex
from api.broker.schema_compatibility import Comparison, incompatibility
from api.broker.shares import Shares
from storage.errors import Unavailable

PROCESSES = 2
CHECKS_OF_TENANT = 4
CHECK_SECONDS = 10.0
"""Seconds of comparing that one check may take. One comparison within the bounds of `avro_resolution.py` takes about
three on a free machine."""
START_SECONDS = 60.0
"""Seconds after which a child that has not reported its start is killed."""
SMALL_BYTES = 16 << 10
"""Bytes of both definitions up to which they are compared in the caller's thread."""
SMALL_STEPS = 5_000
_RECURSION = 20_000


class ComparisonAnswer(NamedTuple):
    """The result of a comparison of schemas in a child process.

    `kind`: result, malformed or complex. `text`: the incompatibility, empty if there is none; or the reason of
    malformed or complex. `seconds`: the duration of the comparison.
    """

    kind: str
    text: str
    seconds: float


class ComparisonProcess:
    """A child process that compares schemas, one comparison at a time. Raises Unavailable if it cannot be started."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, child_end = context.Pipe()
        self._process = context.Process(target=serve_comparisons, args=(child_end,), name="schemas", daemon=True)
        try:
            self._process.start()
        except OSError as error:
            self._connection.close()
            raise Unavailable(f"no process for comparing schemas can be started: {error}", "try again") from error
        finally:
            child_end.close()
        self.is_running = False

    def compare(self, comparison: Comparison, seconds: float) -> ComparisonAnswer:
        """Send a comparison of schemas to the child process, and return its result.

        `seconds`: the time limit of the comparison, without the start of the child. Raises TimeoutError, EOFError,
        OSError; then the child cannot be used any more.
        """
        if not self.is_running:
            if not self._connection.poll(START_SECONDS):
                raise TimeoutError
            self._connection.recv()
            self.is_running = True
        start = time.monotonic()
        self._connection.send(comparison)
        if seconds <= 0 or not self._connection.poll(seconds):
            raise TimeoutError
        kind, text = self._connection.recv()
        return ComparisonAnswer(str(kind), str(text), time.monotonic() - start)

    def kill(self) -> None:
        """Kill the child process, and wait for its end."""
        self._process.kill()
        self._connection.close()
        self._process.join()


class SchemaCheck:
    """A check of one schema: several comparisons, which share a time limit of `seconds`."""

    def __init__(self, processes: SchemaProcesses, seconds: float) -> None:
        self._processes = processes
        self._seconds = seconds
        self.seconds_left = seconds

    def incompatibility(self, comparison: Comparison) -> str:
        """Return the reason why a new schema is incompatible with an old one; empty: it is compatible.

        Small schemas are compared in this thread, others in a child process. Raises MalformedDefinition; TooComplex,
        also if the time limit of the check is exceeded; Unavailable.
        """
        if comparison.size <= SMALL_BYTES:
            with suppress(TooComplex, RecursionError):
                return incompatibility(comparison, SMALL_STEPS)
        try:
            kind, text, seconds = self._processes.compare(comparison, self.seconds_left)
        except TimeoutError:
            raise TooComplex(f"comparing it takes longer than {self._seconds:g} s") from None
        except (EOFError, OSError) as error:
            raise Unavailable("the process that compared the schema has ended", "try again", is_public=True) from error
        self.seconds_left -= seconds
        if kind == "malformed":
            raise MalformedDefinition(text)
        if kind == "complex":
            raise TooComplex(text)
        return text


class SchemaProcesses:
    """The processes of a service that compare schemas. `seconds`: time limit of each check."""

    def __init__(self, seconds: float = CHECK_SECONDS) -> None:
        self._seconds = seconds
        self._slots = threading.Semaphore(PROCESSES)
        self._lock = threading.Lock()
        self._idle: list[ComparisonProcess] = []
        self._checks = Shares[str]()

    @contextmanager
    def check(self, tenant: str) -> Iterator[SchemaCheck]:
        """Yield a check of a schema, which counts for a tenant during the context.

        Raises Unavailable if the tenant has `CHECKS_OF_TENANT` checks already.
        """
        with self._lock:
            if self._checks[tenant] >= CHECKS_OF_TENANT:
                raise Unavailable(
                    f"{CHECKS_OF_TENANT} schemas of tenant {tenant} are being compared", "try again", is_public=True
                )
            self._checks.add(tenant, 1)
        try:
            yield SchemaCheck(self, self._seconds)
        finally:
            with self._lock:
                self._checks.add(tenant, -1)

    def compare(self, comparison: Comparison, seconds: float) -> ComparisonAnswer:
        """Compare schemas in an idle child process or a new one. Wait while `PROCESSES` processes are busy.

        After an error the process is killed. Raises the errors of `ComparisonProcess.compare`; Unavailable if no
        process can be started.
        """
        with self._slots:
            with self._lock:
                child = self._idle.pop() if self._idle else None
            child = child or ComparisonProcess()
            try:
                answer = child.compare(comparison, seconds)
            except BaseException:
                child.kill()
                raise
            with self._lock:
                self._idle.append(child)
            return answer

    def close(self) -> None:
        """Kill the idle processes. Busy ones end with their check, or with the service."""
        with self._lock:
            children, self._idle = self._idle, []
        for child in children:
            child.kill()


def serve_comparisons(connection: Connection) -> None:
    """Receive comparisons of schemas from a pipe and send the results, until the other end is closed.

    The main function of the child process.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the service, which ends the child
    with suppress(OSError):
        os.nice(5)
    sys.setrecursionlimit(_RECURSION)
    with suppress(EOFError, OSError):
        connection.send("ready")
        while True:
            connection.send(_comparison_outcome(connection.recv()))


def _comparison_outcome(comparison: Comparison) -> tuple[str, str]:
    """Compare two schemas, and return the kind and text of the ComparisonAnswer."""
    try:
        return "result", incompatibility(comparison)
    except MalformedDefinition as error:
        return "malformed", str(error)
    except TooComplex as error:
        return "complex", str(error)
    except (RecursionError, MemoryError):
        return "complex", "it is nested too deep"
