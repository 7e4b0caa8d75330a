"""Garbage collection: deletion of objects that no row and no manifest references, and no reader needs (A3).

The steps per topic; their order makes them safe beside imports, runs, readers and other collectors:

    list      list all objects of the topic; objects that are written later wait for the next collection
    expire    finish attempts whose heartbeat is older than the grace time, or than a day if tasks write for them: SQL
              fences them before any deletion
    collect   delete the rows of compacted ledgers that retired a grace time ago and have no live pin; those that the
              topic's table shows or lists stay longer (retirement.py)
    purge     delete the rows of raw ledgers that were trimmed `file.delete.delay` ago (C3); their objects need no
              other grace time
    refer     read the rows of ledgers, compacted ledgers and attempts in one snapshot, then the manifests
    delete    delete the listed objects without a reference, unless their attempt is unfinished or finished less than a
              grace time ago; without a row of their attempt, unless they are younger than a grace time and `skew_ms`
    purge     delete the rows of attempts that finished a grace time ago and have no object

    reschedule  state when the topic needs the next collection, by the snapshot of `refer`; None: when it is queued
              again

If one snapshot shows that no step has work, as for most topics at most times, the collection ends with it.

Garbage begins only with rows: an attempt ends, a compacted ledger retires, a ledger is trimmed, a topic is deleted. The
transactions that make such rows queue the topic (storage/metadata/topic_work.py), and an attempt does so when it
begins. `collect_due` collects the topics whose time has come, each with one listing of its own objects. A topic stays
queued until a whole collection has rescheduled it, so a collection that was interrupted is repeated, also if the rows
that led to its garbage are deleted already; a mark that comes after the read of the queue, before `list`, is not
removed.
`collect_all` lists the whole store, and so also finds what no row leads to: objects of writers that outlived their
attempt, or that are younger than a database that was restored. It queues a topic that needs a later collection and is
not queued.

A new row or manifest references objects of its own attempt, which has a row before its first object, and objects of
the previous generation, which stays current until then. So a deleted object is never referenced again.

A deleted topic (S8) has no rows, so no row references its objects. All of them are deleted `file.delete.delay` after
the topic, so that readers may finish. It is collected again until a grace time has passed, for late writers; after that
`collect_all` finds theirs.

Each step may be interrupted and repeated. An unreadable manifest raises an error that names it, and no object of its
topic is deleted, because its references are unknown; the topic stays queued. The collection of a topic ends at an
object that the store refuses to delete; other topics are collected. Foreign names are counted and left alone. Times
decide only how long garbage stays and when a reader loses its pin; no wrong clock deletes a current object.

Memory: the names of one topic's objects and references, and a page of topics. This module must not know Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby

from compactor.maintenance.grace import GRACE_MS
from compactor.maintenance.retirement import due_times
from compactor.scheduling.scan_throttle import TOPICS_AT_ONCE
from storage.environment import Environment
from storage.errors import DataLoss, Misconfigured, NotFound
from storage.failpoints import Failpoint, failpoint
from storage.ledger import names
from storage.ledger.manifest import TableSnapshot, read_manifest
from storage.ledger.names import ObjectKind, ParsedName
from storage.metadata.liveness import live_heartbeat_bounds
from storage.metadata.policy_store import enclosing_scope
from storage.metadata.records import CompactedLedgerRecord, DeletedTopic, GcSnapshot, TopicRecord
from storage.metadata.topic_work import TopicWork, WorkKind
from storage.model import LedgerRecord, TopicName
from storage.objects.interface import ObjectInfo
from storage.reading.compacted_loss import lost_compacted_advice
from storage.store_identity import StoreIdentity

SKEW_MS = 300_000
"""Maximum difference between the store's clock and ours."""


@dataclass(frozen=True)
class ObjectTotals:
    """Number of objects, and their bytes in the store."""

    count: int = 0
    bytes: int = 0

    def __add__(self, other: ObjectTotals) -> ObjectTotals:
        return ObjectTotals(self.count + other.count, self.bytes + other.bytes)


