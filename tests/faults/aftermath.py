"""Checks of a topic after any failure: the numbered properties of semantics.md.

`look` before, let it go wrong, then `check_state` (changes nothing), `check_recovery` (appends, imports and compacts),
`check_garbage_collection` and `check_explicit_loss` (loses an object on purpose). The model is a plain fold over the
raw messages; where a world has trimmed them, the compacted ledger that was there before is what it goes by.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pytest
from sqlalchemy import delete

from compactor.maintenance.garbage import GarbageCollector, ObjectTotals
from compactor.maintenance.grace import GRACE_MS
from compactor.two_phase import HEARTBEAT_MS
from storage.errors import DataLoss, Fenced
from storage.ledger import names
from storage.ledger.manifest import read_manifest
from storage.log.log_manager import SEALER_DEAD_MS
from storage.log.segment import SegmentPaths
from storage.metadata.records import COMPACTED_LEDGER_PROPERTY, COMPACTION_CURSOR, RunState, SegmentState, TopicSnapshot
from storage.metadata.tables import topic_work
from storage.metadata.topic_work import WorkKind
from storage.model import Message
from storage.objects.local import TEMPORARY_FOLDER, LocalStore
from tests.faults.stages import TOPIC, TRIMMED, Pairs, append, compact, import_table
from tests.tables import by_pyiceberg, expected, table_uri
from tests.workbench import Workbench, content, raw, view

NEXT = content((b"key-05", b"after the crash"), (b"key-06", None), (b"after", b"the crash"))
"""The import that must still be possible."""
NEXT_ENTRIES: tuple[Pairs, ...] = (((b"key-08", b"appended after the crash"),), ((b"key-09", None), (b"last", b"!")))
"""And the appends before it."""


@dataclass(frozen=True)
class Written:
    """Entries that were written to the log; of the first that many it was said that they are there for good."""

    entries: tuple[Pairs, ...] = ()
    acknowledged: int = 0

    def visible(self, count: int) -> list[tuple[bytes | None, bytes | None]]:
        """The messages of the first entries."""
        return [pair for entry in self.entries[:count] for pair in entry]


NOTHING = Written()


@dataclass(frozen=True)
class Seen:
    """A topic as readers see it. `delivered`: what a reader of the compacted view gets, with its tail."""

    snapshot: TopicSnapshot
    raw: list[Message]
    delivered: list[Message]

    @property
    def compacted(self) -> list[Message]:
        """The messages of the compacted ledger."""
        horizon = self.snapshot.horizon
        return [message for message in self.delivered if horizon is not None and message.offset <= horizon.offset]


def look(bench: Workbench) -> Seen:
    topic = bench.topic(TOPIC)
    return Seen(topic.snapshot(), raw(topic), list(topic.messages(read_compacted=True)))


def check_state(
    bench: Workbench,
    before: Seen,
    appended: pa.Table | None = None,
    published: bool = False,
    written: Written = NOTHING,
    *,
    trimmed: bool = False,
) -> None:
    """Properties 1, 5, 7, 10, 18: exactly `appended` was added, and a generation if `published`; and no half of it.

    Of what was `written` to the log, what was acknowledged is there, and perhaps more, entry by entry.
    """
    after = look(bench)
    kept = [message for message in before.raw if not trimmed or message.offset >= TRIMMED]
    assert after.raw[: len(kept)] == kept
    added = [(m.key, m.payload) for m in after.raw[len(kept) :]]
    if written.entries:
        assert added in [written.visible(n) for n in range(written.acknowledged, len(written.entries) + 1)]
    else:
        assert added == ([] if appended is None else _pairs(appended))
    assert after.snapshot.topic.generation == before.snapshot.topic.generation + published
    if not published:
        assert after.compacted == before.compacted
        assert after.snapshot.compacted == before.snapshot.compacted
    check_reads(after, trimmed=trimmed)
    check_pieces(bench, after)
    check_table(bench, after)
    check_queue(bench, before.snapshot, after.snapshot)
    old, new = before.snapshot.horizon, after.snapshot.horizon
    assert old is None or (new is not None and new >= old)
    if published:
        assert new is not None
        assert new.offset == before.raw[-1].offset
    assert referenced(bench) <= listed(bench)
    check_leftovers(bench)


def empty_queue(bench: Workbench) -> None:
    """Remove all topics from the queue of due compactions, as a check that finds nothing due."""
    with bench.metadata.database.write() as connection:
        connection.execute(delete(topic_work).where(topic_work.c.kind == WorkKind.COMPACT.value))


def check_queue(bench: Workbench, before: TopicSnapshot, after: TopicSnapshot) -> None:
    """Check that whatever may make a topic due has queued it; `before`, the queue was empty."""
    queued = bench.metadata.topic_work.of_topics(WorkKind.COMPACT, [after.topic.id])
    assert queued or _closed(before) == _closed(after)


def _closed(snapshot: TopicSnapshot) -> object:
    """Return what the database knows of a topic's backlog."""
    serving = snapshot.compacted.ledger_id if snapshot.compacted else None
    return serving, [extent.ledger_id for extent in snapshot.extents if extent.content is not None]


