"""The checks between rounds, when nothing fails and nothing is under way, and those at the end.

Raw is what was acknowledged, but for a prefix that may have been trimmed; the compacted view is its fold; producers'
messages keep their order; each key can be looked up; `verify` finds no difference; readers come to the end with the
right state; subscriptions delivered every message; garbage collection leaves exactly the referenced objects.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from compactor.maintenance.garbage import GarbageCollector
from storage.clock import SystemClock
from storage.environment import Environment
from storage.ledger.manifest import read_manifest
from storage.log.directory import LogDirectory
from storage.metadata.store import MetadataStore
from storage.model import MessageId
from storage.objects.interface import StoreLocation
from storage.objects.registry import open_store
from tests.faults.engine.checks import check_log, check_order, check_state, check_stored
from tests.faults.engine.history import History, ReadMessage
from tests.faults.engine.report import Kind, Report, Violation
from tests.faults.histories.calls import GIVES_UP_SECONDS, NO_ANSWER, Answer, Caller, read_all
from tests.faults.histories.operators import unpause
from tests.faults.histories.pulsar_clients import ClientSource
from tests.faults.histories.pulsar_consumers import consumed_by_client, drain
from tests.faults.histories.pulsar_readers import LivingReader
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
        """Compare every topic while no client writes and nothing fails. `source`: also drain the subscriptions."""
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
                check_log(history, log, raw, view, horizon)
            with self.report.collecting():
                self._check_verify(history, log)
        raw = [message for log in history.logs for message in raws[log]]
        with self.report.collecting():
            check_stored(history, raw)
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
            raise history.violation(Kind.STUCK, f"{log} changes although no client writes", log)
        return raw, view, horizon

    def _horizon(self, history: History, log: str) -> MessageId | None:
        stats = self.call.until("GET", f"{history.admin_of(log)}/internalStats", [200]).json()
        cursor = stats.get("cursors", {}).get("__compaction")
        return MessageId.parse(cursor["markDeletePosition"]) if cursor else None

    def _check_keys(self, history: History, view: list[ReadMessage]) -> None:
        state: dict[str, str | None] = {item.key: item.value for item in view if item.key is not None}
        check_state(history, KEYS, state, "the compacted view", keeps_gone=False)
        for key in self.chance.sample(KEYS, 4):
            answer = self.call.until("GET", f"{history.admin}/key/{key}", [200, 404])
            value = answer.json()["value"] if answer.status == 200 else None
            if (value or None) not in history.acceptable(key):
                text = f"a look-up of {key} returned {value!r}, not one of {history.acceptable(key)}"
                raise history.violation(Kind.KEY, text, f"{key} {value}")

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
        check_state(follower.history, KEYS, state, "a reader over REST", keeps_gone=True)


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
    store = open_store(StoreLocation(store_url, endpoint))
    try:
        collector = GarbageCollector(Environment(metadata, store, clock, LogDirectory(log)), grace_ms=0, skew_ms=-1_000)
        for _ in range(3):
            for result in collector.collect_all():
                if result.error is not None:
                    raise Violation(f"garbage collection failed: {result.error}", Kind.GARBAGE, str(result.topic))
            time.sleep(0.1)
        referenced: set[str] = set()
        for topic in metadata.topics.all():
            references = metadata.pins.gc_snapshot(topic.id)
            referenced |= {name for ledger in references.ledgers for name in (ledger.rows.name, ledger.index.name)}
            for compacted in references.compacted:
                referenced |= read_manifest(store, compacted.manifest).object_names | {compacted.manifest.name}
        remaining = {info.name for info in store.list("topics/")}
        if remaining != referenced:
            missing, extra = sorted(referenced - remaining)[:10], sorted(remaining - referenced)[:10]
            raise Violation(f"missing in the end: {missing}, left over: {extra}", Kind.GARBAGE, "all topics")
        return len(remaining)
    finally:
        metadata.close()
        store.close()
