"""The model of one topic: which messages may, must or must not be in it, known from what was acknowledged and read.

Every message carries a serial number in its properties, so a message whose acknowledgement was lost is recognised when
it is read. Requests overlap, and some answers never come; so each message has two times of a logical clock: when it was
sent, and when it was first known to be stored. They decide its fate:

    THERE    it was acknowledged, or read, and no deletion of the topic overlapped with that
    GONE     it was known before a truncate or delete began that has succeeded
    MAYBE    either: it overlaps with a deletion, or its producer got no answer
    NEVER    it was refused, or had no answer and is not in the topic long after

A client that sends again after a broken connection may store a message twice where deduplication is off (`repeats`);
then its newest id counts, and as long as it has no answer a further copy may follow (`is_final`).

A violation is raised where it is seen, in a reader's or producer's thread. Several threads share a history; every
public method takes its lock. Ids are compared with batch index 0 for messages that are in no batch.
"""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto

from storage.model import MessageId
from tests.faults.engine.report import Kind, Report, Violation


class Fate(Enum):
    """The state of a message as far as it is known."""

    THERE = auto()
    GONE = auto()
    MAYBE = auto()
    NEVER = auto()


@dataclass(frozen=True, eq=False)
class Sender:
    """One producer. `ordered`: all its messages keep their order, else those of each key; `repeats`: it sends again."""

    ordered: bool = True
    repeats: bool = False


@dataclass(eq=False)
class SentMessage:
    """A message that was sent. `known`: the tick at which it was first known to be stored; `seen`: a tick at or after
    which it was stored last; `acknowledged`: the id of its receipt; `ids`: those under which it was seen."""

    serial: str
    key: str | None
    value: str | None
    sender: Sender
    number: int
    sent_at: int
    sent_seconds: float
    event_time: int | None = None
    known: int | None = None
    seen: int = -1
    acknowledged: MessageId | None = None
    ids: set[MessageId] = field(default_factory=set)
    never: bool = False
    is_final: bool = False

    @property
    def id(self) -> MessageId | None:
        """The newest id under which it is stored, once one is known."""
        return max(self.ids, default=None)

    def __str__(self) -> str:
        return (
            f"{self.serial} (key {self.key}, number {self.number} of its producer, id {self.id}, "
            f"acknowledged {self.acknowledged}, sent at {self.sent_at}, known at {self.known})"
        )


@dataclass
class Clearing:
    """A truncate or delete. `end` None: it has not succeeded yet. `deletes`: the topic is deleted, and forgets what its
    producers have sent."""

    start: int
    end: int | None = None
    deletes: bool = False


@dataclass(frozen=True)
class ReadMessage:
    """A message as a reader received it. `offset` and `rank`: -1 and None where the reader does not learn them."""

    serial: str
    id: MessageId
    key: str | None
    value: str | None
    offset: int = -1
    time: int = 0


@dataclass
class Subscription:
    """A subscription of the topic. `delivered`: serials that it delivered; `receipts`: slots acknowledged by receipt.

    One actor at a time works with it: the holder of `lock`.
    """

    name: str
    lock: threading.Lock = field(default_factory=threading.Lock)
    delivered: set[str] = field(default_factory=set)
    receipts: set[tuple[int, int, int]] = field(default_factory=set)


@dataclass(frozen=True)
class Traits:
    """The operations tried with a topic, and the strictness of its comparison. `policies`: those of its namespace."""

    policies: dict[str, object] = field(default_factory=dict)
    subscriptions: tuple[str, ...] = ()
    partitions: int = 0
    readers: tuple[str, ...] = ("compacted",)
    changing: bool = False

    @property
    def cleanup(self) -> object:
        return self.policies.get("cleanup.policy")

    @property
    def loses_raw(self) -> bool:
        """Return whether its cleanup policy or a retention ever removes raw messages."""
        return bool(self.cleanup) or self.changing

    @property
    def hides(self) -> bool:
        """Return whether a forced trim also hides messages of the compacted ledger (C2)."""
        return self.cleanup == ["compact", "delete"]

    @property
    def expires(self) -> bool:
        """Return whether messages disappear by time, size or a changing policy, so that nothing must stay."""
        return self.changing or "retention.ms" in self.policies

    @property
    def by_event_time(self) -> bool:
        return bool(self.policies.get("compaction.event-time-order"))

    @property
    def deduplicates(self) -> bool:
        return bool(self.policies.get("deduplication.enabled"))

    @property
    def folds_by_id(self) -> bool:
        """Return whether the newest message of a key is the one with the largest id, in one log."""
        return not (self.by_event_time or self.partitions or self.expires)


