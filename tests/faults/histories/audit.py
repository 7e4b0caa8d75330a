"""The checks between rounds, when nothing fails and nothing is under way, and those at the end.

Raw is what was acknowledged, but for a prefix that may have been trimmed; the compacted view is its fold; producers'
messages keep their order; each key can be looked up; `verify` finds no difference; readers come to the end with the
right state; subscriptions delivered every message; garbage collection leaves exactly the referenced objects.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from compactor.maintenance.garbage import GarbageCollector
from storage.clock import SystemClock
from storage.environment import Environment
from storage.ledger.manifest import read_manifest
from storage.log.directory import LogDirectory
from storage.metadata.store import MetadataStore
from storage.model import MessageId
from storage.objects.registry import open_store
from tests.faults.histories.calls import GIVES_UP_SECONDS, NO_ANSWER, Answer, Caller, read_all
from tests.faults.histories.history import Fate, History, ReadMessage, Sender, SentMessage
from tests.faults.histories.operators import unpause
from tests.faults.histories.pulsar_clients import ClientSource
from tests.faults.histories.pulsar_consumers import consumed_by_client, drain
from tests.faults.histories.pulsar_readers import LivingReader, entry_of, fold
from tests.faults.histories.report import Kind, Report, Violation
from tests.faults.histories.rest_actors import KEYS, Follower
from tests.faults.histories.services import Service

_SETTLES_WITHIN_SECONDS = 180
_RESOLVED_AFTER_SECONDS = 60
"""A message without an answer for that long that is not stored never will be: every time limit of a request is over."""
_QUIET_TRIES = 8
_STALE = "the compacted reader"


@dataclass
class Audit:
    """The comparison of all topics with the model."""

    histories: Sequence[History]
    followers: Sequence[Follower]
    readers: Sequence[LivingReader]
    reader_source: ClientSource
    services: Sequence[Service]
    call: Caller
    chance: random.Random
    report: Report

    def run(self, source: ClientSource | None) -> None:
        """Compare every topic; nobody writes, nothing fails. `source`: drain the subscriptions with it as well."""
        for history in self.histories:
            with self.report.collecting():
                self._resolve(history)
        self._compact()
        for history in self.histories:
            with self.report.collecting():
                self._check(history, source)
        for follower in self.followers:
            with self.report.collecting():
                self._check_follower(follower)
        for history in self.histories:
            history.forget()

    def _is_stale(self, reader: LivingReader) -> bool:
        """Return whether a service logged, since the reader connected, that readers of its topic may be stale (R7)."""
        return any(
            _STALE in str(line.get("event"))
            and reader.history.full_name in str(line.get("event"))
            and str(line.get("timestamp")) >= reader.began
            for service in self.services
            for line in service.logged()
        )

    def _resolve(self, history: History) -> None:
        """Settle messages without an answer, before a compaction lets raw be trimmed."""
        raw = [message for log in history.logs for message in self._read(history, log, False)]
        older_than = time.monotonic() - _RESOLVED_AFTER_SECONDS
        self.report.count("messages without an answer that are not stored", history.resolve(raw, older_than))

    def _compact(self) -> None:
        """Compact every log to its end, all at once."""
        pending = [Compaction(history, log, self.call) for history in self.histories for log in history.logs]
        deadline = time.monotonic() + _SETTLES_WITHIN_SECONDS
        while pending := [compaction for compaction in pending if not compaction.is_over()]:
            if time.monotonic() > deadline:
                for compaction in pending:
                    self.report.add(compaction.violation())
                return
            time.sleep(0.5)

    def _check(self, history: History, source: ClientSource | None) -> None:
        raws: dict[str, list[ReadMessage]] = {}
        views: list[ReadMessage] = []
        for log in history.logs:
            raw, view, horizon = self._read_quietly(history, log)
            raws[log] = raw
            views += view
            with self.report.collecting():
                self.check_log(history, log, raw, view, horizon)
            with self.report.collecting():
                self._check_verify(history, log)
        raw = [message for log in history.logs for message in raws[log]]
        with self.report.collecting():
            self.check_stored(history, raw)
        with self.report.collecting():
            check_order(history, raws)
        if history.traits.folds_by_id:
            with self.report.collecting():
                self._check_keys(history, views)
        for reader in self.readers:
            if reader.history is history:
                with self.report.collecting():
                    reader.check(raw, views, self.reader_source, self._is_stale)
        if source is not None:
            for subscription in history.subscriptions.values():
                if consumed_by_client(subscription):
                    with self.report.collecting():
                        drain(history, subscription, views, source, self.report)
        self.report.count("topics checked")

    def _read(self, history: History, log: str, compacted: bool) -> list[ReadMessage]:
        return read_all(self.call, history, log, compacted, self.chance)

    def _read_quietly(
        self, history: History, log: str
    ) -> tuple[list[ReadMessage], list[ReadMessage], MessageId | None]:
        """Return raw, the compacted view and the horizon of one moment: maintenance may still move them."""
        for _ in range(_QUIET_TRIES):
            horizon = self._horizon(history, log)
            first = self._read(history, log, False)
            view = self._read(history, log, True)
            raw = self._read(history, log, False)
            if first == raw and self._horizon(history, log) == horizon:
                return raw, view, horizon
            time.sleep(0.5)
        if not history.traits.expires:
            raise history.violation(Kind.STUCK, f"{log} changes although nobody writes", log)
        return raw, view, horizon

    def _horizon(self, history: History, log: str) -> MessageId | None:
        stats = self.call.until("GET", f"{history.admin_of(log)}/internalStats", [200]).json()
        cursor = stats.get("cursors", {}).get("__compaction")
        return MessageId.parse(cursor["markDeletePosition"]) if cursor else None

    def check_log(
        self, history: History, log: str, raw: list[ReadMessage], view: list[ReadMessage], horizon: MessageId | None
    ) -> None:
        """Check that offsets are dense and, where all raw is stored, that the view is the fold of raw."""
        offsets = [item.offset for item in raw]
        if offsets and offsets != list(range(offsets[0], offsets[0] + len(offsets))):
            raise history.violation(Kind.OFFSETS, f"the offsets of {log} are not dense: {offsets}", log)
        if history.traits.loses_raw:
            return
        below = [item for item in raw if horizon is not None and entry_of(item.id) <= entry_of(horizon)]
        winners = fold(history, below)
        expected = [item.id for item in below if item.value and item.key and winners[item.key] is item]
        expected += [item.id for item in raw[len(below) :]]
        tombstones = {item.id for item in winners.values() if not item.value}
        actual = [item.id for item in view if item.id not in tombstones]
        if actual != expected:
            missing, extra = set(expected) - set(actual), set(actual) - set(expected)
            text = (
                f"the compacted view of {log} is not the fold of raw at the horizon {horizon}: missing "
                f"{_few(missing)}, extra {_few(extra)}; {len(actual)} messages instead of {len(expected)}"
            )
            raise history.violation(Kind.VIEW, text, f"{log} {_few(missing)} {_few(extra)}")

    def check_stored(self, history: History, raw: list[ReadMessage]) -> None:
        """Check that nothing acknowledged is lost: it is at the acknowledged id; only a prefix may be trimmed."""
        if history.traits.expires and not raw:
            return
        ids: dict[str, set[MessageId]] = defaultdict(set)
        for message in raw:
            ids[message.serial].add(message.id)
            if history.hidden_to is not None and message.id < history.hidden_to:
                text = f"{message} is stored below {history.hidden_to}, where the topic was trimmed to"
                raise history.violation(Kind.RETURNED, text, message.serial)
        first = raw[0] if raw else None
        first_sent = history.sent[first.serial] if first is not None else None
        lost: list[SentMessage] = []
        for item in history.must_be_stored():
            if item.serial in ids:
                stays = item.acknowledged is not None and not history.traits.loses_raw
                if stays and item.acknowledged not in ids[item.serial]:
                    text = f"{item} is stored at {_few(ids[item.serial])}"
                    self.report.add(history.violation(Kind.MOVED, text, item.serial))
                continue
            trimmable = history.traits.loses_raw or history.may_be_hidden(item)
            at = item.acknowledged or item.id
            if first is not None and first_sent is not None and trimmable:
                is_later = at > first.id if at is not None else item.sent_at > (first_sent.known or first_sent.sent_at)
                trimmable = not is_later or history.traits.changing
            if not trimmable:
                lost.append(item)
        for item in lost:
            item.never = True  # the same loss is one violation
        if lost:
            text = (
                f"{len(lost)} acknowledged messages are lost; raw begins with {first}: {'; '.join(map(str, lost[:6]))}"
            )
            raise history.violation(Kind.LOST, text, lost[0].serial)
        missed = [item for item in history.missed if item.serial in ids and item.acknowledged in ids[item.serial]]
        history.missed.clear()
        if missed:
            text = f"a raw read passed over stored messages: {'; '.join(map(str, missed[:5]))}"
            raise history.violation(Kind.READER, text, missed[0].serial)

    def _check_keys(self, history: History, view: list[ReadMessage]) -> None:
        state: dict[str, str | None] = {item.key: item.value for item in view if item.key is not None}
        self.check_state(history, state, "the compacted view", keeps_gone=False)
        for key in self.chance.sample(KEYS, 4):
            answer = self.call.until("GET", f"{history.admin}/key/{key}", [200, 404])
            value = answer.json()["value"] if answer.status == 200 else None
            if (value or None) not in history.acceptable(key):
                text = f"a look-up of {key} returned {value!r}, not one of {history.acceptable(key)}"
                raise history.violation(Kind.KEY, text, f"{key} {value}")

    def check_state(self, history: History, state: Mapping[str, str | None], name: str, *, keeps_gone: bool) -> None:
        for key in KEYS:
            acceptable = history.acceptable(key, keeps_gone=keeps_gone)
            value = state.get(key) or None
            if value not in acceptable:
                text = f"{name} has {key}={value!r}, not one of {acceptable}{_lately(history, key)}"
                raise history.violation(Kind.KEY, text, f"{name} {key} {value}")

    def _check_verify(self, history: History, log: str) -> None:
        answer = self.call.until("POST", f"{history.admin_of(log)}/compaction/verify", [200], timeout=GIVES_UP_SECONDS)
        (result,) = answer.json()
        if result["total"]:
            text = f"verify of {log} finds {result['counts']}: {result['differences'][:5]}"
            raise history.violation(Kind.VERIFY, text, log)

    def _check_follower(self, follower: Follower) -> None:
        """Check R7: the reader comes to the end, and has the right state."""
        follower.call = self.call
        deadline = time.monotonic() + _SETTLES_WITHIN_SECONDS
        while not follower.step():
            if time.monotonic() > deadline:
                text = f"a reader at {follower.token} does not come to the end"
                raise follower.history.violation(Kind.STUCK, text, "follower")
        self.report.count("readers checked")
        state = {key: message.value for key, message in follower.state.items()}
        self.check_state(follower.history, state, "a reader over REST", keeps_gone=True)


def _few(ids: set[MessageId]) -> str:
    return ", ".join(map(str, sorted(ids)[:6])) or "none"


def _lately(history: History, key: str) -> str:
    of_key = [item for item in history.sent.values() if item.key == key and not item.never]
    last = sorted(of_key, key=lambda item: item.sent_at)[-6:]
    return "; of the key lately:\n" + "\n".join(f"    {history.fate(item).name} {item} {item.value!r}" for item in last)


def check_order(history: History, raws: Mapping[str, list[ReadMessage]]) -> None:
    """Check that the messages of each producer are stored in the order in which it sent, by their first copies.

    Under deduplication no message has two copies. Raises Violation.
    """
    for log, raw in raws.items():
        of_sender: dict[tuple[Sender, str | None], list[tuple[int, MessageId, SentMessage]]] = defaultdict(list)
        stored: set[str] = set()
        for item in raw:
            sent = history.sent[item.serial]
            if item.serial in stored:
                if not sent.sender.repeats and history.fate(sent) is Fate.THERE:
                    raise history.violation(Kind.TWICE, f"{sent} is stored twice in {log}", item.serial)
                continue
            stored.add(item.serial)
            of_sender[sent.sender, None if sent.sender.ordered else sent.key].append((sent.number, item.id, sent))
        for messages in of_sender.values():
            messages.sort(key=lambda message: message[0])
            for (_, at, before), (_, next_at, after) in pairwise(messages):
                if next_at < at:
                    text = f"in {log}, {after} is stored before {before}, which its producer sent earlier"
                    raise history.violation(Kind.ORDER, text, after.serial)


@dataclass
class Compaction:
    """The compaction of one log to its end."""

    history: History
    log: str
    call: Caller
    triggered: bool = False
    answer: Answer = field(default_factory=lambda: Answer(NO_ANSWER))

    def is_over(self) -> bool:
        """Trigger it if it is not triggered, or failed; return whether it has succeeded."""
        path = self.history.admin_of(self.log)
        if not self.triggered:
            unpause(self.history, self.log, self.call)
            self.triggered = self.call("PUT", f"{path}/compaction").status == 204
            return False
        self.answer = self.call("GET", f"{path}/compaction")
        status = self.answer.json()["status"] if self.answer.status == 200 else "?"
        if status not in ("SUCCESS", "ERROR"):
            return False
        control = self.call("GET", f"{path}/compaction/control")
        if control.status != 200 or control.json()[0]["requested_at"] is not None:
            return False
        self.triggered = status == "SUCCESS"
        return self.triggered

    def violation(self) -> Violation:
        text = f"{self.log} is not compacted although nothing fails: {self.answer.status} {self.answer.text[:800]}"
        return self.history.violation(Kind.STUCK, text, self.log)


def check_garbage(database_url: str, store_url: str, endpoint: str, log: Path) -> int:
    """With no service running, collect garbage and return how many objects remain: exactly the referenced ones.

    Raises Violation.
    """
    clock = SystemClock()
    metadata = MetadataStore(database_url, clock)
    store = open_store(store_url, s3_endpoint=endpoint)
    try:
        collector = GarbageCollector(Environment(metadata, store, clock, LogDirectory(log)), grace_ms=0, skew_ms=-1_000)
        for _ in range(3):
            for result in collector.collect_all():
                if result.error is not None:
                    raise Violation(Kind.GARBAGE, str(result.topic), f"garbage collection failed: {result.error}")
            time.sleep(0.1)
        referenced: set[str] = set()
        for topic in metadata.topics.all():
            references = metadata.pins.referenced(topic.id)
            referenced |= {name for ledger in references.ledgers for name in (ledger.rows.name, ledger.index.name)}
            for compacted in references.compacted:
                referenced |= read_manifest(store, compacted.manifest).objects | {compacted.manifest.name}
        remaining = {info.name for info in store.list("topics/")}
        if remaining != referenced:
            missing, extra = sorted(referenced - remaining)[:10], sorted(remaining - referenced)[:10]
            raise Violation(Kind.GARBAGE, "all topics", f"missing in the end: {missing}, left over: {extra}")
        return len(remaining)
    finally:
        metadata.close()
        store.close()
