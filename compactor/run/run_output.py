"""The output of a run, checked and put together: expected totals reached, the new manifest, statistics.

The run's verify step: phase two found, source by source, exactly what phase one expects, new parts ascend, and the
store holds everything that the manifest names, what is new and what stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from compactor.run.layout import Layout
from compactor.run.plan import (
    DeletedRowsTaskResult,
    HashRangeStatistics,
    PartTaskResult,
    RangeTaskResult,
    RunPlan,
    ScanTaskResult,
    SourceTotals,
)
from storage.errors import ObjectDamaged, ObjectMissing
from storage.ledger import names
from storage.ledger.manifest import Manifest, Part
from storage.model import IndexLocation, LogPosition, MessageId, TopicName
from storage.objects.interface import ObjectStore

LISTINGS = 64
"""Up to that many runs are listed one by one; beyond, everything that runs wrote is listed, garbage as well."""
_RESTORE = "restore the object, or delete the cursor __compaction so that the next run starts from raw"
_REPORT = "nothing was published; run the compaction again, and report it if it happens twice"


@dataclass(frozen=True)
class PlannedRun:
    """A run after phase one: its layout, not carried out yet. `left`: plan.expected_totals of each source."""

    plan: RunPlan
    previous: Manifest | None
    scans: Sequence[ScanTaskResult]
    ranges: Sequence[RangeTaskResult]
    left: Mapping[int, SourceTotals]
    layout: Layout

    def lost_to(self, horizon: int) -> int:
        """The highest offset at or below the new `horizon` that was trimmed before any run of this compacted ledger saw
        it; -1: none was. The run before went up to its own horizon, and this one begins at its first dirty source."""
        seen_to = self.previous.horizon.offset if self.previous else -1
        dirty = self.plan.sources[self.plan.old_parts :]
        trimmed_to = dirty[0].first_offset - 1 if dirty else horizon
        return trimmed_to if trimmed_to > seen_to else -1

    def estimate(self) -> dict[str, object]:
        """What phase two would keep, drop and write: messages exactly, bytes about."""
        seen = [result.statistics for result in self.ranges]
        dirty = self.plan.sources[self.plan.old_parts :]
        before = sum(source.messages for source in self.plan.sources[: self.plan.old_parts])
        came = sum(source.messages for source in dirty)
        stay = sum(totals.count for totals in self.left.values())
        return {
            "messages_in": came,
            "messages_before": before,
            "messages_out": stay,
            "messages_dropped": came + before - stay,
            "tombstones_removed": sum(of.tombstones_removed for of in seen),
            "tombstones_kept": sum(of.tombstones_kept for of in seen),
            "expired": sum(of.expired for of in seen),
            "null_keys_kept": sum(of.null_keys for of in seen),
            **_of_chunks(seen),
            "parts_before": self.plan.old_parts,
            "parts_kept": len(self.layout.kept),
            "parts_to_write": len(self.layout.parts),
            "levels_merged": self.plan.merged,
            "bytes_to_write": int(self.layout.bytes_to_write(self.plan, self.left))
            + sum(result.index.length for result in self.ranges if result.index),
        }


@dataclass(frozen=True)
class RunOutput:
    """What phase two answered for a planned run."""

    planned: PlannedRun
    parts: Sequence[PartTaskResult]
    bitmaps: Sequence[DeletedRowsTaskResult]

    def check(self) -> None:
        """Raises ObjectDamaged."""
        found: dict[int, SourceTotals] = {}
        for kept in (*(result.kept for result in self.parts), *(result.kept for result in self.bitmaps)):
            for source, totals in kept.items():
                found[source] = found.get(source, SourceTotals()) + totals
        old = self.planned.plan.sources
        untouched = {
            source
            for source in self.planned.layout.kept
            if self.planned.left[source] == SourceTotals(old[source].messages, old[source].offset_sum)
        } - found.keys()
        expected = {
            source: totals
            for source, totals in self.planned.left.items()
            if totals != SourceTotals() and source not in untouched
        }
        found = {source: totals for source, totals in found.items() if totals != SourceTotals()}
        if found != expected:
            wrong = sorted(n for n in found.keys() | expected.keys() if found.get(n) != expected.get(n))
            raise ObjectDamaged(
                f"phase two did not keep what phase one expects of sources {wrong[:5]}", _REPORT, is_public=True
            )
        last_offset = -1
        for part in self._new_parts():
            if part.first.offset <= last_offset:
                raise ObjectDamaged(
                    f"the part {part.rows.stored.name} begins before its predecessor ends", _REPORT, is_public=True
                )
            last_offset = part.last.offset

    def manifest(
        self, topic: TopicName, ledger_id: int, generation: int, run_id: int, created_at: int, horizon: LogPosition
    ) -> Manifest:
        """The new compacted ledger."""
        statistics = [result.statistics for result in self.planned.ranges]
        before = self.planned.previous
        return Manifest(
            topic=str(topic),
            topic_uid=self.planned.plan.topic_uid,
            ledger_id=ledger_id,
            generation=generation,
            run_id=run_id,
            created_at=created_at,
            horizon=horizon,
            parts=tuple(sorted((*self._kept_parts(), *self._new_parts()), key=lambda part: part.first.offset)),
            index=self._levels(),
            frozen_at=self.planned.plan.now,
            policies=asdict(self.planned.plan.policies),
            dropped_to=max(
                before.dropped_to if before else -1,
                self.planned.lost_to(horizon.offset),
                *(of.dropped_to for of in statistics),
            ),
            keys=(before.keys if before else 0) + sum(of.keys for of in statistics),
            tombstones=(before.tombstones if before else 0) + sum(of.tombstones for of in statistics),
            chunks=tuple(result.chunks for result in self.planned.ranges if result.chunks is not None),
        )

    def last_message_id(self, manifest: Manifest, before: MessageId | None) -> MessageId | None:
        """The last live message (R6); `before`: that of the previous compacted ledger. None: all is empty."""
        if not manifest.parts:
            return None
        last = manifest.parts[-1]
        if last.deleted is None:
            return last.last.message_id
        found = [result.last_alive for result in self.bitmaps if result.last_alive is not None]
        return found[-1] if found else before

    def statistics(self, manifest: Manifest) -> dict[str, object]:
        """What a run's row remembers of it; sizes in bytes."""
        seen = [result.statistics for result in self.planned.ranges]
        old = self.planned.plan.sources[: self.planned.plan.old_parts]
        dirty = self.planned.plan.sources[self.planned.plan.old_parts :]
        new = list(self._new_parts())
        bitmaps = [place.length for result in self.bitmaps for place in result.deleted.values()]
        written = sum(part.rows.stored.size for part in new) + sum(bitmaps)
        return {
            "messages_in": sum(source.messages for source in dirty),
            "messages_before": sum(source.messages for source in old),
            "messages_out": manifest.messages,
            "keys": manifest.keys,
            "tombstones": manifest.tombstones,
            "tombstones_removed": sum(of.tombstones_removed for of in seen),
            "tombstones_kept": sum(of.tombstones_kept for of in seen),
            "expired": sum(of.expired for of in seen),
            "null_keys_kept": sum(of.null_keys for of in seen),
            **_of_chunks(seen),
            "index_records": sum(of.records for of in seen),
            "index_levels": len(manifest.index),
            "levels_merged": self.planned.plan.merged,
            "hash_ranges": len(self.planned.ranges),
            "parts": len(manifest.parts),
            "parts_kept": len(self.planned.layout.kept),
            "parts_written": len(new),
            "tasks": len(self.planned.scans) + len(self.planned.ranges) + len(self.planned.layout.tasks),
            "bytes_in": sum(source.rows.stored.size for source in dirty),
            "bytes_read": sum(of.bytes_read for of in seen)
            + sum(result.statistics.bytes_read for result in self.parts),
            "bytes_written": written + sum(of.bytes_written for of in seen),
            "bytes_out": manifest.stored_bytes,
            "logical_bytes_out": manifest.logical_bytes,
            **({"raw_from": self.planned.plan.raw_from} if self.planned.plan.raw_from else {}),  # verify asks for it
        }

    def _new_parts(self) -> list[Part]:
        return [result.part for result in self.parts if result.part is not None]

    def _kept_parts(self) -> list[Part]:
        if self.planned.previous is None:
            return []
        scanned = {result.source: result for result in self.planned.scans}
        deleted = {source: place for result in self.bitmaps for source, place in result.deleted.items()}
        kept = []
        for number in self.planned.layout.kept:
            part = self.planned.previous.parts[number]
            if number in deleted:
                part = replace(part, deleted=deleted[number], offset_sum=self.planned.left[number].offset_sum)
            if number in scanned:
                times = scanned[number]
                part = replace(
                    part,
                    oldest_value=times.oldest_value,
                    oldest_tombstone=times.oldest_tombstone,
                    first_tombstone=times.first_tombstone,
                    oldest_row=part.oldest_row if times.oldest_row is None else times.oldest_row,
                )
            kept.append(part)
        return kept

    def _levels(self) -> tuple[tuple[IndexLocation, ...], ...]:
        new = tuple(result.index for result in self.planned.ranges if result.index is not None)
        return ((new,) if new else ()) + self.planned.plan.levels[self.planned.plan.merged :]