@dataclass
class History:
    """One topic. `incarnation` grows with each delete. `hidden_to`: messages below this id were trimmed by force;
    `maybe_hidden_to`: the bound of an attempt at it. `missed`: messages that raw reads passed over; they may have been
    trimmed. `operating`: held by the actor that operates the topic."""

    name: str
    traits: Traits
    report: Report
    incarnation: int = 0
    partitions: int = 0
    hidden_to: MessageId | None = None
    maybe_hidden_to: MessageId | None = None
    sent: dict[str, SentMessage] = field(default_factory=dict)
    clearings: list[Clearing] = field(default_factory=list)
    missed: list[SentMessage] = field(default_factory=list)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    sequences: dict[str, list[SentMessage]] = field(default_factory=lambda: defaultdict(list))
    serials: Iterator[int] = field(default_factory=itertools.count)
    operating: threading.Lock = field(default_factory=threading.Lock)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self.partitions = self.traits.partitions
        self.subscriptions = {name: Subscription(name) for name in self.traits.subscriptions}

    @property
    def full_name(self) -> str:
        return f"persistent://public/{self.name}/{self.name}"

    @property
    def logs(self) -> list[str]:
        """The names of its logs: the topic's own, or those of its partitions."""
        return [f"{self.name}-partition-{n}" for n in range(self.partitions)] if self.partitions else [self.name]

    @property
    def admin(self) -> str:
        """The path of the topic's admin routes."""
        return self.admin_of(self.name)

    def admin_of(self, log: str) -> str:
        return f"/admin/v2/persistent/public/{self.name}/{log}"

    def now(self) -> int:
        return self.report.ticks.now()

    def note(self, event: str) -> None:
        self.report.note(f"{self.name}: {event}")

    def violation(self, kind: Kind, text: str, subject: str = "") -> Violation:
        return Violation(text, kind, self.name, subject)

    # Producers

    def sending(
        self,
        key: str | None,
        value: str | None,
        seconds: float,
        sender: Sender,
        number: int,
        event_time: int | None = None,
    ) -> SentMessage:
        """Return a message that is about to be sent. Its payload is `value` with the serial in front: none repeats."""
        with self.lock:
            serial = f"{self.incarnation}.{next(self.serials)}"
            payload = None if value is None else f"{serial} {value}"
            message = SentMessage(serial, key, payload, sender, number, self.now(), seconds, event_time)
            self.sent[serial] = message
            return message

    def acknowledge(self, message: SentMessage, at: MessageId | None) -> None:
        """Note the receipt of a message; `at` None: it names no id."""
        with self.lock:
            message.acknowledged = at
            message.is_final = True
            self._know(message, at, message.sent_at)

    def refuse(self, message: SentMessage) -> None:
        """Note an answer that the message will never be stored."""
        with self.lock:
            if message.known is not None:
                raise self.violation(Kind.RETURNED, f"{message} was refused, and has been read", message.serial)
            message.never = True

    def _know(self, message: SentMessage, at: MessageId | None, stored_at: int) -> None:
        if at is not None:
            # a message without a receipt is sent again to the topic that is created after a delete
            repeats = message.sender.repeats or self._was_deleted_since(message.sent_at)
            if message.ids and at not in message.ids and not repeats:
                others = ", ".join(map(str, message.ids))
                message.ids.add(at)
                raise self.violation(Kind.TWICE, f"{message} is stored at {at} and at {others}", message.serial)
            message.ids.add(at)
        message.known = self.now() if message.known is None else message.known
        message.seen = max(message.seen, stored_at)

    # Operators

    @contextmanager
    def clearing(self, *, deletes: bool = False) -> Iterator[Clearing]:
        """Inside the context the topic is truncated or deleted, until it succeeds; one at a time."""
        clearing = Clearing(self.now(), deletes=deletes)
        with self.lock:
            self.clearings.append(clearing)
        yield clearing
        with self.lock:
            clearing.end = self.now()

    def delete(self) -> None:
        """Begin the next incarnation of the topic."""
        with self.lock:
            self.incarnation += 1
            self.hidden_to = self.maybe_hidden_to = None

    def hide_maybe(self, before: MessageId) -> None:
        """Note a request for a forced trim below this id."""
        with self.lock:
            self.maybe_hidden_to = max(before, self.maybe_hidden_to or before)

    def hide(self, before: MessageId) -> None:
        """Note the success of that request."""
        with self.lock:
            self.hidden_to = max(before, self.hidden_to or before)

    # Readers

    def was_cleared_since(self, tick: int) -> bool:
        """Return whether the topic was cleared, or may have been, since that tick."""
        with self.lock:
            return any(clearing.end is None or clearing.end > tick for clearing in self.clearings)

    def _was_deleted_since(self, tick: int) -> bool:
        return any(item.deletes and (item.end is None or item.end > tick) for item in self.clearings)

    def fate(self, message: SentMessage) -> Fate:
        with self.lock:
            if message.never:
                return Fate.NEVER
            fate = Fate.MAYBE if message.known is None else Fate.THERE
            for clearing in self.clearings:
                if clearing.end is not None and message.known is not None and message.known < clearing.start:
                    return Fate.GONE
                if clearing.end is None or max(message.seen, message.sent_at) <= clearing.end:
                    fate = Fate.MAYBE
            return fate

    def check_read(self, message: ReadMessage, since: int) -> SentMessage:
        """Compare a message with the one that was sent. `since`: the tick at which its request or its connection began.

        Raises Violation.
        """
        with self.lock:
            sent = self.sent.get(message.serial)
            if sent is None:
                raise self.violation(Kind.FOREIGN, f"{message} was never sent, or was deleted long ago", message.serial)
            if (sent.key, sent.value or None) != (message.key, message.value or None):
                raise self.violation(Kind.FOREIGN, f"{message} was sent as {sent}", message.serial)
            if sent.never:
                raise self.violation(Kind.RETURNED, f"{message} was refused or is gone, and is read", message.serial)
            for clearing in self.clearings:
                over = clearing.end is not None and clearing.end < since
                if over and sent.known is not None and sent.known < clearing.start:
                    raise self.violation(Kind.RETURNED, f"{sent} was cleared ({clearing}) and is read", message.serial)
            self._know(sent, message.id, since)
            return sent

    def last_known(self, key: str, before: int) -> SentMessage | None:
        """Return the newest message of a key that was stored at the tick `before`, whatever its fate since."""
        with self.lock:
            stored = [
                item
                for item in self.sent.values()
                if item.key == key and item.ids and item.known is not None and item.known < before
                if self.fate(item) is Fate.THERE
            ]
            return max(stored, key=id_of, default=None)

    def acceptable(self, key: str, *, keeps_gone: bool = False) -> set[str | None]:
        """Return the values of a key (None: it has none) that a whole read may end with, when nothing is under way.

        `keeps_gone`: for a reader that followed the topic; it may have read messages that are gone since, to the last.
        """
        with self.lock:
            of_key = [item for item in self.sent.values() if item.key == key and not item.never]
            fates = {item.serial: self.fate(item) for item in of_key}
            stays = [item for item in of_key if fates[item.serial] is Fate.THERE and item.ids]
            stays = [item for item in stays if not self._is_hidden(item)]
            newest = max(stays, key=id_of, default=None)
            values: set[str | None] = {newest.value if newest else None}
            if newest is not None and self.may_be_hidden(newest):
                values.add(None)
            for item in of_key:
                if fates[item.serial] is Fate.GONE or item is newest:
                    continue
                is_open = fates[item.serial] is Fate.MAYBE or not item.is_final
                if is_open and (not item.is_final or not item.ids or newest is None or id_of(item) > id_of(newest)):
                    values |= {item.value, None} if self.may_be_hidden(item) else {item.value}
            if keeps_gone:
                last = max((item for item in of_key if item.ids), key=id_of, default=None)
                if last is not None:
                    values.add(last.value)
            return values

    def _is_hidden(self, message: SentMessage) -> bool:
        return self.hidden_to is not None and id_of(message) < self.hidden_to

    def may_be_hidden(self, message: SentMessage) -> bool:
        """Return whether a forced trim may have removed the message."""
        at = message.id
        return self.maybe_hidden_to is not None and (at is None or at < self.maybe_hidden_to)

    def must_be_stored(self) -> list[SentMessage]:
        """Return the messages that are THERE, those with an id first, by id."""
        with self.lock:
            stored = [item for item in self.sent.values() if self.fate(item) is Fate.THERE]
            return sorted(stored, key=lambda item: (not item.ids, item.id or MessageId(0, 0), item.sent_at))

    def resolve(self, raw: list[ReadMessage], older_than: float) -> int:
        """Settle messages without an answer, sent before `older_than` (seconds), with all of raw, read without traffic.

        Where raw begins before such a message was sent, the message is in raw, or never will be. Return how many are
        not.
        """
        with self.lock:
            serials = {message.serial for message in raw}
            known = [item.known for item in self.sent.values() if item.serial in serials and item.known is not None]
            covered_from = min(known, default=None)
            if covered_from is None:
                return 0
            lost = 0
            for item in self.sent.values():
                if item.is_final or item.never or item.sent_at <= covered_from or item.sent_seconds >= older_than:
                    continue
                item.is_final = True
                if item.known is None:
                    item.never = True
                    lost += 1
            return lost

    def forget(self) -> None:
        """Drop messages that cannot matter any more, so that an hour does not fill the memory.

        Those are the ones that are gone or never were stored, but for the last message of each key.
        """
        with self.lock:
            last: dict[str | None, SentMessage] = {}
            for item in self.sent.values():
                if item.ids and (item.key not in last or id_of(last[item.key]) < id_of(item)):
                    last[item.key] = item
            kept = {item.serial for item in last.values()}
            self.sent = {
                serial: item
                for serial, item in self.sent.items()
                if serial in kept or self.fate(item) in (Fate.THERE, Fate.MAYBE)
            }
            for name, items in self.sequences.items():
                self.sequences[name] = items[-500:]


def id_of(message: SentMessage) -> MessageId:
    assert message.id is not None
    return message.id


def slot(ledger: int, entry: int, batch_index: int, partition: int = -1) -> MessageId:
    """Return an id as the model compares it: batch index 0 for a message that is in no batch."""
    return MessageId(ledger, entry, partition, max(batch_index, 0))


def parsed_slot(text: str) -> MessageId:
    """Return the id of a message from its text, as the model compares it."""
    at = MessageId.parse(text)
    return slot(at.ledger_id, at.entry_id, at.batch_index, at.partition)
