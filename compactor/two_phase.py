"""One compaction run, in call order: claim → snapshot → phase one → phase two → verify → publish → clean up.

    claim      one run a topic; the epoch grows, policies and clock are frozen in the run's row
    snapshot   the end position, once (P2); sources are the previous compacted ledger's parts, then raw behind them
    phase one  one task a hash range: key indexes in, row sets and the new key index out   (compactor/phase_one.py)
    phase two  one task a part: survivors are copied, payloads are never shuffled          (compactor/phase_two.py)
    verify     phase two kept exactly what phase one promised, and the store has it
    publish    manifest create-if-absent, then one SQL transaction with compare-and-swap on generation and epoch (A1)

Whatever fails before the transaction leaves the old generation as it was and only unreferenced objects (W3); the
original error is kept in the run's row and raised. A run that was fenced (its heartbeat stopped, the cursor or topic
was deleted) is cancelled and can never publish.

This module knows nothing of Spark: an `Engine` runs the tasks. Nothing here is per key or per message.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import partial

from compactor.engine import Engine, Progress, Quiet, answers
from compactor.phase_one import run_range
from compactor.phase_two import run_part
from compactor.plan import (
    PartPlan,
    PartResult,
    Policies,
    RangeResult,
    RunPlan,
    Sizing,
    Source,
    SourceTotals,
    cut_parts,
    promised,
    range_bits,
)
from storage.clock import Clock
from storage.errors import CompactorError, DataLoss, Fenced, ObjectDamaged
from storage.heartbeat import Heartbeat
from storage.ledger import names
from storage.ledger.key_index import IndexDirectory
from storage.ledger.manifest import Manifest, Part, read_manifest, write_manifest
from storage.ledger.rows_file import RowsObject
from storage.metadata.records import CompactedLedgerRecord, RunRecord, RunState, TopicSnapshot
from storage.metadata.store import MetadataStore
from storage.model import Position, TopicName
from storage.objects.interface import ObjectStore
from storage.topic import holder_name

HEARTBEAT_MS = 30_000
"""A run whose heartbeat is older than this is held for dead and may be taken over."""


@dataclass(frozen=True)
class Outcome:
    """What a trigger led to. `run` None: nothing was new, so no run was made (P11)."""

    topic: TopicName
    run: RunRecord | None

    @property
    def compacted_ledger_id(self) -> int | None:
        """The compacted ledger that this run published, if it did."""
        return self.run.compacted_ledger_id if self.run else None


@dataclass(frozen=True)
class TwoPhaseCompactor:
    """Compacts topics; holds the components, no state of a run. `sizing` None: by the engine's parallelism."""

    metadata: MetadataStore
    store: ObjectStore
    clock: Clock
    engine: Engine
    progress: Progress = field(default_factory=Quiet)
    sizing: Sizing | None = None

    def compact(self, name: TopicName, policies: Policies = Policies()) -> Outcome:  # noqa: B008
        """Compact one topic. Raises TopicNotFound, CompactionRunning, Fenced, DataLoss, Unavailable."""
        topic = self.metadata.topic(name)
        if nothing_new(self.metadata.snapshot(topic.id), policies):
            return Outcome(name, None)
        run = self.metadata.claim_run(topic.id, holder_name(), asdict(policies), HEARTBEAT_MS)
        try:
            with Heartbeat(lambda: self.metadata.update_run(run), HEARTBEAT_MS / 5000, self.engine.cancel):
                return Outcome(name, self._run_or_say_why_not(run, policies))
        except BaseException as error:
            self._record_failure(run, error)
            raise
        finally:
            self.progress.end()

    def _run_or_say_why_not(self, run: RunRecord, policies: Policies) -> RunRecord:
        """A run that was fenced finds its engine cancelled; the database knows by whom it was overtaken."""
        try:
            return self._run(run, policies)
        except Fenced:
            self.metadata.update_run(run)
            raise

    def _run(self, run: RunRecord, policies: Policies) -> RunRecord:
        timer = _PhaseTimer(self.clock)
        snapshot = self.metadata.snapshot(run.topic_id)
        if snapshot.topic.epoch != run.epoch:
            raise Fenced(f"run {run.run_id} of {snapshot.topic.name} was overtaken", "look at the newer run")
        horizon = end_position(snapshot)
        if horizon is None:
            return self.metadata.finish_run(run, {"messages_in": 0, "messages_out": 0})
        run = self.metadata.update_run(run, phase="phase one", horizon=horizon)
        plan = self._plan(snapshot, run, policies)
        messages_in = sum(source.messages for source in plan.sources)
        timer.lap("snapshot")

        self.progress.phase("phase one", len(plan.ranges), messages_in)
        ranges = answers(self.engine.run(len(plan.ranges), partial(run_range, plan), self.progress.done))
        timer.lap("phase_one")

        run = self.metadata.update_run(run, phase="phase two")
        parts = tuple(cut_parts(plan, ranges, self._sizing))
        expected = promised(ranges)
        survivors = sum(totals.count for totals in expected.values())
        self.progress.phase("phase two", len(parts), survivors)
        results = answers(self.engine.run(len(parts), partial(run_part, plan, parts), self.progress.done))
        timer.lap("phase_two")

        run = self.metadata.update_run(run, phase="verify")
        verify(self.store, expected, results)
        timer.lap("verify")

        run = self.metadata.update_run(run, phase="publish")
        manifest = self._manifest(snapshot, run, horizon, ranges, results)
        statistics = statistics_of(messages_in, ranges, parts, results, manifest)
        run = self._publish(snapshot, run, manifest, statistics | timer.lap("publish"))
        self._clean_up(ranges)
        return run

    @property
    def _sizing(self) -> Sizing:
        return self.sizing or Sizing(self.engine.parallelism)

    def _plan(self, snapshot: TopicSnapshot, run: RunRecord, policies: Policies) -> RunPlan:
        """Sources and indexes, oldest first (P3)."""
        sources: list[Source] = []
        indexes = []
        if snapshot.compacted is not None:
            previous = self._previous(snapshot, snapshot.compacted)
            sources += [Source(one.rows, one.first.offset, one.last.offset, one.messages) for one in previous.parts]
            indexes += [location for level in reversed(previous.index) for location in level]
        for ledger in snapshot.ledgers:
            if snapshot.horizon is None or ledger.last_offset > snapshot.horizon.offset:
                rows_object = RowsObject(ledger.rows, ledger.footer_size)
                sources.append(Source(rows_object, ledger.first_offset, ledger.last_offset, ledger.messages))
                indexes.append(ledger.index)
        records = sum(IndexDirectory.decode(location.directory).records for location in indexes)
        if policies.retain_null_key:  # null keys have no record, but take as much memory
            records = max(records, sum(source.messages for source in sources))
        topic = snapshot.topic
        return RunPlan(
            self.store.location,
            topic.uid,
            topic.name.partition,
            run.attempt_id,
            policies,
            tuple(sources),
            tuple(indexes),
            range_bits(records, self._sizing),
        )

    def _previous(self, snapshot: TopicSnapshot, compacted: CompactedLedgerRecord) -> Manifest:
        try:
            return read_manifest(self.store, compacted.manifest)
        except DataLoss as error:
            raise type(error)(
                f"the compacted ledger {compacted.ledger_id} of {snapshot.topic.name} cannot be read: {error.message}",
                "restore the object, or delete the cursor __compaction so that the next run starts from raw",
            ) from error

    def _manifest(
        self,
        snapshot: TopicSnapshot,
        run: RunRecord,
        horizon: Position,
        ranges: list[RangeResult],
        results: list[PartResult],
    ) -> Manifest:
        return Manifest(
            topic=str(snapshot.topic.name),
            topic_uid=snapshot.topic.uid,
            ledger_id=self.metadata.allocate_ledger_ids(1),
            generation=snapshot.topic.generation + 1,
            run_id=run.run_id,
            created_at=self.clock.now_ms(),
            horizon=horizon,
            parts=tuple(_part(result) for result in results if result.rows is not None),
            index=(tuple(result.index for result in ranges if result.index is not None),),
        )

    def _publish(
        self, snapshot: TopicSnapshot, run: RunRecord, manifest: Manifest, statistics: dict[str, object]
    ) -> RunRecord:
        name = names.manifest(manifest.topic_uid, manifest.ledger_id, run.attempt_id)
        compacted = CompactedLedgerRecord(
            ledger_id=manifest.ledger_id,
            generation=manifest.generation,
            horizon=manifest.horizon,
            manifest=write_manifest(self.store, name, manifest),
            messages=manifest.messages,
            logical_bytes=manifest.logical_bytes,
            stored_bytes=manifest.stored_bytes,
            last_message_id=manifest.parts[-1].last.message_id if manifest.parts else None,
            attempt_id=run.attempt_id,
            created_at=manifest.created_at,
        )
        return self.metadata.publish(run, snapshot.topic.generation, compacted, statistics)

    def _clean_up(self, ranges: list[RangeResult]) -> None:
        """Row sets are between the two phases of this run alone; nobody else was ever told of them."""
        for result in ranges:
            if result.row_sets:
                try:
                    self.store.delete(result.name)
                except CompactorError:
                    return  # published is published: garbage collection finds what is left

    def _record_failure(self, run: RunRecord, error: BaseException) -> None:
        """W3: the original error is kept; a database that is away too must not hide it."""
        try:
            self.metadata.fail_run(run, str(error) or type(error).__name__)
        except CompactorError as second:
            error.add_note(f"and the failure could not be recorded: {second}")