def check_pieces(bench: Workbench, seen: Seen) -> None:
    """L4: each message is in a ledger or in a segment that is none yet, never in both, never in neither."""
    snapshot = seen.snapshot
    segments = [segment for segment in snapshot.segments if segment.content is not None]
    bounds = [(ledger.first_offset, ledger.last_offset) for ledger in snapshot.ledgers]
    bounds += [
        (segment.first_offset, segment.content.last_offset) for segment in segments if segment.content is not None
    ]
    bounds.sort()
    assert bounds[0][0] == snapshot.topic.start_offset
    assert [first for first, _ in bounds[1:]] == [last + 1 for _, last in bounds[:-1]]
    assert bounds[-1][1] + 1 == snapshot.topic.next_offset
    offsets = [message.offset for message in seen.raw]
    assert offsets == list(range(snapshot.topic.start_offset, offsets[-1] + 1))
    rows = bench.metadata.segments.of_topic(snapshot.topic.id)
    known = {ledger.ledger_id for ledger in snapshot.ledgers}
    assert all((row.ledger_id in known) == (row.state is SegmentState.SEALED) for row in rows)


def check_files(bench: Workbench) -> None:
    """When all is over, the log has the files of segments that are no ledgers yet, and no other."""
    topic = bench.topic(TOPIC)
    topic.log_manager().remove_sealed_files()
    folder = bench.log.topic_folder(topic.record.uid)
    needed = {SegmentPaths(folder, segment.first_offset).log.name for segment in topic.snapshot().segments}
    assert {path.name for path in folder.glob("*.log")} == needed
    assert {path.with_suffix(".log").name for path in folder.iterdir()} == needed
    assert len(bench.metadata.segments.of_topic(topic.record.id)) == len(needed)


def check_reads(seen: Seen, *, trimmed: bool = False) -> None:
    """Properties 1, 2, 18: the compacted ledger and its tail are the fold of raw, and the cursor points to it.

    `trimmed`: raw does not hold all that they hold any more.
    """
    everything, delivered, snapshot = seen.raw, seen.delivered, seen.snapshot
    ids = [message.message_id for message in delivered]
    assert ids == sorted(set(ids))
    if trimmed:
        behind = [message for message in delivered if message.offset >= TRIMMED]
        assert {message.message_id for message in behind} <= {message.message_id for message in everything}
        keys_of_raw = {message.key for message in everything}
        assert {k: v for k, v in view(delivered).items() if k in keys_of_raw} == view(everything)
        assert any(message.offset < TRIMMED for message in delivered)
    else:
        assert set(ids) <= {message.message_id for message in everything}
        assert view(delivered) == view(everything)
    if snapshot.compacted is None:
        assert snapshot.cursor is None
    else:
        keys = [message.key for message in seen.compacted]
        assert len(keys) == len(set(keys))
        assert snapshot.cursor is not None
        assert snapshot.cursor.properties[COMPACTED_LEDGER_PROPERTY] == str(snapshot.compacted.ledger_id)
        assert snapshot.cursor.mark_delete == snapshot.compacted.horizon


