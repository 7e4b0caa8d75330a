"""The report of one run of random histories: counts of events, and violations with all that a reader needs.

A violation is raised as `Violation` where it is seen; `Report.collecting` catches it, so that one violation ends the
step that saw it and not the history. Each is written once: its kind, the last operations and faults, and the command
that starts a history with the same seed.

`KNOWN` lists findings that are not mended yet: their violations are counted and fail no run. A finding leaves the table
in the commit that mends it.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

_EVENTS_SHOWN = 60


class Kind(StrEnum):
    """The rule that a violation breaks."""

    LOST = "an acknowledged message is lost"
    MOVED = "a message is stored at another id than the acknowledged one"
    TWICE = "a message is stored twice"
    NEW_AS_DUPLICATE = "a new message is acknowledged as a duplicate"
    SEQUENCE_FORGOTTEN = "deduplication forgot a producer's last sequence id"
    ORDER = "messages are out of order"
    OFFSETS = "offsets are not dense"
    FOREIGN = "a message was read that was not sent"
    RETURNED = "a message was read that was deleted or refused"
    STILL_DELIVERED = "a connected client receives deleted messages for longer than its queue lasts"
    VIEW = "the compacted view is not the fold of the topic"
    KEY = "the newest value of a key is wrong"
    READER = "a reader skips or repeats messages"
    READER_STATE = "a compacted reader ends in another state"
    SUBSCRIPTION = "a subscription did not deliver a message"
    RECEIPT = "a message was delivered again after the receipt of its acknowledgement"
    ANSWER = "an answer is wrong"
    STUCK = "something does not recover although nothing fails"
    VERIFY = "verify reports differences"
    GARBAGE = "garbage collection leaves other objects than the referenced ones"
    LOGGED = "a service logged an error that no fault explains"


@dataclass(frozen=True)
class KnownFinding:
    """A finding that is not mended yet. `topics`: the beginning of the names of the topics that it concerns."""

    finding: str
    kind: Kind
    topics: str = ""


KNOWN: tuple[KnownFinding, ...] = ()


class Violation(AssertionError):
    """A rule that does not hold. `subject`: with the kind, what makes it the same violation when seen again."""

    def __init__(self, kind: Kind, topic: str, text: str, subject: str = "") -> None:
        super().__init__(f"{kind}: {topic}: {text}")
        self.kind = kind
        self.topic = topic
        self.identity = (kind, topic, subject or text)


class LogicalClock:
    """A clock that counts, shared by all threads."""

    def __init__(self) -> None:
        self._count = itertools.count(1)

    def now(self) -> int:
        return next(self._count)


@dataclass
class Report:
    """Counts, events and violations of one run, shared by all threads."""

    replay: str
    folder: Path | None = None
    known: Sequence[KnownFinding] = KNOWN
    ticks: LogicalClock = field(default_factory=LogicalClock)
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    _reported: set[tuple[Kind, str, str]] = field(default_factory=set)
    _events: deque[str] = field(default_factory=lambda: deque(maxlen=500))
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def count(self, event: str, number: int = 1) -> None:
        with self._lock:
            self.counts[event] += number

    def note(self, event: str) -> None:
        """Remember an operation or a fault for the history of a violation."""
        with self._lock:
            self._events.append(f"{self.ticks.now()} {time.strftime('%H:%M:%S')} {event}")

    def add(self, violation: Violation) -> None:
        """Write a violation, once."""
        with self._lock:
            if violation.identity in self._reported:
                return
            self._reported.add(violation.identity)
            finding = self._explain(violation)
            if finding is not None:
                self.counts[f"known {finding}"] += 1
            lately = "\n".join(f"    {event}" for event in list(self._events)[-_EVENTS_SHOWN:])
            status = f"known as {finding}" if finding else "VIOLATION"
            text = (
                f"{status} at {time.strftime('%H:%M:%S')}: {violation}\n  lately:\n{lately}\n  again: {self.replay}\n"
            )
            if finding is None:
                self.violations.append(text)
                print(text, file=sys.stderr, flush=True)
            if self.folder is not None:
                with (self.folder / "violations.txt").open("a") as file:
                    file.write(text)

    def _explain(self, violation: Violation) -> str | None:
        for known in self.known:
            if known.kind is violation.kind and violation.topic.startswith(known.topics):
                return known.finding
        return None

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Inside the context a violation ends the block and is added to the report."""
        try:
            yield
        except Violation as violation:
            self.add(violation)