def nothing_new(snapshot: TopicSnapshot, policies: Policies) -> bool:
    """P11: nothing after the horizon, and the last run, a success, had the same policies."""
    last = snapshot.last_run
    if last is None or last.state != RunState.SUCCESS or dict(last.policies) != asdict(policies):
        return False
    end = end_position(snapshot)
    return end is None or (snapshot.horizon is not None and end.offset <= snapshot.horizon.offset)


def end_position(snapshot: TopicSnapshot) -> Position | None:
    """P2: the last message when the run began, or the horizon if raw was trimmed up to it; None: an empty topic."""
    if snapshot.ledgers:
        last = snapshot.ledgers[-1]
        end = Position(last.last_offset, last.last_message_id)
        return max(end, snapshot.horizon) if snapshot.horizon else end
    return snapshot.horizon


def verify(store: ObjectStore, expected: dict[int, SourceTotals], results: list[PartResult]) -> None:
    """Phase two kept, source by source, as many rows as phase one promised, with the same sum of offsets; parts
    ascend; the store holds each part at its full size. Raises ObjectDamaged, ObjectMissing."""
    kept: dict[int, SourceTotals] = {}
    last_offset = -1
    for result in results:
        for source, totals in result.kept.items():
            kept[source] = kept.get(source, SourceTotals()) + totals
        if result.rows is not None:
            if result.first_offset <= last_offset:
                raise ObjectDamaged(f"part {result.number} begins at or before the end of its predecessor", _REPORT)
            last_offset = result.last_offset
            stored = result.rows.stored
            if store.size(stored.name) != stored.size:
                raise ObjectDamaged(f"{stored.name} is not {stored.size} bytes long in the store", "run it again")
    if kept != expected:
        wrong = sorted(n for n in kept.keys() | expected.keys() if kept.get(n) != expected.get(n))
        raise ObjectDamaged(f"phase two did not keep what phase one promised of sources {wrong[:5]}", _REPORT)


