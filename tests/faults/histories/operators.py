"""Operators of the histories: compact, pause, trim, truncate, delete, unload, change policies, over REST.

Operations that must take effect are repeated until they do; the model learns when they began and ended.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from storage.model import MessageId
from tests.faults.engine.history import Clearing, History, id_of
from tests.faults.engine.report import Report
from tests.faults.histories.calls import AGAIN_SECONDS, Caller, expect
from tests.faults.histories.wire_actors import RECEIPTS, SHARED_RECEIPTS

_IN_EARNEST = {"dryRun": "false"}
_MOST_PARTITIONS = 4
_SAFE_POLICIES: dict[str, list[object]] = {
    "delete.retention.ms": [0, 2_000, 60_000],
    "compaction.tombstones-wait-for-cursors": [True, False],
    "segment.ms": [1_000, 8_000],
}
"""Policies that any topic may get at any time: its view stays the fold of its messages."""
_WILD_POLICIES: dict[str, list[object]] = {
    "compaction.event-time-order": [True, False],
    "compaction.retain-null-key": [True, False],
    "message.ttl.seconds": [0, 2],
    "compaction.key-ttl.ms": [None, 5_000],
    "retention.ms": [3_000, -1],
    "min.compaction.lag.ms": [0, 3_000],
    "deduplication.enabled": [True, False],
}


class Operator:
    """An operator of all topics."""

    def __init__(self, topics: Sequence[History], call: Caller, chance: random.Random, report: Report) -> None:
        self._topics = topics
        self._call = call
        self._chance = chance
        self._report = report
        self._operations: list[tuple[Callable[[History], None], int]] = [
            (self.compact, 12),
            (self.cancel, 2),
            (self.pause, 3),
            (self.abort, 1),
            (self.trim, 4),
            (self.trim_before, 3),
            (self.truncate, 1),
            (self.delete, 1),
            (self.delete_compaction_cursor, 2),
            (self.set_policy, 3),
            (self.add_partition, 1),
            (self.unload, 3),
            (self.expire, 2),
            (self.collect, 1),
        ]

    def step(self) -> None:
        """Execute one operation on one topic that no other operator works on."""
        history = self._chance.choice(self._topics)
        (operation,) = self._chance.choices(*zip(*self._operations, strict=True))
        if not history.operating.acquire(blocking=False):
            return
        try:
            operation(history)
            self._report.count(f"operations: {operation.__name__}")
        finally:
            history.operating.release()

    def _path(self, history: History) -> str:
        return history.admin_of(self._chance.choice(history.logs))

    def compact(self, history: History) -> None:
        answer = self._call("PUT", f"{self._path(history)}/compaction")
        expect(history, answer, 204, 409)
        history.note(f"compaction: {answer.status}")

    def cancel(self, history: History) -> None:
        answer = self._call("GET", f"{history.admin}/compactions", params={"state": "RUNNING", "limit": 1})
        if answer.status != 200:
            return
        for run in answer.json():
            number = run["run"]
            answer = self._call("DELETE", f"/admin/v2/compactions/{number}", params={"reason": "a random history"})
            expect(history, answer, 204, 404, 409)
            history.note(f"run {number} cancelled: {answer.status}")

    def pause(self, history: History) -> None:
        """Pause, and resume until the topic is not paused, however often a pause was executed."""
        log = self._chance.choice(history.logs)
        answer = self._call("POST", f"{history.admin_of(log)}/compaction/pause")
        expect(history, answer, 200, 204)
        history.note(f"paused: {answer.status}")
        time.sleep(self._chance.random() * 2)
        unpause(history, log, self._call)

    def abort(self, history: History) -> None:
        answer = self._call("POST", f"{self._path(history)}/compaction/abort")
        expect(history, answer, 200, 204, 409)
        history.note(f"aborted: {answer.status}")

    def trim(self, history: History) -> None:
        """Trim what the cleanup policies release."""
        answer = self._call("POST", f"{self._path(history)}/trim", params=_IN_EARNEST)
        expect(history, answer, 200, 409)
        history.note(f"trimmed: {answer.status} {answer.text[:200]}")

    def trim_before(self, history: History) -> None:
        """Trim all before a message by force, in the compacted ledger too, even if a subscription needs it."""
        stored = [item for item in history.must_be_stored() if item.ids]
        if not history.traits.hides or history.traits.expires or not stored:
            return
        at = id_of(self._chance.choice(stored[: len(stored) // 2 + 1]))
        before = MessageId(at.ledger_id, at.entry_id)
        history.hide_maybe(before)
        request = {"before": str(before), "force": True}
        answer = self._call("POST", f"{history.admin}/trim", params=_IN_EARNEST, json=request)
        expect(history, answer, 200, 409)
        history.note(f"trimmed before {before}: {answer.status} {answer.text[:200]}")
        if answer.status == 200 and answer.json()[0]["tail_left"] is None:
            history.hide(before)

    def truncate(self, history: History) -> None:
        if history.partitions:
            return
        with history.clearing() as clearing:
            history.note(f"truncate begins: {clearing}")
            self._call.until("DELETE", f"{history.admin}/truncate", [204])
            self._subscribe(history)
        history.note(f"truncated: {clearing}")

    def delete(self, history: History) -> None:
        """Delete the topic and create it again."""
        if history.partitions:
            return
        with history.clearing(deletes=True) as clearing:
            self._delete(history, clearing)
        history.note(f"deleted and created again: {clearing}")

    def _delete(self, history: History, clearing: Clearing) -> None:
        history.note(f"delete begins: {clearing}")
        self._call.until("DELETE", history.admin, [204, 404], params={"force": "true"})
        history.delete()
        self.create(history)

    def create(self, history: History) -> None:
        """Create the topic with its subscriptions; its namespace has the policies."""
        if history.partitions:
            self._call.until("PUT", f"{history.admin}/partitions", [204, 409], json=history.partitions)
        else:
            self._call.until("PUT", history.admin, [204, 409])
        self._subscribe(history)

    def create_namespace(self, history: History) -> None:
        namespace = f"/admin/v2/namespaces/public/{history.name}"
        self._call.until("PUT", namespace, [204, 409])
        if history.traits.policies:
            self._call.until("PUT", f"{namespace}/policies", [200, 204], json=history.traits.policies)

    def _subscribe(self, history: History) -> None:
        for name in history.subscriptions:
            self._call.until("PUT", f"{history.admin}/subscription/{name}", [204, 409], json="earliest")

    def delete_compaction_cursor(self, history: History) -> None:
        """Delete `__compaction` where all raw is stored."""
        if history.traits.loses_raw:
            return
        answer = self._call("DELETE", f"{self._path(history)}/subscription/__compaction")
        expect(history, answer, 204, 404, 409, 412)
        history.note(f"__compaction deleted: {answer.status}")

    def set_policy(self, history: History) -> None:
        policies = _SAFE_POLICIES | _WILD_POLICIES if history.traits.changing else _SAFE_POLICIES
        name = self._chance.choice(list(policies))
        value = self._chance.choice(policies[name])
        answer = self._call("PUT", f"/admin/v2/namespaces/public/{history.name}/policies", json={name: value})
        expect(history, answer, 200, 204)
        history.note(f"policy {name} = {value}: {answer.status}")

    def add_partition(self, history: History) -> None:
        if not 0 < history.partitions < _MOST_PARTITIONS or self._chance.random() < 0.5:
            return
        self._call("POST", f"{history.admin}/partitions", json=history.partitions + 1)
        answer = self._call.until("GET", f"{history.admin}/partitions", [200])
        history.partitions = max(history.partitions, answer.json()["partitions"])
        self._subscribe(history)
        history.note(f"{history.partitions} partitions")

    def unload(self, history: History) -> None:
        answer = self._call("PUT", f"{self._path(history)}/unload")
        expect(history, answer, 204, 404, 409, 412)
        history.note(f"unloaded: {answer.status}")

    def expire(self, history: History) -> None:
        """Expire what is older than the history: nothing, but the cursor is written."""
        names = [name for name in history.subscriptions if name in (RECEIPTS, SHARED_RECEIPTS)]
        if not names:
            return
        name = self._chance.choice(names)
        answer = self._call("POST", f"{self._path(history)}/subscription/{name}/expireMessages/100000")
        expect(history, answer, 204, 404, 409, 412)

    def collect(self, history: History) -> None:
        answer = self._call("POST", "/admin/v2/garbage", json={"dryRun": False, "graceMs": 60_000})
        expect(history, answer, 200, 409)


def unpause(history: History, log: str, call: Caller) -> None:
    """Resume until the topic is not paused. A stopped service executes later a pause that had no answer."""
    path = history.admin_of(log)
    while True:
        control = call.until("GET", f"{path}/compaction/control", [200, 404])
        if control.status == 404 or not control.json()[0]["paused"]:
            return
        call("POST", f"{path}/compaction/resume")
        time.sleep(AGAIN_SECONDS)