def check_recovery(bench: Workbench, written: Written = NOTHING, *, trimmed: bool = False) -> None:
    """Properties 1, 8, 17: once heartbeats and leases are over, whatever comes next goes as if nothing had been."""
    bench.clock.advance(max(HEARTBEAT_MS, SEALER_DEAD_MS) + 1)
    before = look(bench)
    dead = before.snapshot.last_run
    append(bench, NEXT_ENTRIES)
    import_table(bench, NEXT)
    if isinstance(bench.store, LocalStore):
        check_no_temporary_files(bench.store)
    extended = look(bench)
    everything = extended.raw
    assert everything[: len(before.raw)] == before.raw
    added = [(m.key, m.payload) for m in everything[len(before.raw) :]]
    appended = [*Written(NEXT_ENTRIES).visible(len(NEXT_ENTRIES)), *_pairs(NEXT)]
    surfaced = added[: len(added) - len(appended)]
    assert added[len(surfaced) :] == appended
    if surfaced:  # it was written, and its writer died before it said so
        assert surfaced == written.visible(len(written.entries))[-len(surfaced) :]
    ids = [message.message_id for message in everything]
    assert ids == sorted(set(ids))
    check_pieces(bench, extended)
    compact(bench)
    after = look(bench)
    assert after.raw == everything
    check_reads(after, trimmed=trimmed)
    check_pieces(bench, after)
    check_table(bench, after)
    snapshot = after.snapshot
    assert snapshot.last_run is not None
    assert snapshot.last_run.state is RunState.SUCCESS
    assert snapshot.compacted is not None
    assert snapshot.horizon is not None
    assert snapshot.horizon.offset == everything[-1].offset
    if dead is not None and dead.state is RunState.RUNNING:
        assert bench.metadata.runs.get(dead.run_id).state is RunState.ERROR
        with pytest.raises(Fenced):
            bench.metadata.publishing.publish(dead, snapshot.topic.generation, snapshot.compacted, {})


def check_garbage_collection(bench: Workbench, *, trimmed: bool = False) -> None:
    """Properties 7 and 9: young garbage stays; of old garbage nothing does, and of the rest nothing goes.

    Of trimmed ledgers nothing stays behind their own delay, which is shorter.
    """
    topic = bench.topic(TOPIC)
    collector = GarbageCollector(bench)
    stored = listed(bench)
    young = collector.collect(topic.record)
    assert (young.total.count > 0) == (young.trimmed_ledgers > 0)
    assert trimmed or not young.trimmed_ledgers
    bench.clock.advance(GRACE_MS + 1)
    collect_due(collector)  # of the attempts that it gives up nothing goes yet
    bench.clock.advance(GRACE_MS + 1)
    before, needed, everything = listed(bench), referenced(bench), raw(topic)
    assert needed <= before <= stored
    would_go = collector.collect(topic.record, dry_run=True).total
    assert listed(bench) == before
    assert collect_due(collector) == would_go, "the queue leads to all garbage"
    assert listed(bench) == needed
    assert collector.collect(topic.record).total.count == 0
    check_files(bench)
    after = look(bench)
    assert after.raw == everything
    check_reads(after, trimmed=trimmed)
    check_table(bench, after)


def check_table(bench: Workbench, seen: Seen) -> None:
    """The topic's Iceberg table, if it has one, is the compacted ledger that serves, and its snapshot."""
    topic = bench.topic(TOPIC)
    if not bench.metadata.policies.effective(topic.record).table_enabled:
        return
    table = bench.manifest(topic).table
    assert table is not None
    assert seen.snapshot.compacted is not None
    assert table.ledger_id == seen.snapshot.compacted.ledger_id
    assert table.metadata == seen.snapshot.compacted.table_metadata
    if isinstance(bench.store, LocalStore):
        assert by_pyiceberg(table_uri(bench, topic)) == expected(topic)


