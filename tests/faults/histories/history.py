"""What may be found in one topic, known from what was acknowledged: the model of the random histories.

Every message carries a serial number in its properties, so one whose acknowledgement was lost is known when it is read.
Requests overlap, and some answers never come; so each has two times, of a clock that only counts (`LogicalClock`): when
it was sent, and when its answer came. From these follows what a message's fate is:

    THERE    it was acknowledged, or read, and nothing that clears the topic overlapped with that
    GONE     it was known before a truncate or delete began that has succeeded
    MAYBE    one of both: it overlaps with something that clears, or its producer got no answer
    NEVER    it was refused, or had no answer and is not there long after

A violation is raised where it is seen, in a reader's or producer's thread. Several threads share a history; every
public method takes its lock.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto

from storage.model import MessageId


class Violation(AssertionError):
    """Something that must hold does not."""


class LogicalClock:
    """A clock that counts, shared by all threads."""

    def __init__(self) -> None:
        self._count = itertools.count(1)

    def now(self) -> int:
        return next(self._count)


class Fate(Enum):
    """Whether a message is in the topic now."""

    THERE = auto()
    GONE = auto()
    MAYBE = auto()
    NEVER = auto()


@dataclass
class SentMessage:
    """A message that was sent. `known`: the tick at which it was first known to be there; `seen`: a tick at or after
    which it was there last; `id`: once it is known."""

    serial: str
    key: str | None
    value: str | None
    sent_at: int
    sent_seconds: float
    known: int | None = None
    seen: int = -1
    id: MessageId | None = None
    never: bool = False


@dataclass
class Clearing:
    """A truncate or delete. `end` None: it has not succeeded yet."""

    start: int
    end: int | None = None


@dataclass(frozen=True)
class ReadMessage:
    """A message as a reader was given it."""

    serial: str
    id: MessageId
    offset: int
    key: str | None
    value: str | None


@dataclass
class History:
    """One topic. `incarnation` grows with each delete. `hidden_to`: messages below this id were trimmed by force;
    `maybe_hidden_to`: as far as an attempt at it may have come. `missed`: what raw reads did not give though it was
    there before they began; they may have been trimmed. `operating`: held by who operates it."""

    name: str
    ticks: LogicalClock
    policies: dict[str, object]
    incarnation: int = 0
    hidden_to: MessageId | None = None
    maybe_hidden_to: MessageId | None = None
    sent: dict[str, SentMessage] = field(default_factory=dict)
    clearings: list[Clearing] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    missed: list[SentMessage] = field(default_factory=list)
    serials: Iterator[int] = field(default_factory=itertools.count)
    operating: threading.Lock = field(default_factory=threading.Lock)
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def loses_raw(self) -> bool:
        """Whether its cleanup policy ever lets raw messages go."""
        return bool(self.policies.get("cleanup.policy"))

    @property
    def may_hide(self) -> bool:
        """Whether a trim by force hides messages of its compacted ledger, too (C2)."""
        return self.policies.get("cleanup.policy") == ["compact", "delete"]

    def note(self, what: str) -> None:
        """Remember an operation, for the reader of a violation."""
        with self.lock:
            self.events.append(f"{self.ticks.now()}: {what}")

    def violation(self, what: str) -> Violation:
        """The violation, with what was done to the topic lately."""
        with self.lock:
            last = "\n".join(f"    {event}" for event in self.events[-30:])
        return Violation(f"{self.name}: {what}\n  lately:\n{last}")

    # Producers

    def sending(self, key: str | None, value: str | None, seconds: float) -> SentMessage:
        """A message that is about to be sent. Its payload is `value` with the serial in front, so none repeats."""
        with self.lock:
            serial = f"{self.incarnation}.{next(self.serials)}"
            full = None if value is None else f"{serial} {value}"
            one = SentMessage(serial, key, full, self.ticks.now(), seconds)
            self.sent[serial] = one
            return one

    def acknowledge(self, one: SentMessage, at: MessageId) -> None:
        """The producer was told that the message is there."""
        with self.lock:
            self._know(one, at, one.sent_at)

    def refuse(self, one: SentMessage) -> None:
        """The producer was told that it will never be there."""
        with self.lock:
            if one.known is not None:
                raise self.violation(f"{one} was refused, and has been read")
            one.never = True

    def _know(self, one: SentMessage, at: MessageId, there_at: int) -> None:
        if one.id is not None and one.id != at:
            raise self.violation(f"{one} has the id {at}, too")
        one.id = at
        one.known = self.ticks.now() if one.known is None else one.known
        one.seen = max(one.seen, there_at)

    # Operators

    @contextmanager
    def clearing(self) -> Iterator[Clearing]:
        """Inside the context the topic is truncated or deleted, until it succeeds; one at a time."""
        one = Clearing(self.ticks.now())
        with self.lock:
            self.clearings.append(one)
        yield one
        with self.lock:
            one.end = self.ticks.now()

    def delete(self) -> None:
        """The topic is gone; what comes is another one."""
        with self.lock:
            self.incarnation += 1
            self.hidden_to = self.maybe_hidden_to = None

    def hide_maybe(self, before: MessageId) -> None:
        """Somebody asks for a trim below this id, by force."""
        with self.lock:
            self.maybe_hidden_to = max(before, self.maybe_hidden_to or before)

    def hide(self, before: MessageId) -> None:
        """It was done."""
        with self.lock:
            self.hidden_to = max(before, self.hidden_to or before)

    # Readers

    def fate(self, one: SentMessage) -> Fate:
        """Whether a message is there now."""
        with self.lock:
            if one.never:
                return Fate.NEVER
            found = Fate.MAYBE if one.known is None else Fate.THERE
            for clearing in self.clearings:
                if clearing.end is not None and one.known is not None and one.known < clearing.start:
                    return Fate.GONE
                survived = clearing.end is not None and max(one.seen, one.sent_at) > clearing.end
                if not survived:
                    found = Fate.MAYBE
            return found

    def check_read(self, message: ReadMessage, since: int) -> SentMessage:
        """A reader whose request began at the tick `since` was given this. Raises Violation."""
        with self.lock:
            one = self.sent.get(message.serial)
            if one is None:
                raise self.violation(f"{message} was never sent")
            if (one.key, one.value) != (message.key, message.value):
                raise self.violation(f"{message} was sent as {one}")
            if one.never:
                raise self.violation(f"{message} was refused, or gone, and is given")
            for clearing in self.clearings:
                over = clearing.end is not None and clearing.end < since
                if over and one.known is not None and one.known < clearing.start:
                    raise self.violation(f"{message} was cleared ({clearing}), and is given again")
            self._know(one, message.id, since)
            return one

    def last_known(self, key: str, before: int) -> SentMessage | None:
        """The newest message of a key that was there at the tick `before`, whatever became of it since."""
        with self.lock:
            there = [
                item
                for item in self.sent.values()
                if item.key == key and item.known is not None and item.known < before and self.fate(item) is Fate.THERE
            ]
            return max(there, key=_id_of, default=None)

    def acceptable(self, key: str, *, keeps_gone: bool = False) -> set[str | None]:
        """The values of a key (None: it has none) that a whole read may end with, when nothing is under way.

        `keeps_gone`: for a reader that followed the topic; it may have read what is gone since, to its last message.
        """
        with self.lock:
            mine = [item for item in self.sent.values() if item.key == key and not item.never]
            fates = {item.serial: self.fate(item) for item in mine}
            stays = [item for item in mine if fates[item.serial] is Fate.THERE and not self._is_hidden(item)]
            newest = max(stays, key=_id_of, default=None)
            found: set[str | None] = {newest.value if newest else None}
            if newest is not None and self.may_be_hidden(newest):
                found.add(None)
            for item in mine:
                if fates[item.serial] is Fate.MAYBE and (item.id is None or newest is None or item.id > _id_of(newest)):
                    found |= {item.value, None} if self.may_be_hidden(item) else {item.value}
            if keeps_gone:
                last = max((item for item in mine if item.id is not None), key=_id_of, default=None)
                if last is not None:
                    found.add(last.value)
            return found

    def _is_hidden(self, one: SentMessage) -> bool:
        return self.hidden_to is not None and _id_of(one) < self.hidden_to

    def may_be_hidden(self, one: SentMessage) -> bool:
        """Whether a trim by force may have taken it."""
        return self.maybe_hidden_to is not None and (one.id is None or one.id < self.maybe_hidden_to)

    def keys(self) -> set[str]:
        with self.lock:
            return {item.key for item in self.sent.values() if item.key is not None}

    def must_be_there(self) -> list[SentMessage]:
        """Those that are THERE, in the order of their ids."""
        with self.lock:
            return sorted((item for item in self.sent.values() if self.fate(item) is Fate.THERE), key=_id_of)

    def resolve(self, raw: list[ReadMessage], older_than: float) -> int:
        """What had no answer, was sent before `older_than` (seconds) and is not in raw, although raw begins before it,
        will never be there; how many. `raw`: all of it, read when nothing was under way."""
        with self.lock:
            there = {message.serial for message in raw}
            known = [item.known for item in self.sent.values() if item.serial in there and item.known is not None]
            covered_from = min(known, default=None)
            if covered_from is None:
                return 0
            lost = [
                item
                for item in self.sent.values()
                if item.known is None
                and not item.never
                and covered_from < item.sent_at
                and item.sent_seconds < older_than
            ]
            for item in lost:
                item.never = True
            return len(lost)

    def forget(self) -> None:
        """Drop what cannot matter any more, so that an hour does not fill the memory: what is gone or never was, but
        for the last message of each key."""
        with self.lock:
            last: dict[str | None, SentMessage] = {}
            for one in self.sent.values():
                if one.id is not None and (one.key not in last or _id_of(last[one.key]) < one.id):
                    last[one.key] = one
            kept = {item.serial for item in last.values()}
            self.sent = {
                serial: one
                for serial, one in self.sent.items()
                if serial in kept or self.fate(one) in (Fate.THERE, Fate.MAYBE)
            }


def _id_of(one: SentMessage) -> MessageId:
    assert one.id is not None
    return one.id
