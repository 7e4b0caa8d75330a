"""The report of one random run: counts of events, and violations with all that a reader needs.

A violation is raised as `Violation` where it is seen. It ends the run, or only the step that
saw it, where `Report.collecting` catches it. Each is written once: its kind, the last operations and faults, and the
command that starts a run with the same seed.

`KNOWN` lists findings that are not mended yet: their violations are counted and fail no run. A finding leaves the table
in the commit that mends it.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path


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
    MODEL = "a topic is not what its model says"


@dataclass(frozen=True)
class KnownFinding:
    """A finding that is not mended yet. `topics`: the beginning of the names of the topics that it concerns."""

    finding: str
    kind: Kind
    topics: str = ""


KNOWN: tuple[KnownFinding, ...] = ()


class Violation(BaseException):
    """A rule that does not hold. `subject`: with the kind, what makes it the same violation when seen again.

    It is not an Exception, so that no code under test takes it for an error of its own.
    """

    def __init__(self, text: str, kind: Kind = Kind.MODEL, topic: str = "", subject: str = "") -> None:
        super().__init__(f"{kind}: {topic}: {text}" if topic else text)
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
    """Counts, events and violations of one run, shared by all threads.

    `stamped`: each event begins with its tick and time. Of `events` a violation shows the last `events_shown`.
    """

    replay: str
    folder: Path | None = None
    known: Sequence[KnownFinding] = KNOWN
    stamped: bool = True
    events_shown: int = 60
    ticks: LogicalClock = field(default_factory=LogicalClock)
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    _reported: set[tuple[Kind, str, str]] = field(default_factory=set)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def count(self, event: str, number: int = 1) -> None:
        with self._lock:
            self.counts[event] += number

    def note(self, event: str) -> None:
        """Remember an operation or a fault for the events of a violation."""
        with self._lock:
            stamp = f"{self.ticks.now()} {time.strftime('%H:%M:%S')} " if self.stamped else ""
            self.events.append(stamp + event)

    def failure(self, headline: str) -> str:
        """Return a text with the last events and the command that repeats the run."""
        with self._lock:
            lines = [headline, *(f"  {event}" for event in self.events[-self.events_shown :]), f"again: {self.replay}"]
        return "\n".join(lines)

    def add(self, violation: Violation) -> None:
        """Write a violation, once."""
        with self._lock:
            if violation.identity in self._reported:
                return
            self._reported.add(violation.identity)
            finding = self._explain(violation)
            if finding is not None:
                self.counts[f"known {finding}"] += 1
            status = f"known as {finding}" if finding else "VIOLATION"
            text = self.failure(f"{status} at {time.strftime('%H:%M:%S')}: {violation}") + "\n"
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


def line_of(figures: Mapping[str, object]) -> str:
    """Return the line of figures that a run ends with."""
    return ", ".join(f"{name}: {figure}" for name, figure in figures.items())