def collect_due(collector: GarbageCollector) -> ObjectTotals:
    """Collect what the queue leads to, without a listing of the whole store; return the deleted objects."""
    reports = list(collector.collect_due())
    assert [report.error for report in reports if report.error] == []
    return sum((report.total for report in reports), ObjectTotals())


def check_emptied(bench: Workbench, before: Seen) -> None:
    """S8, C2: the topic, or the one of its name, begins with nothing, takes what is new, and all else is garbage."""
    topic = bench.topic(TOPIC)
    first = topic.record.next_offset if topic.record.uid == before.snapshot.topic.uid else 0
    assert topic.snapshot().extents == ()
    assert [*raw(topic), *topic.messages(read_compacted=True)] == []
    import_table(bench, NEXT)
    append(bench, NEXT_ENTRIES)
    compact(bench)
    assert [message.offset for message in raw(topic)] == list(range(first, first + 6))
    check_reads(look(bench))
    for _ in range(3):  # the attempts of the dead process are abandoned, then their objects are removed
        bench.clock.advance(GRACE_MS + 1)
        reports = list(GarbageCollector(bench).collect_due())
        assert [(report.error, report.foreign) for report in reports if report.error or report.foreign] == []
    assert listed(bench) == referenced(bench)
    check_files(bench)
    assert [folder.name for folder in bench.log.topic_folders()] == [topic.record.uid]
    check_reads(look(bench))


def check_explicit_loss(bench: Workbench) -> None:
    """Property 15 (R8), and 17: a lost part is an error that names it, raw continues, deleting the cursor clears it."""
    topic = bench.topic(TOPIC)
    compacted = topic.snapshot().compacted
    assert compacted is not None
    lost = read_manifest(bench.store, compacted.manifest).parts[0].rows.stored.name
    everything = raw(topic)
    bench.store.delete(lost)
    with pytest.raises(DataLoss, match=lost):
        list(topic.messages(read_compacted=True))
    assert raw(topic) == everything
    bench.metadata.cursors.delete(topic.record.id, COMPACTION_CURSOR)
    assert topic.snapshot().horizon is None
    compact(bench)
    after = look(bench)
    assert after.raw == everything
    check_reads(after)


def check_leftovers(bench: Workbench) -> None:
    """Property 7: what no row refers to has a name of ours, and belongs to an attempt that is known."""
    for name in listed(bench) - referenced(bench):
        parsed = names.parse(name)
        assert parsed is not None
        assert bench.metadata.attempts.find(parsed.attempt_id) is not None, name


def check_no_temporary_files(store: LocalStore) -> None:
    """A store that has written again has cleared away the temporary files of dead processes."""
    assert list((store.root / TEMPORARY_FOLDER).iterdir()) == []


def referenced(bench: Workbench) -> set[str]:
    """The objects that the topic's raw ledgers and the serving compacted ledger refer to."""
    snapshot = bench.topic(TOPIC).snapshot()
    objects = {name for ledger in snapshot.ledgers for name in (ledger.rows.name, ledger.index.name)}
    if snapshot.compacted is not None:
        objects |= {snapshot.compacted.manifest.name}
        manifest = read_manifest(bench.store, snapshot.compacted.manifest)
        objects |= {part.rows.stored.name for part in manifest.parts}
        objects |= {part.deleted.name for part in manifest.parts if part.deleted}
        objects |= {location.name for level in manifest.index for location in level}
        if manifest.table is not None:
            table = manifest.table
            objects |= {each.name for each in (table.metadata, table.manifest_list, *table.manifests)}
            objects |= {each.stored.name for each in table.deletes}
    return objects


def listed(bench: Workbench) -> set[str]:
    return {info.name for info in bench.store.list("topics/")}


def _pairs(*tables: pa.Table) -> list[tuple[bytes | None, bytes | None]]:
    rows: Iterable[dict[str, bytes | None]] = [row for table in tables for row in table.to_pylist()]
    return [(row["key"], row["payload"]) for row in rows]
