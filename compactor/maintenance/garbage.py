"""Garbage collection: delete the objects that no row and no manifest refers to, and no reader may still need (A3).

Per topic, in this order, which is what makes it safe beside imports, runs, readers and other collectors:

    list      all objects of the topic, first: what is written later is left for the next collection
    expire    attempts whose heartbeat is older than the grace time are finished: fenced in SQL, before an object goes
    collect   the rows of compacted ledgers that retired a grace time ago and that no live pin holds
    purge     the rows of raw ledgers that were trimmed `file.delete.delay` ago (C3); their objects need no other grace
    refer     in one snapshot: rows of ledgers and compacted ledgers, attempts; then every manifest of those
    delete    what was listed and is not referred to, unless its attempt is unfinished, or finished less than a grace
              time ago; of an attempt without a row, unless the store modified it less than a grace time
              and `skew_ms` ago
    purge     rows of attempts that were finished a grace time ago and have no object left, referred to or not

Where one snapshot shows that there is nothing to do in any of these steps, as of most topics at most times, the
collection ends with it.

A new row or manifest refers to objects of its own attempt, which was known before its first object, and to what the
generation before it refers to, which serves until then. So nothing that is deleted is ever referred to again.

A topic that was deleted (S8) has no rows, so no row can refer to its objects: all of them go `file.delete.delay` after
the topic, so that readers may finish. An object that a late writer adds goes with the next collection.

Each step can be cut off and done again. A manifest that cannot be read makes an error that names it, and nothing of
its topic is deleted: what it refers to is not guessed. Foreign names are left alone and counted.
Times decide only how long garbage stays and when a reader loses its pin; no clock, however wrong, costs what serves.

Memory: the names of one topic's objects, and of those that it refers to. Must not know: Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby

from compactor.maintenance.grace import GRACE_MS
from storage.environment import Environment
from storage.errors import DataLoss, NotFound
from storage.failpoints import Failpoint, failpoint
from storage.ledger import names
from storage.ledger.manifest import read_manifest
from storage.ledger.names import ObjectKind, ParsedName
from storage.metadata.liveness import beating
from storage.metadata.policy_store import namespace_scope
from storage.metadata.records import CompactedLedgerRecord, DeletedTopic, GcSnapshot, TopicRecord
from storage.model import LedgerRecord, TopicName
from storage.objects.interface import ObjectInfo
from storage.store_identity import StoreIdentity

SKEW_MS = 300_000
"""How far the store's clock and ours may be apart."""


@dataclass(frozen=True)
class ObjectTotals:
    """Objects, and their bytes in the store."""

    count: int = 0
    bytes: int = 0

    def __add__(self, other: ObjectTotals) -> ObjectTotals:
        return ObjectTotals(self.count + other.count, self.bytes + other.bytes)


@dataclass(frozen=True)
class CollectionResult:
    """What the collection of one topic did; or would do, unless `deleted`.

    `topic` None: the database knows no topic with this uid. `over`: the topic was deleted (S8). `foreign`: objects
    below its prefix that are not ours. `error`: why nothing of it was deleted.
    """

    topic: TopicName | None
    topic_uid: str
    deleted: bool
    objects: Mapping[ObjectKind, ObjectTotals] = field(default_factory=dict)
    attempts_given_up: int = 0
    compacted_ledgers: int = 0
    foreign: int = 0
    trimmed_ledgers: int = 0
    error: DataLoss | NotFound | None = None
    over: bool = False

    @property
    def total(self) -> ObjectTotals:
        """Over all kinds of objects."""
        return sum(self.objects.values(), ObjectTotals())


