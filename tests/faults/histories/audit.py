"""What must hold of each topic when nothing fails and nothing is under way; and what must be left in the end.

Raw is what was acknowledged, but for a prefix that may have been trimmed; the compacted view is its fold; each key can
be looked up; `verify` finds no difference; a reader that followed the topic, and was not told that its state may be
stale, has the right state; and garbage collection leaves exactly what something refers to.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from compactor.maintenance.garbage import GarbageCollector
from storage.clock import SystemClock
from storage.environment import Environment
from storage.ledger.manifest import read_manifest
from storage.log.directory import LogDirectory
from storage.metadata.store import MetadataStore
from storage.model import MessageId
from storage.objects.registry import open_store
from tests.faults.histories.actors import KEYS, Caller, Follower, ReadMessage, Tally, admin, read_all, unpause
from tests.faults.histories.history import History, SentMessage

_SETTLES_WITHIN_SECONDS = 180
RESOLVED_AFTER_SECONDS = 60
"""What had no answer for that long, and is not there, does not come any more: every time limit of a request is over."""


def audit(
    histories: Sequence[History], followers: Sequence[Follower], call: Caller, chance: random.Random, tally: Tally
) -> None:
    """Look at every topic; nobody writes, nothing fails. Raises Violation."""
    for history in histories:
        raw = read_all(call, history, False, chance)  # before compaction lets it be trimmed
        resolved = history.resolve(raw, time.monotonic() - RESOLVED_AFTER_SECONDS)
        tally.add("unanswered and not there", resolved)
        compact(history, call)
        check_raw(history, read_all(call, history, False, chance), _horizon(history, call))
        check_view(history, read_all(call, history, True, chance))
        for key in chance.sample(KEYS, 4):
            check_key(history, key, call)
        check_verify(history, call)
    for follower in followers:
        check_follower(follower)
    for history in histories:
        history.forget()


def compact(history: History, call: Caller) -> None:
    """Compact the topic to its end."""
    deadline = time.monotonic() + _SETTLES_WITHIN_SECONDS
    triggered = False
    while True:
        if not triggered:
            unpause(history, call)
            triggered = call("PUT", f"{admin(history)}/compaction").status == 204
        status = call("GET", f"{admin(history)}/compaction")
        found = status.json() if status.status == 200 else {"status": "?"}
        if triggered and found["status"] == "SUCCESS" and not _wanted(history, call):
            return
        if triggered and found["status"] == "ERROR" and not _wanted(history, call):
            triggered = False
        if time.monotonic() > deadline:
            raise history.violation(f"nothing fails, and it is not compacted: {status.status} {status.text[:800]}")
        time.sleep(0.2)


def _wanted(history: History, call: Caller) -> bool:
    found = call("GET", f"{admin(history)}/compaction/control")
    return found.status != 200 or found.json()[0]["requested_at"] is not None


def _horizon(history: History, call: Caller) -> MessageId | None:
    found = call.until("GET", f"{admin(history)}/internalStats", [200]).json()
    cursor = found.get("cursors", {}).get("__compaction")
    return MessageId.parse(cursor["markDeletePosition"]) if cursor else None


def check_raw(history: History, raw: list[ReadMessage], horizon: MessageId | None) -> None:
    """Nothing acknowledged is lost, at the id that was told; offsets are dense; only a prefix was trimmed."""
    offsets = [item.offset for item in raw]
    if offsets != list(range(offsets[0], offsets[0] + len(offsets))) if offsets else False:
        raise history.violation(f"the offsets of raw are not dense: {offsets}")
    given = {item.serial for item in raw}
    first = raw[0].id if raw else None
    for item in history.must_be_there():
        assert item.id is not None
        if item.serial in given:
            continue
        if first is not None and item.id > first:
            raise history.violation(f"{item} was acknowledged and is lost: raw goes from {first} to {raw[-1].id}")
        compacted = history.loses_raw and horizon is not None and item.id <= horizon
        if not compacted and not history.may_be_hidden(item):
            raise history.violation(f"{item} was trimmed, and the horizon is {horizon}")
    for item in raw:
        if history.hidden_to is not None and item.id < history.hidden_to:
            raise history.violation(f"{item} is below {history.hidden_to}, where the topic was trimmed to")
    missed = [item for item in history.missed if item.serial in given]
    if missed:
        raise history.violation(f"a raw read passed over {missed[:5]}, which are there")
    history.missed.clear()


def check_view(history: History, given: list[ReadMessage]) -> None:
    """The compacted read ends with the fold of what is there."""
    state: dict[str, str | None] = {}
    for item in given:
        if item.key is not None:
            state[item.key] = item.value
    _check_state(history, state, "the compacted view", keeps_gone=False)


def _check_state(history: History, state: Mapping[str, str | None], what: str, *, keeps_gone: bool) -> None:
    for key in KEYS:
        acceptable = history.acceptable(key, keeps_gone=keeps_gone)
        if (state.get(key) or None) not in acceptable:
            raise history.violation(
                f"{what} has {key}={state.get(key)!r}, not one of {acceptable}{_lately(history, key)}"
            )


def _lately(history: History, key: str) -> str:
    mine = sorted((item for item in history.sent.values() if item.key == key and not item.never), key=_sent_at)
    return "; of the key lately:\n" + "\n".join(f"    {history.fate(item).name} {item}" for item in mine[-6:])


def _sent_at(one: SentMessage) -> int:
    return one.sent_at


def check_key(history: History, key: str, call: Caller) -> None:
    """A look-up finds what the fold has (T4)."""
    answer = call.until("GET", f"{admin(history)}/key/{key}", [200, 404])
    value = answer.json()["value"] if answer.status == 200 else None
    if value not in history.acceptable(key):
        raise history.violation(f"a look-up of {key} gave {value!r}, not one of {history.acceptable(key)}")


def check_verify(history: History, call: Caller) -> None:
    """`verify` finds nothing."""
    (report,) = call.until("POST", f"{admin(history)}/compaction/verify", [200]).json()
    if report["total"]:
        raise history.violation(f"verify finds {report['counts']}: {report['differences'][:5]}")


def check_follower(follower: Follower) -> None:
    """R7: it comes to the end, and has the right state."""
    deadline = time.monotonic() + _SETTLES_WITHIN_SECONDS
    while not follower.step():
        if time.monotonic() > deadline:
            raise follower.history.violation(f"a reader at {follower.token} does not come to the end")
    state = {key: one.value for key, one in follower.state.items()}
    _check_state(follower.history, state, f"a reader that began at {follower.since}", keeps_gone=True)


def check_garbage(database_url: str, store_url: str, endpoint: str, log: Path) -> int:
    """With no service running: what is left in the store is what rows and manifests refer to; how many objects."""
    clock = SystemClock()
    metadata = MetadataStore(database_url, clock)
    store = open_store(store_url, s3_endpoint=endpoint)
    try:
        collector = GarbageCollector(Environment(metadata, store, clock, LogDirectory(log)), grace_ms=0, skew_ms=-1_000)
        for _ in range(3):
            for result in collector.collect_all():
                assert result.error is None, f"garbage collection of {result.topic}: {result.error}"
            time.sleep(0.1)
        referenced: set[str] = set()
        for topic in metadata.topics.all():
            found = metadata.pins.referenced(topic.id)
            referenced |= {name for ledger in found.ledgers for name in (ledger.rows.name, ledger.index.name)}
            for compacted in found.compacted:
                referenced |= read_manifest(store, compacted.manifest).objects | {compacted.manifest.name}
        remaining = {info.name for info in store.list("topics/")}
        assert remaining >= referenced, f"missing in the end: {sorted(referenced - remaining)[:10]}"
        assert remaining <= referenced, f"left over in the end: {sorted(remaining - referenced)[:10]}"
        return len(remaining)
    finally:
        metadata.close()
        store.close()
