"""An append by tasks: many processes write sealed ledgers, and one transaction appends them all.

    begin     an attempt is a row before the first object; the plan, which can be pickled, goes to the tasks
    write     a task writes its messages as ledgers that count from 0, under names of its own: it needs the object store
              and no database, and holds one table and the key index of one ledger in memory
    commit    the ledgers get ids and offsets in the order of the tasks, under the topic's lease; its cost depends on
              the number of ledgers alone
    abort     the attempt is finished, so that a late commit is fenced; then its objects are deleted

All or nothing, as a bulk append. A task may run several times, also at the same time: only the ledgers that the commit
gets count; the objects of other tries are deleted by the abort, or by garbage collection once the attempt is finished.
An attempt that neither commits nor aborts within records.TASKS_MS is finished by garbage collection.

Must not know: Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import numpy as np
import pyarrow as pa

from storage.environment import Environment
from storage.errors import CompactorError, Conflict, Misconfigured, TopicNotFound
from storage.ledger import names, rows
from storage.ledger.hashing import Xxh3KeyHasher
from storage.ledger.sealing import Sealer
from storage.log.bulk_append import (
    DEFAULT_LEDGER_BYTES,
    DEFAULT_WAIT_MS,
    BulkAppend,
    BulkAppendResult,
    check_message_sizes,
    check_publish_times,
    to_ledger_rows,
)
from storage.log.lease import writer_lease
from storage.log.log_manager import LogManager
from storage.metadata.records import Attempt, AttemptKind, TopicRecord
from storage.model import LedgerRecord
from storage.objects.interface import ObjectStore
from storage.owner import new_owner_name


@dataclass(frozen=True)
class TaskAppend:
    """The plan of an append whose ledgers many tasks write. `now`: the publish time (ms) of messages without one.
    `max_ahead_ms`: how far a publish time may be in the future; None: any. `ledger_bytes`: the logical bytes after
    which a new ledger begins."""

    topic: TopicRecord
    attempt: Attempt
    now: int
    max_ahead_ms: int | None
    ledger_bytes: int = DEFAULT_LEDGER_BYTES


def begin(environment: Environment, topic: TopicRecord, wait_ms: int = DEFAULT_WAIT_MS) -> TaskAppend:
    """Begin an append by tasks to a topic that no other writer has; return its plan. Raises LeaseHeld, TopicNotFound.

    The lease is not held until the commit: other writers may append in between, and their messages come first.
    """
    metadata = environment.metadata
    with writer_lease(environment, topic.id, new_owner_name(), wait_ms):
        attempt = metadata.attempts.begin(topic.id, AttemptKind.TASKS, new_owner_name())
    max_ahead_ms = metadata.policies.effective(topic).message_timestamp_after_max_ms
    return TaskAppend(topic, attempt, environment.clock.now_ms(), max_ahead_ms)


def write_ledgers(
    store: ObjectStore, append: TaskAppend, tables: Iterable[pa.Table], task_number: int
) -> tuple[LedgerRecord, ...]:
    """Write the messages of one task, in order, as sealed ledgers, and return these for the commit.

    `tables`: of bulk_append.INPUT_SCHEMA or SOURCE_SCHEMA. Raises InvalidRecord, any store error, and any error of
    `tables`; then the ledgers that were written are deleted.
    """
    topic = append.topic
    hasher = Xxh3KeyHasher(topic.hash_seed)
    sealer = Sealer(store, topic.uid, topic.name.partition, hasher, append.attempt.attempt_id)
    written: list[LedgerRecord] = []
    try:
        for _, pieces in groupby(_cut_into_numbered_ledgers(tables, append), itemgetter(0)):
            tables_of_ledger = _to_ledger_rows(map(itemgetter(1), pieces), append.now)
            written.append(sealer.seal_unplaced(tables_of_ledger, task_number, append.now))
    except BaseException:
        with suppress(CompactorError):
            for ledger in written:
                store.delete(ledger.rows.name)
                store.delete(ledger.index.name)
        raise
    return tuple(written)


def _cut_into_numbered_ledgers(tables: Iterable[pa.Table], append: TaskAppend) -> Iterator[tuple[int, pa.Table]]:
    """Cut tables at the ends of ledgers, and yield the pieces, each with the number of its ledger. Raises
    InvalidRecord."""
    number = count = size = before = 0
    for table in tables:
        check_publish_times(table, append.now, append.max_ahead_ms)
        sizes = rows.logical_sizes(table)
        check_message_sizes(sizes, before)
        before += len(table)
        first = 0
        while first < len(table):
            filled = np.cumsum(sizes[first : first + rows.LEDGER_ROWS - count])
            taken = int(np.searchsorted(filled, append.ledger_bytes - size, "right"))
            if not taken and count:
                number, count, size = number + 1, 0, 0
                continue
            taken = max(taken, 1)
            yield number, table.slice(first, taken)
            first, count, size = first + taken, count + taken, size + int(filled[taken - 1])


def _to_ledger_rows(tables: Iterable[pa.Table], now: int) -> Iterator[pa.Table]:
    """Yield the messages of one ledger as rows (rows.SCHEMA), with entry ids and offsets from 0."""
    first = 0
    for table in tables:
        yield to_ledger_rows(table, 0, first, now, first)
        first += len(table)


def commit(
    environment: Environment, append: TaskAppend, ledgers: Sequence[LedgerRecord], wait_ms: int = DEFAULT_WAIT_MS
) -> BulkAppendResult:
    """Commit an append by tasks: append the ledgers of all tasks, in the order of the messages. Without ledgers, only
    end the attempt.

    Raises LeaseHeld, Fenced if the append took too long or was aborted, TopicNotFound, Conflict for a topic that was
    created again, Misconfigured for a task that wrote to another store; then nothing was appended.
    """
    topic = append.topic
    if environment.metadata.topics.get(topic.name).uid != topic.uid:
        raise Conflict(
            f"{topic.name} was deleted and created again since the write began", "nothing was appended; write again"
        )
    if not ledgers:
        environment.metadata.attempts.finish(append.attempt.attempt_id)
        return BulkAppendResult(())
    _check_objects_stored(environment.store, append, ledgers)
    # Another service may have the log directory with the open segment; it rolls on request.
    LogManager(environment).roll(topic, wait_ms)
    writer = BulkAppend(environment, topic, Xxh3KeyHasher(topic.hash_seed), new_owner_name(), wait_ms=wait_ms)
    with writer.lease() as lease:
        return writer.append_sealed_under(lease, ledgers)


def _check_objects_stored(store: ObjectStore, append: TaskAppend, ledgers: Sequence[LedgerRecord]) -> None:
    """Raise Misconfigured unless the objects of all ledgers are in the store of this process."""
    prefix = names.task_ledgers_prefix(append.topic.uid, append.attempt.attempt_id)
    present = {info.name: info.size for info in store.list(prefix)}
    for ledger in ledgers:
        for name, size in ((ledger.rows.name, ledger.rows.size), (ledger.index.name, ledger.index.length)):
            if present.get(name) != size:
                raise Misconfigured(
                    f"a task has written {name}, and {store.url} does not have it: the task wrote to another store",
                    "nothing was appended; use a store that the driver and all executors share, such as s3://",
                )


def abort(environment: Environment, append: TaskAppend) -> None:
    """Abort an append by tasks, and delete its objects, unless it was committed. Idempotent."""
    metadata, store = environment.metadata, environment.store
    metadata.attempts.finish(append.attempt.attempt_id)
    try:
        ledgers = metadata.pins.gc_snapshot(append.topic.id).ledgers
    except TopicNotFound:
        return  # garbage collection deletes the objects of deleted topics
    committed = {name for ledger in ledgers for name in (ledger.rows.name, ledger.index.name)}
    for info in store.list(names.task_ledgers_prefix(append.topic.uid, append.attempt.attempt_id)):
        if info.name not in committed:
            store.delete(info.name)