@dataclass(frozen=True)
class GarbageCollector:
    """Collects topic by topic. `on_object` is called with each object that was deleted, or would be."""

    environment: Environment
    grace_ms: int = GRACE_MS
    skew_ms: int = SKEW_MS
    on_object: Callable[[ObjectInfo], object] = lambda _: None

    def collect(self, topic: TopicRecord, dry_run: bool = False) -> CollectionResult:
        """Collect one topic. Raises DataLoss (nothing was deleted then), TopicNotFound; Misconfigured for a store that
        is another database's."""
        self._refuse_other_store(dry_run)
        return self._collect(topic, list(self.environment.store.list(names.topic_prefix(topic.uid))), dry_run)

    def collect_all(self, dry_run: bool = False, unknown_topics: bool = False) -> Iterator[CollectionResult]:
        """Collect every topic, in one listing; a topic that fails does so alone, and has the reason in `error`.

        Topics that the database does not know are deleted whole after the grace time with `unknown_topics`, else only
        counted: they may be another database's. Raises Misconfigured for a store that is.
        """
        self._refuse_other_store(dry_run)
        known = {topic.uid: topic for topic in self.environment.metadata.topics.all()}
        seen = set()
        for uid, listed in self._by_topic():
            if uid not in known:  # a new topic, or one whose row is gone: rows come before objects, and go before
                known = {topic.uid: topic for topic in self.environment.metadata.topics.all()}
            seen.add(uid)
            if uid in known:
                yield self._alone(known[uid], listed, dry_run)
            elif deleted := self.environment.metadata.tenancy.deleted_topic(uid):
                yield self._collect_deleted(deleted, listed, dry_run)
            else:
                yield self._unknown(uid, listed, dry_run, unknown_topics)
        for uid, topic in known.items():
            if uid not in seen:
                yield self._alone(topic, [], dry_run)

    def _refuse_other_store(self, dry_run: bool) -> None:
        identity = StoreIdentity(self.environment.metadata, self.environment.store)
        identity.check() if dry_run else identity.require()

    def _by_topic(self) -> Iterator[tuple[str, list[ObjectInfo]]]:
        """The objects of each topic, by its uid: a whole listing of it, in memory one at a time."""
        for uid, listed in groupby(self.environment.store.list(names.TOPICS), lambda info: info.name.split("/")[1]):
            yield uid, list(listed)

    def _alone(self, topic: TopicRecord, listed: list[ObjectInfo], dry_run: bool) -> CollectionResult:
        try:
            return self._collect(topic, listed, dry_run)
        except (DataLoss, NotFound) as error:
            return CollectionResult(topic.name, topic.uid, False, error=error)

    def _collect(self, topic: TopicRecord, listed: list[ObjectInfo], dry_run: bool) -> CollectionResult:
        failpoint(Failpoint.GC_LISTED)
        now = self.environment.clock.now_ms()
        if self._is_clean(self.environment.metadata.pins.referenced(topic.id), listed, now):
            return CollectionResult(topic.name, topic.uid, not dry_run, foreign=_foreign(listed))
        given_up = 0 if dry_run else len(self.environment.metadata.runs.expire_attempts(topic.id, self.grace_ms))
        failpoint(Failpoint.GC_ATTEMPTS_FENCED)
        retired = 0 if dry_run else self._collect_retired(topic)
        marked_before = now - self.environment.metadata.policies.effective(topic).file_delete_delay_ms
        going = [
            item for item in self.environment.metadata.trimming.trimmed(topic.id) if _was_marked(item, marked_before)
        ]
        trimmed = len(going) if dry_run else self._purge_trimmed(topic, marked_before)
        snapshot = self.environment.metadata.pins.referenced(topic.id)
        kept = list(snapshot.compacted)
        if dry_run:
            given_up = sum(
                attempt.finished_at is None and not beating(self.grace_ms, now).has(attempt.heartbeat_at)
                for attempt in snapshot.attempts
            )
            kept = [item for item in kept if not self._may_go(snapshot, item, now)]
            retired = len(snapshot.compacted) - len(kept)
            snapshot = replace(snapshot, ledgers=tuple(ledger for ledger in snapshot.ledgers if ledger not in going))
        garbage = self._garbage(listed, self._references(snapshot, kept), snapshot, now, _objects_of(going))
        failpoint(Failpoint.GC_REFERENCES_READ)
        objects = self._delete(garbage, dry_run, self.on_object)
        if not dry_run:
            remaining = _attempts_of({info.name for info in listed} - {info.name for info, _ in garbage})
            self.environment.metadata.attempts.purge(topic.id, now - self.grace_ms, keep=remaining)
        failpoint(Failpoint.GC_DONE)
        foreign = _foreign(listed)
        return CollectionResult(topic.name, topic.uid, not dry_run, objects, given_up, retired, foreign, trimmed)

    def _is_clean(self, snapshot: GcSnapshot, listed: list[ObjectInfo], now: int) -> bool:
        """Whether there is nothing to expire, to collect, to purge or to delete, and no attempt is unfinished."""
        if any(item.retired_at is not None for item in snapshot.compacted):
            return False
        if any(ledger.deleted_at is not None for ledger in snapshot.ledgers):
            return False
        remaining = _attempts_of(info.name for info in listed)
        if any(attempt.finished_at is None or attempt.attempt_id not in remaining for attempt in snapshot.attempts):
            return False
        references = self._references(snapshot, list(snapshot.compacted))
        return not self._garbage(listed, references, snapshot, now, set())

    def _collect_retired(self, topic: TopicRecord) -> int:
        """The rows go first, each in one transaction that checks the pins; then no reader can pin them any more."""
        collected = 0
        for compacted in self.environment.metadata.pins.retired(topic.id):
            if self.environment.metadata.pins.collect(topic.id, compacted.ledger_id, self.grace_ms):
                collected += 1
                failpoint(Failpoint.GC_COMPACTED_COLLECTED)
        return collected

    def _purge_trimmed(self, topic: TopicRecord, marked_before: int) -> int:
        """Readers that began before these ledgers were marked had the delay to finish."""
        forgotten = self.environment.metadata.trimming.purge(topic.id, marked_before)
        if forgotten:
            failpoint(Failpoint.TRIM_FORGOTTEN)
        return forgotten

    def _may_go(self, snapshot: GcSnapshot, compacted: CompactedLedgerRecord, now: int) -> bool:
        """For a dry run: what `pins.collect` would say."""
        pinned = any(pin.ledger_id == compacted.ledger_id for pin in snapshot.pins)
        return compacted.retired_at is not None and now - compacted.retired_at >= self.grace_ms and not pinned

    def _references(self, snapshot: GcSnapshot, kept: list[CompactedLedgerRecord]) -> set[str]:
        """The names of all objects that rows, and manifests that rows name, refer to."""
        referenced = {ledger.rows.name for ledger in snapshot.ledgers}
        referenced |= {ledger.index.name for ledger in snapshot.ledgers}
        for compacted in kept:
            referenced.add(compacted.manifest.name)
            try:
                referenced |= read_manifest(self.environment.store, compacted.manifest).objects
            except DataLoss as error:
                raise type(error)(
                    f"nothing of {snapshot.topic.name} was collected, because what its compacted ledger "
                    f"{compacted.ledger_id} refers to is not known: {error.message}",
                    "restore the object; or delete the cursor __compaction if that ledger serves: a grace time after "
                    "it was retired, a compacted ledger is collected without its manifest",
                ) from error
        return referenced

    def _garbage(
        self, listed: list[ObjectInfo], referenced: set[str], snapshot: GcSnapshot, now: int, trimmed: set[str]
    ) -> list[tuple[ObjectInfo, ParsedName]]:
        """What of `listed` may go; objects of `trimmed` ledgers have had their delay, and need no grace time."""
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
                unneeded = self._old(info, now)
            if unneeded:
                garbage.append((info, parsed))
        return garbage

    def _old(self, info: ObjectInfo, now: int) -> bool:
        return info.modified_ms < now - self.grace_ms - self.skew_ms

    def _collect_deleted(self, deleted: DeletedTopic, listed: list[ObjectInfo], dry_run: bool) -> CollectionResult:
        """What a deleted topic left; nothing while its delay is not over."""
        failpoint(Failpoint.GC_LISTED)
        scope = namespace_scope(f"{deleted.name.tenant}/{deleted.name.namespace}")
        policies = self.environment.metadata.policies.resolved_around(scope).policies
        due = deleted.deleted_at <= self.environment.clock.now_ms() - policies.file_delete_delay_ms
        parsed = ((info, names.parse(info.name)) for info in listed if due)
        garbage = [(info, one) for info, one in parsed if one is not None]
        objects = self._delete(garbage, dry_run, self.on_object)
        return CollectionResult(deleted.name, deleted.uid, not dry_run, objects, foreign=_foreign(listed), over=True)

    def _unknown(self, uid: str, listed: list[ObjectInfo], dry_run: bool, wanted: bool) -> CollectionResult:
        """A topic without a row: it cannot be written or read any more, if the row was ever in this database."""
        failpoint(Failpoint.GC_LISTED)
        now = self.environment.clock.now_ms()
        parsed = ((info, names.parse(info.name)) for info in listed)
        garbage = ((info, one) for info, one in parsed if one is not None and self._old(info, now))
        deleted = wanted and not dry_run
        objects = self._delete(garbage, not deleted, self.on_object if wanted else lambda _: None)
        return CollectionResult(None, uid, deleted, objects, foreign=_foreign(listed))

    def _delete(
        self, garbage: Iterable[tuple[ObjectInfo, ParsedName]], dry_run: bool, tell: Callable[[ObjectInfo], object]
    ) -> dict[ObjectKind, ObjectTotals]:
        objects: dict[ObjectKind, ObjectTotals] = {}
        for info, parsed in garbage:
            if not dry_run:
                failpoint(Failpoint.GC_BEFORE_DELETE)
                self.environment.store.delete(info.name)
                failpoint(Failpoint.GC_DELETED_ONE)
            objects[parsed.kind] = objects.get(parsed.kind, ObjectTotals()) + ObjectTotals(1, info.size)
            tell(info)
        return objects


def _attempts_of(object_names: Iterable[str]) -> set[str]:
    """The ids of the attempts that wrote these objects."""
    return {parsed.attempt_id for parsed in map(names.parse, object_names) if parsed is not None}


def _was_marked(ledger: LedgerRecord, before: int) -> bool:
    """Whether the ledger was trimmed at that time (ms) or earlier."""
    return ledger.deleted_at is not None and ledger.deleted_at <= before


def _objects_of(ledgers: Iterable[LedgerRecord]) -> set[str]:
    return {name for ledger in ledgers for name in (ledger.rows.name, ledger.index.name)}


def _foreign(listed: Iterable[ObjectInfo]) -> int:
    return sum(names.parse(info.name) is None for info in listed)
