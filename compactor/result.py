"""What a run has made, checked and put together: promises kept, the new manifest, statistics.

`check` is the run's verify step: phase two found, source by source, exactly what phase one promised, new parts ascend,
and the store holds each at its full size. Only then is a manifest made of the parts that were kept and those that are
new.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from compactor.layout import Layout
from compactor.plan import (
    BitmapResult,
    PartResult,
    RangeResult,
    RunPlan,
    ScanResult,
    SourceTotals,
)
from storage.errors import ObjectDamaged
from storage.ledger.manifest import Manifest, Part
from storage.metadata.records import IndexLocation
from storage.model import MessageId, Position, TopicName
from storage.objects.interface import ObjectStore

_REPORT = "nothing was published; run the compaction again, and report it if it happens twice"


@dataclass(frozen=True)
class Made:
    """All that the phases of one run gave back. `left`: what each source must have left (plan.promised)."""

    plan: RunPlan
    previous: Manifest | None
    scans: Sequence[ScanResult]
    ranges: Sequence[RangeResult]
    left: Mapping[int, SourceTotals]
    layout: Layout
    parts: Sequence[PartResult]
    bitmaps: Sequence[BitmapResult]

    def check(self, store: ObjectStore) -> None:
        """Raises ObjectDamaged, ObjectMissing."""
        found: dict[int, SourceTotals] = {}
        for kept in (*(one.kept for one in self.parts), *(one.kept for one in self.bitmaps)):
            for source, totals in kept.items():
                found[source] = found.get(source, SourceTotals()) + totals
        untouched = set(self.layout.kept) - found.keys()
        expected = {
            source: totals
            for source, totals in self.left.items()
            if totals != SourceTotals() and source not in untouched
        }
        found = {source: totals for source, totals in found.items() if totals != SourceTotals()}
        if found != expected:
            wrong = sorted(n for n in found.keys() | expected.keys() if found.get(n) != expected.get(n))
            raise ObjectDamaged(f"phase two did not keep what phase one promised of sources {wrong[:5]}", _REPORT)
        last_offset = -1
        for part in self._new_parts():
            if part.first.offset <= last_offset:
                raise ObjectDamaged(f"the part {part.rows.stored.name} begins before its predecessor ends", _REPORT)
            last_offset = part.last.offset
            stored = part.rows.stored
            if store.size(stored.name) != stored.size:
                raise ObjectDamaged(f"{stored.name} is not {stored.size} bytes long in the store", "run it again")

    def manifest(
        self, topic: TopicName, ledger_id: int, generation: int, run_id: int, created_at: int, horizon: Position
    ) -> Manifest:
        """The new compacted ledger."""
        statistics = [result.statistics for result in self.ranges]
        before = self.previous
        return Manifest(
            topic=str(topic),
            topic_uid=self.plan.topic_uid,
            ledger_id=ledger_id,
            generation=generation,
            run_id=run_id,
            created_at=created_at,
            horizon=horizon,
            parts=tuple(sorted((*self._kept_parts(), *self._new_parts()), key=lambda part: part.first.offset)),
            index=self._levels(),
            frozen_at=self.plan.now,
            policies=asdict(self.plan.policies),
            tombstones_dropped_to=max(
                before.tombstones_dropped_to if before else -1, *(one.tombstones_dropped_to for one in statistics)
            ),
            keys=(before.keys if before else 0) + sum(one.keys for one in statistics),
            tombstones=(before.tombstones if before else 0) + sum(one.tombstones for one in statistics),
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
        seen = [result.statistics for result in self.ranges]
        old = self.plan.sources[: self.plan.old_parts]
        dirty = self.plan.sources[self.plan.old_parts :]
        new = list(self._new_parts())
        bitmaps = [place.length for result in self.bitmaps for place in result.deleted.values()]
        written = sum(part.rows.stored.size for part in new) + sum(bitmaps)
        return {
            "messages_in": sum(source.messages for source in dirty),
            "messages_before": sum(source.messages for source in old),
            "messages_out": manifest.messages,
            "keys": manifest.keys,
            "tombstones": manifest.tombstones,
            "tombstones_removed": sum(one.tombstones_removed for one in seen),
            "tombstones_kept": sum(one.tombstones_kept for one in seen),
            "expired": sum(one.expired for one in seen),
            "null_keys_kept": sum(one.null_keys for one in seen),
            "index_records": sum(one.records for one in seen),
            "index_levels": len(manifest.index),
            "levels_merged": self.plan.merged,
            "hash_ranges": len(self.ranges),
            "parts": len(manifest.parts),
            "parts_kept": len(self.layout.kept),
            "parts_written": len(new),
            "tasks": len(self.scans) + len(self.ranges) + len(self.layout.tasks),
            "bytes_in": sum(source.rows.stored.size for source in dirty),
            "bytes_read": sum(one.bytes_read for one in seen)
            + sum(result.statistics.bytes_read for result in self.parts),
            "bytes_written": written + sum(one.bytes_written for one in seen),
            "bytes_out": manifest.stored_bytes,
            "logical_bytes_out": manifest.logical_bytes,
        }

    def _new_parts(self) -> list[Part]:
        return [result.part for result in self.parts if result.part is not None]

    def _kept_parts(self) -> list[Part]:
        if self.previous is None:
            return []
        scanned = {result.source: result for result in self.scans}
        deleted = {source: place for result in self.bitmaps for source, place in result.deleted.items()}
        kept = []
        for number in self.layout.kept:
            part = self.previous.parts[number]
            if number in deleted:
                part = replace(part, deleted=deleted[number], offset_sum=self.left[number].offset_sum)
            if number in scanned:
                times = scanned[number]
                part = replace(part, oldest_value=times.oldest_value, oldest_tombstone=times.oldest_tombstone)
            kept.append(part)
        return kept

    def _levels(self) -> tuple[tuple[IndexLocation, ...], ...]:
        new = tuple(result.index for result in self.ranges if result.index is not None)
        return ((new,) if new else ()) + self.plan.levels[self.plan.merged :]
