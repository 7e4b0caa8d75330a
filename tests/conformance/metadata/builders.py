"""Records to test with, the short way to a topic that has some ledgers, and many threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from sqlalchemy import event

from storage.metadata.records import AttemptKind, CompactedLedgerRecord, RunRecord, TopicRecord
from storage.metadata.store import MetadataStore
from storage.model import IndexLocation, LedgerRecord, LogPosition, MessageId, StoredObject

TTL = 15_000
BIG = 2**62
"""More than 32 bits, and than a double holds exactly: every number must come back as it went in."""


def ledger(ledger_id: int, first_offset: int, messages: int, attempt_id: str) -> LedgerRecord:
    return LedgerRecord(
        ledger_id=ledger_id,
        first_offset=first_offset,
        last_offset=first_offset + messages - 1,
        messages=messages,
        entries=messages,
        last_message_id=MessageId(ledger_id, messages - 1, 3, 7),
        logical_bytes=100 * messages,
        min_publish_time=BIG,
        max_publish_time=BIG + 1,
        rows=StoredObject(f"rows/{ledger_id}", BIG + 2, 2**32 - 1),
        footer_size=12,
        index=IndexLocation(f"index/{ledger_id}", BIG + 3, 34, b"\x00\xff directory"),
        attempt_id=attempt_id,
        created_at=BIG + 4,
    )


def append(store: MetadataStore, topic: TopicRecord, *counts: int) -> list[LedgerRecord]:
    """Append ledgers of that many messages each, in one transaction, as an import would."""
    lease = store.leases.acquire(topic.id, "appender", TTL)
    attempt = store.attempts.begin(topic.id, AttemptKind.IMPORT, "appender")
    first_id = store.ledgers.allocate_ids(len(counts))
    offset = store.topics.get(topic.name).next_offset
    created = []
    for number, count in enumerate(counts):
        created.append(ledger(first_id + number, offset, count, attempt.attempt_id))
        offset += count
    store.ledgers.append(lease, created)
    store.leases.release(lease)
    return created


def finished_at(store: MetadataStore, attempt_id: str) -> int | None:
    """When an attempt that has a row was finished; None: it is not."""
    attempt = store.attempts.find(attempt_id)
    assert attempt is not None
    return attempt.finished_at


def end_of(record: LedgerRecord) -> LogPosition:
    return LogPosition(record.last_offset, record.last_message_id)


def claim(store: MetadataStore, topic: TopicRecord, holder: str = "worker", ttl_ms: int = TTL) -> RunRecord:
    return store.runs.claim(topic.id, holder, {"threshold": 5, "lag": None, "ratio": 0.5}, ttl_ms)


def compacted(store: MetadataStore, run: RunRecord, generation: int, horizon: LogPosition) -> CompactedLedgerRecord:
    """A compacted ledger as the run would write it, of the given generation."""
    ledger_id = store.ledgers.allocate_ids(1)
    return CompactedLedgerRecord(
        ledger_id=ledger_id,
        generation=generation,
        horizon=horizon,
        manifest=StoredObject(f"manifests/{ledger_id}", 99, 2**32 - 1),
        messages=2,
        logical_bytes=200,
        stored_bytes=150,
        last_message_id=horizon.message_id,
        attempt_id=run.attempt_id,
        created_at=BIG,
    )


def publish_all(store: MetadataStore, topic: TopicRecord) -> RunRecord:
    """One whole run up to the topic's end."""
    run = claim(store, topic)
    snapshot = store.topic_snapshot(topic.id)
    generation = snapshot.topic.generation
    new = compacted(store, run, generation + 1, end_of(snapshot.ledgers[-1]))
    return store.publishing.publish(run, generation, new, {"survivors": 2})


def emptied(record: CompactedLedgerRecord) -> CompactedLedgerRecord:
    return replace(record, messages=0, logical_bytes=0, last_message_id=None)


def at_once(*calls: Callable[[], object]) -> list[object]:
    """Run all calls in threads that start together; what each returned or raised, in order."""
    barrier = threading.Barrier(len(calls))

    def answer(call: Callable[[], object]) -> object:
        barrier.wait()
        try:
            return call()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(answer, calls))


class Sabotage(Exception):
    """The error that `fail_at` raises."""


def fail_at(store: MetadataStore, statement_number: int) -> Callable[[], int]:
    """Let the store's database raise Sabotage before its nth statement from now. Returns what undoes that.

    Undoing gives the number of statements that were seen.
    """
    seen = 0

    def before(*_arguments: object) -> None:
        nonlocal seen
        seen += 1
        if seen == statement_number:
            raise Sabotage

    event.listen(store.database.engine, "before_cursor_execute", before)

    def undo() -> int:
        event.remove(store.database.engine, "before_cursor_execute", before)
        return seen

    return undo