@dataclass(frozen=True)
class CollectionResult:
    """Result of the collection of one topic, or of a dry run unless `deleted`.

    `topic` None: the database has no topic with this uid. `topic_deleted`: the topic was deleted (S8). `objects`: the
    deleted ones. `attempts_given_up`: number of attempts that were fenced because their heartbeat had stopped.
    `compacted_ledgers`, `trimmed_ledgers`: number of deleted rows. `foreign`: number of objects below its prefix with
    unknown names. `error`: the reason why the collection of the topic ended early.
    """

    topic: TopicName | None
    topic_uid: str
    deleted: bool
    objects: Mapping[ObjectKind, ObjectTotals] = field(default_factory=dict)
    attempts_given_up: int = 0
    compacted_ledgers: int = 0
    foreign: int = 0
    trimmed_ledgers: int = 0
    error: DataLoss | NotFound | Misconfigured | None = None
    topic_deleted: bool = False

    @property
    def total(self) -> ObjectTotals:
        """The totals over all kinds of objects."""
        return sum(self.objects.values(), ObjectTotals())


@dataclass(frozen=True)
class GarbageCollector:
    """Garbage collector of the object store. `grace_ms`: age from which objects without a reference are garbage.

    `skew_ms`: maximum difference between the clocks of store and process. `on_object` gets each object that is deleted,
    or that a dry run would delete.
    """

    environment: Environment
    grace_ms: int = GRACE_MS
    skew_ms: int = SKEW_MS
    on_object: Callable[[ObjectInfo], object] = lambda _: None

    def collect(self, topic: TopicRecord, dry_run: bool = False) -> CollectionResult:
        """Collect the garbage of one topic. `dry_run`: delete nothing. Raises DataLoss (then no object was deleted),
        TopicNotFound, and Misconfigured for the store of another database."""
        self._check_store_identity(dry_run)
        return self._list_and_collect(topic, dry_run)

    def collect_due(self) -> Iterator[CollectionResult]:
        """Collect the garbage of the queued topics whose time has come, and of deleted topics that may have objects.

        Yield a result per topic; `error` has its failure. Raises Misconfigured for the store of another database.
        """
        self._check_store_identity(dry_run=False)
        metadata = self.environment.metadata
        queued = metadata.topic_work.due(WorkKind.COLLECT, self.environment.clock.now_ms())
        for first in range(0, len(queued), TOPICS_AT_ONCE):
            page = metadata.topics.by_ids([work.topic_id for work in queued[first : first + TOPICS_AT_ONCE]])
            for topic in page.values():
                yield _collect_without_raising(topic.name, topic.uid, partial(self._list_and_collect, topic, False))
        for deleted in metadata.tenancy.uncollected_topics():
            if self._is_due(deleted):
                yield _collect_without_raising(
                    deleted.name, deleted.uid, partial(self._list_and_collect_deleted, deleted)
                )

    def collect_all(
        self, dry_run: bool = False, unknown_topics: bool = False, after_uid: str = ""
    ) -> Iterator[CollectionResult]:
        """Collect the garbage of every topic, in one listing. Yield a result per topic; `error` has its failure.

        The topics are in the order of their uids; `after_uid`: go on after that one. With `unknown_topics`, the objects
        of topics that the database does not know are deleted after the grace time; otherwise they are only counted,
        because they may belong to another database. Raises Misconfigured for the store of another database.
        """
        self._check_store_identity(dry_run)
        metadata, began = self.environment.metadata, self.environment.clock.now_ms()
        topics = self._topics_by_uid(after_uid)
        following = next(topics, None)
        # Both are in the order of uids, so one topic's objects and a page of topics are in memory.
        for uid, objects in groupby(self.environment.store.list(names.TOPICS), lambda info: info.name.split("/")[1]):
            if uid <= after_uid:
                continue
            listed = list(objects)
            while following is not None and following.uid < uid:
                yield _collect_without_raising(
                    following.name, following.uid, partial(self._collect, following, [], began, dry_run)
                )
                following = next(topics, None)
            topic = None
            if following is not None and following.uid == uid:
                topic, following = following, next(topics, None)
            # Not on its page: a new topic, or a deleted row; rows are created and deleted before objects.
            if topic := topic or metadata.topics.by_uid(uid):
                yield _collect_without_raising(topic.name, uid, partial(self._collect, topic, listed, began, dry_run))
            elif deleted := metadata.tenancy.deleted_topic(uid):
                yield _collect_without_raising(
                    deleted.name, uid, partial(self._collect_deleted, deleted, listed, dry_run)
                )
            else:
                yield _collect_without_raising(
                    None, uid, partial(self._collect_unknown_topic, uid, listed, dry_run, unknown_topics)
                )
        while following is not None:
            yield _collect_without_raising(
                following.name, following.uid, partial(self._collect, following, [], began, dry_run)
            )
            following = next(topics, None)

    def _topics_by_uid(self, after_uid: str) -> Iterator[TopicRecord]:
        """Yield the topics after a uid, in the order of uids."""
        while page := self.environment.metadata.topics.page_by_uid(after_uid, TOPICS_AT_ONCE):
            yield from page
            after_uid = page[-1].uid

    def _list_and_collect(self, topic: TopicRecord, dry_run: bool) -> CollectionResult:
        began = self.environment.clock.now_ms()
        listed = list(self.environment.store.list(names.topic_prefix(topic.uid)))
        return self._collect(topic, listed, began, dry_run)

    def _check_store_identity(self, dry_run: bool) -> None:
        identity = StoreIdentity(self.environment.metadata, self.environment.store)
        identity.check() if dry_run else identity.check_or_bind()

    def _collect(
        self, topic: TopicRecord, listed: list[ObjectInfo], listed_since: int, dry_run: bool
    ) -> CollectionResult:
        """Collect the garbage of a topic. `listed`: its objects, listed at `listed_since` (ms) or later."""
        failpoint(Failpoint.GC_LISTED)
        now = self.environment.clock.now_ms()
        queued = self.environment.metadata.topic_work.of_topics(WorkKind.COLLECT, [topic.id]).get(topic.id)
        snapshot = self.environment.metadata.pins.gc_snapshot(topic.id)
        if self._is_clean(snapshot, listed, now):
            if not dry_run:
                self._reschedule(snapshot, listed, listed_since, queued, now, 0, {})
            return CollectionResult(topic.name, topic.uid, not dry_run, foreign=_count_foreign_objects(listed))
        expired = 0 if dry_run else len(self.environment.metadata.runs.expire_attempts(topic.id, self.grace_ms))
        failpoint(Failpoint.GC_ATTEMPTS_FENCED)
        policies = self.environment.metadata.policies.effective(topic)
        times = self._due_times_of_retired(snapshot, policies.table_snapshot_age_ms)
        retired = 0 if dry_run else self._delete_rows_of_retired(topic, times)
        delay_ms = policies.file_delete_delay_ms
        marked_before = now - delay_ms
        marked = self.environment.metadata.trimming.trimmed_ledgers(topic.id)
        due = [item for item in marked if item.deleted_at is not None and item.deleted_at <= marked_before]
        trimmed = len(due) if dry_run else self.environment.metadata.trimming.purge(topic.id, marked_before)
        if trimmed and not dry_run:
            failpoint(Failpoint.TRIM_FORGOTTEN)
        snapshot = self.environment.metadata.pins.gc_snapshot(topic.id)
        kept = list(snapshot.compacted)
        if dry_run:
            expired = sum(
                attempt.finished_at is None
                and not live_heartbeat_bounds(attempt.kind.heartbeat_ttl_ms(self.grace_ms), now).contains(
                    attempt.heartbeat_at
                )
                for attempt in snapshot.attempts
            )
            kept = [item for item in kept if not self._is_collectable(snapshot, item, now, times)]
            retired = len(snapshot.compacted) - len(kept)
            snapshot = replace(snapshot, ledgers=tuple(ledger for ledger in snapshot.ledgers if ledger not in due))
        garbage = self._find_garbage(
            listed, self._referenced_names(snapshot, kept), snapshot, now, _object_names_of(due)
        )
        failpoint(Failpoint.GC_REFERENCES_READ)
        objects = self._delete_objects(garbage, dry_run, self.on_object)
        if not dry_run:
            remaining = _attempt_ids_of({info.name for info in listed} - {info.name for info, _ in garbage})
            self.environment.metadata.attempts.purge(topic.id, now - self.grace_ms, keep=remaining)
            self._reschedule(snapshot, listed, listed_since, queued, now, delay_ms, times)
        failpoint(Failpoint.GC_DONE)
        foreign = _count_foreign_objects(listed)
        return CollectionResult(topic.name, topic.uid, not dry_run, objects, expired, retired, foreign, trimmed)

    def _reschedule(
        self,
        snapshot: GcSnapshot,
        listed: list[ObjectInfo],
        listed_since: int,
        queued: TopicWork | None,
        now: int,
        delay_ms: int,
        retired_due: Mapping[int, int],
    ) -> None:
        """Store the time of the topic's next collection. `queued`: its queue entry, read before the snapshot."""
        times = [self._next_collection_time(snapshot, listed_since, now, delay_ms, retired_due)]
        attempts = {attempt.attempt_id for attempt in snapshot.attempts}
        for info in listed:  # of an attempt without a row, or a row that began after the snapshot
            parsed = names.parse(info.name)
            if parsed is not None and parsed.attempt_id not in attempts and not self._is_old_enough(info, now):
                times.append(info.modified_ms + self.grace_ms + self.skew_ms + 1)
        due_at = min((time for time in times if time is not None), default=None)
        work = self.environment.metadata.topic_work
        if queued is not None:
            work.reschedule([(queued, due_at)])
        elif due_at is not None:
            work.queue(WorkKind.COLLECT, [snapshot.topic.id])

    def _next_collection_time(
        self, snapshot: GcSnapshot, listed_since: int, now: int, delay_ms: int, retired_due: Mapping[int, int]
    ) -> int | None:
        """Return the first time (ms) at which rows of the snapshot lead to work; None: none do.

        A clock that was set back, and another grace time or delay than now, may make a time too late: so none is more
        than an hour from now.
        """
        times = [
            attempt.heartbeat_at + attempt.kind.heartbeat_ttl_ms(self.grace_ms)
            for attempt in snapshot.attempts
            if attempt.finished_at is None
        ]
        times += [
            attempt.finished_at + self.grace_ms + 1  # then its row is purged as well
            for attempt in snapshot.attempts
            if attempt.finished_at is not None and attempt.finished_at >= listed_since - self.grace_ms
        ]
        times += [retired_due[item.ledger_id] for item in snapshot.compacted if item.ledger_id in retired_due]
        times += [ledger.deleted_at + delay_ms for ledger in snapshot.ledgers if ledger.deleted_at is not None]
        return min(max(min(times), now), now + GRACE_MS) if times else None

    def _is_clean(self, snapshot: GcSnapshot, listed: list[ObjectInfo], now: int) -> bool:
        """Return whether the topic needs no collection: it has no retired or trimmed ledger, no unfinished attempt, no
        attempt without objects, and no garbage."""
        if any(item.retired_at is not None for item in snapshot.compacted):
            return False
        if any(ledger.deleted_at is not None for ledger in snapshot.ledgers):
            return False
        remaining = _attempt_ids_of(info.name for info in listed)
        if any(attempt.finished_at is None or attempt.attempt_id not in remaining for attempt in snapshot.attempts):
            return False
        references = self._referenced_names(snapshot, list(snapshot.compacted))
        return not self._find_garbage(listed, references, snapshot, now, set())

    def _due_times_of_retired(self, snapshot: GcSnapshot, snapshot_age_ms: int) -> dict[int, int]:
        """Return when each retired compacted ledger may be collected (ms), by id; the others stay.

        A table that serves later shows and lists no older compacted ledger than the one that serves now, so the answer
        stays true. An unreadable manifest of the serving one, whose table is unknown, holds all that may be listed.
        """
        tables: dict[int, TableSnapshot | None] = {item.ledger_id: None for item in snapshot.compacted}
        with_table = [item for item in snapshot.compacted if item.table_metadata is not None]
        if any(item.retired_at is not None for item in with_table):
            for item in with_table:
                try:
                    tables[item.ledger_id] = read_manifest(self.environment.store, item.manifest).table
                except DataLoss:
                    if item.retired_at is None:
                        return {}
                    del tables[item.ledger_id]
        return due_times(snapshot.compacted, tables, self.grace_ms, snapshot_age_ms)

    def _delete_rows_of_retired(self, topic: TopicRecord, times: Mapping[int, int]) -> int:
        """Delete the rows of retired compacted ledgers. Return their number.

        Each row has a transaction that checks the pins. Without the row no reader can pin the ledger.
        """
        collected = 0
        pins = self.environment.metadata.pins
        for compacted in pins.retired_ledgers(topic.id):
            if compacted.retired_at is None or compacted.ledger_id not in times:
                continue
            stays_ms = times[compacted.ledger_id] - compacted.retired_at
            if pins.delete_ledger_if_unpinned(topic.id, compacted.ledger_id, stays_ms):
                collected += 1
                failpoint(Failpoint.GC_COMPACTED_COLLECTED)
        return collected

    def _is_collectable(
        self, snapshot: GcSnapshot, compacted: CompactedLedgerRecord, now: int, times: Mapping[int, int]
    ) -> bool:
        """Return, for a dry run, whether `_delete_rows_of_retired` would delete the row."""
        pinned = any(pin.ledger_id == compacted.ledger_id for pin in snapshot.pins)
        return compacted.ledger_id in times and now >= times[compacted.ledger_id] and not pinned

    def _referenced_names(self, snapshot: GcSnapshot, kept: list[CompactedLedgerRecord]) -> set[str]:
        """Return the names of all objects that rows reference, and the manifests of those rows."""
        referenced = _object_names_of(snapshot.ledgers)
        for compacted in kept:
            referenced.add(compacted.manifest.name)
            try:
                referenced |= read_manifest(self.environment.store, compacted.manifest).object_names
            except DataLoss as error:
                present = self.environment.metadata.topic_snapshot(snapshot.topic.id)
                is_current = present.compacted is not None and present.compacted.ledger_id == compacted.ledger_id
                raise type(error)(
                    f"no garbage of {snapshot.topic.name} was collected, because the references of its compacted "
                    f"ledger {compacted.ledger_id} are unknown: {error.message}",
                    lost_compacted_advice(present, error)
                    if is_current
                    else "restore the object, or wait: a grace time after it was retired, a compacted ledger is "
                    "collected without its manifest",
                ) from error
        return referenced

    def _find_garbage(
        self, listed: list[ObjectInfo], referenced: set[str], snapshot: GcSnapshot, now: int, trimmed: set[str]
    ) -> list[tuple[ObjectInfo, ParsedName]]:
        """Return the listed objects that are garbage. `trimmed`: objects that need no grace time after their delay."""
        garbage = []
        finished = {attempt.attempt_id: attempt.finished_at for attempt in snapshot.attempts}
        for info in listed:
            parsed = names.parse(info.name)
            if parsed is None or info.name in referenced:
                continue
            if info.name in trimmed:
                unneeded = True
            elif parsed.attempt_id in finished:
                ended = finished[parsed.attempt_id]
                unneeded = ended is not None and ended <= now - self.grace_ms
            else:
                unneeded = self._is_old_enough(info, now)
            if unneeded:
                garbage.append((info, parsed))
        return garbage

    def _is_old_enough(self, info: ObjectInfo, now: int) -> bool:
        return info.modified_ms < now - self.grace_ms - self.skew_ms

    def _is_due(self, deleted: DeletedTopic) -> bool:
        """Return whether the objects of a deleted topic may be deleted."""
        policies = self.environment.metadata.policies.policies_inherited_from(enclosing_scope(deleted.name)).policies
        return deleted.deleted_at <= self.environment.clock.now_ms() - policies.file_delete_delay_ms

    def _list_and_collect_deleted(self, deleted: DeletedTopic) -> CollectionResult:
        """Delete the objects of a deleted topic. Mark it as collected after a grace time, in which late writers end."""
        is_last = deleted.deleted_at < self.environment.clock.now_ms() - self.grace_ms
        listed = list(self.environment.store.list(names.topic_prefix(deleted.uid)))
        result = self._collect_deleted(deleted, listed, dry_run=False)
        if is_last:
            self.environment.metadata.tenancy.set_collected(deleted.uid)
        return result

    def _collect_deleted(self, deleted: DeletedTopic, listed: list[ObjectInfo], dry_run: bool) -> CollectionResult:
        """Delete the objects of a deleted topic after its delay."""
        failpoint(Failpoint.GC_LISTED)
        due = self._is_due(deleted)
        parsed = ((info, names.parse(info.name)) for info in listed if due)
        garbage = [(info, name) for info, name in parsed if name is not None]
        objects = self._delete_objects(garbage, dry_run, self.on_object)
        return CollectionResult(
            deleted.name, deleted.uid, not dry_run, objects, foreign=_count_foreign_objects(listed), topic_deleted=True
        )

    def _collect_unknown_topic(
        self, uid: str, listed: list[ObjectInfo], dry_run: bool, delete: bool
    ) -> CollectionResult:
        """Delete, or only count, the objects of a topic without a row. A deleted row never returns."""
        failpoint(Failpoint.GC_LISTED)
        now = self.environment.clock.now_ms()
        parsed = ((info, names.parse(info.name)) for info in listed)
        garbage = ((info, name) for info, name in parsed if name is not None and self._is_old_enough(info, now))
        deleted = delete and not dry_run
        objects = self._delete_objects(garbage, not deleted, self.on_object if delete else lambda _: None)
        return CollectionResult(None, uid, deleted, objects, foreign=_count_foreign_objects(listed))

    def _delete_objects(
        self, garbage: Iterable[tuple[ObjectInfo, ParsedName]], dry_run: bool, report: Callable[[ObjectInfo], object]
    ) -> dict[ObjectKind, ObjectTotals]:
        objects: dict[ObjectKind, ObjectTotals] = {}
        for info, parsed in garbage:
            if not dry_run:
                failpoint(Failpoint.GC_BEFORE_DELETE)
                self.environment.store.delete(info.name)
                failpoint(Failpoint.GC_DELETED_ONE)
            objects[parsed.kind] = objects.get(parsed.kind, ObjectTotals()) + ObjectTotals(1, info.size)
            report(info)
        return objects


def _collect_without_raising(
    name: TopicName | None, uid: str, collect: Callable[[], CollectionResult]
) -> CollectionResult:
    """Collect one topic, and return the result.

    DataLoss, NotFound and Misconfigured become its `error`, so that other topics are collected nevertheless.
    """
    try:
        return collect()
    except (DataLoss, NotFound, Misconfigured) as error:
        return CollectionResult(name, uid, False, error=error)


def _attempt_ids_of(object_names: Iterable[str]) -> set[str]:
    """Return the ids of the attempts that wrote these objects."""
    return {parsed.attempt_id for parsed in map(names.parse, object_names) if parsed is not None}


def _object_names_of(ledgers: Iterable[LedgerRecord]) -> set[str]:
    return {name for ledger in ledgers for name in (ledger.rows.name, ledger.index.name)}


def _count_foreign_objects(listed: Iterable[ObjectInfo]) -> int:
    return sum(names.parse(info.name) is None for info in listed)