def _of_chunks(seen: Sequence[HashRangeStatistics]) -> dict[str, object]:
    """What there is to say of chunks (P10), if there are any; `nothing_new` asks for those that are incomplete."""
    numbers = {
        name: sum(getattr(of, name) for of in seen) for name in ("chunks", "incomplete_chunks", "chunks_expired")
    }
    return dict(numbers) if any(numbers.values()) else {}


def check_objects(store: ObjectStore, manifest: Manifest) -> None:
    """The store has all that the manifest names, at its full length: what is new, and what stays from before (R8).

    Listings of the runs that wrote them, not a request for each: a run may keep thousands of parts. Raises
    ObjectMissing, ObjectDamaged.
    """
    needed: dict[str, int] = {}
    for part in manifest.parts:
        needed[part.rows.stored.name] = part.rows.stored.size
        if part.deleted:
            needed[part.deleted.name] = max(needed.get(part.deleted.name, 0), part.deleted.offset + part.deleted.length)
    for level in manifest.index:
        for location in level:
            needed[location.name] = max(needed.get(location.name, 0), location.offset + location.length)
    needed |= {table.name: table.length for table in manifest.chunks}
    sizes: dict[str, int] = {}
    for prefix in _prefixes(manifest.topic_uid, needed):
        sizes |= {stored.name: stored.size for stored in store.list(prefix) if stored.name in needed}
    for name, size in needed.items():
        if name not in sizes:
            raise ObjectMissing(
                f"{name}, which the compacted ledger needs, is not in the store", _RESTORE, is_public=True
            )
        if sizes[name] < size:
            raise ObjectDamaged(f"{name} has {sizes[name]} bytes in the store, not {size}", _RESTORE, is_public=True)


def _prefixes(topic_uid: str, needed: Iterable[str]) -> set[str]:
    """What to list: the runs that wrote the objects, or, where these are many, all runs of the topic."""
    wrote = {parsed.attempt_id for parsed in map(names.parse, needed) if parsed is not None}
    if len(wrote) > LISTINGS:
        return {names.runs_prefix(topic_uid)}
    return {names.run_prefix(topic_uid, attempt_id) for attempt_id in wrote}