_REPORT = "nothing was published; run the compaction again, and report it if it happens twice"


def statistics_of(
    messages_in: int,
    ranges: list[RangeResult],
    parts: tuple[PartPlan, ...],
    results: list[PartResult],
    manifest: Manifest,
) -> dict[str, object]:
    """What a run's row remembers of it; sizes in bytes."""
    seen = [result.statistics for result in ranges]
    copied = [result.statistics for result in results]
    return {
        "messages_in": messages_in,
        "messages_out": manifest.messages,
        "keys": sum(one.keys for one in seen),
        "tombstones_removed": sum(one.tombstones for one in seen),
        "null_keys_kept": sum(one.null_keys for one in seen),
        "index_records": sum(one.records for one in seen),
        "hash_ranges": len(ranges),
        "parts": len(manifest.parts),
        "tasks": len(ranges) + len(parts),
        "bytes_read": sum(one.bytes_read for one in seen) + sum(one.bytes_read for one in copied),
        "bytes_written": manifest.stored_bytes + sum(4 * totals.count for totals in promised(ranges).values()),
        "logical_bytes_out": manifest.logical_bytes,
    }


def _part(result: PartResult) -> Part:
    assert result.rows is not None
    assert result.first_message_id is not None
    assert result.last_message_id is not None
    return Part(
        rows=result.rows,
        first=Position(result.first_offset, result.first_message_id),
        last=Position(result.last_offset, result.last_message_id),
        messages=result.messages,
        logical_bytes=result.logical_bytes,
        min_publish_time=result.min_publish_time,
        max_publish_time=result.max_publish_time,
    )


class _PhaseTimer:
    """Milliseconds of each phase, for the run's statistics."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = clock.now_ms()
        self._laps: dict[str, object] = {}

    def lap(self, name: str) -> dict[str, object]:
        now = self._clock.now_ms()
        self._laps[f"{name}_ms"] = now - self._last
        self._last = now
        return self._laps
