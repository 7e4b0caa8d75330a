"""Output of a run: check of its totals, the new manifest, statistics.

The run's verify step checks three things: phase two reached, source by source, the totals that phase one expects; new
parts ascend; and the store has every object of the manifest, new and kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from compactor.run.layout import Layout
from compactor.run.plan import (
    DeletedRowsTaskResult,
    HashRangeStatistics,
    PartTaskResult,
    RangeTaskResult,
    RemovalScanResult,
    RunPlan,
    SourceTotals,
)
from storage.errors import ObjectDamaged
from storage.ledger.manifest import Manifest, Part
from storage.model import IndexLocation, LogPosition, MessageId, TopicName

_CHUNK_STATISTICS = ("chunks", "incomplete_chunks", "chunks_expired")
_REPORT = "nothing was published; run the compaction again, and report it if it happens twice"


@dataclass(frozen=True)
class RunAfterPhaseOne:
    """A run after phase one: its plan, the results of its scans and hash ranges, and the layout for phase two.

    `previous`: the manifest of the previous compacted ledger; None: there is none. `expected`: as
    `plan.expected_totals` returns it, by source.
    """

    plan: RunPlan
    previous: Manifest | None
    scans: Sequence[RemovalScanResult]
    ranges: Sequence[RangeTaskResult]
    expected: Mapping[int, SourceTotals]
    layout: Layout

    def last_unread_trimmed_offset(self, horizon: int) -> int:
        """Return the highest offset up to the new `horizon` that was trimmed before any run read it; -1: none.

        The previous run read up to its own horizon, and this run starts at its first dirty source.
        """
        read_to = self.previous.horizon.offset if self.previous else -1
        dirty = self.plan.sources[self.plan.old_parts :]
        trimmed_to = dirty[0].first_offset - 1 if dirty else horizon
        return trimmed_to if trimmed_to > read_to else -1

    def estimate(self) -> dict[str, object]:
        """Return, by name, what phase two would keep, drop and write: exact numbers of messages, approximate bytes."""
        statistics = [result.statistics for result in self.ranges]
        dirty = self.plan.sources[self.plan.old_parts :]
        before = sum(source.messages for source in self.plan.sources[: self.plan.old_parts])
        new = sum(source.messages for source in dirty)
        kept = sum(totals.count for totals in self.expected.values())
        return {
            "messages_in": new,
            "messages_before": before,
            "messages_out": kept,
            "messages_dropped": new + before - kept,
            **_common_statistics(statistics),
            "parts_before": self.plan.old_parts,
            "parts_kept": len(self.layout.kept_parts),
            "parts_to_write": len(self.layout.parts),
            "levels_merged": self.plan.merged,
            "bytes_to_write": int(self.layout.bytes_to_write(self.plan, self.expected))
            + sum(result.index.length for result in self.ranges if result.index),
        }


@dataclass(frozen=True)
class RunOutput:
    """The results of phase two, with the run as it was after phase one."""

    phase_one: RunAfterPhaseOne
    parts: Sequence[PartTaskResult]
    bitmaps: Sequence[DeletedRowsTaskResult]

    def check_totals(self) -> None:
        """Raise ObjectDamaged if phase two did not reach the expected totals, or if new parts do not ascend."""
        none, expected = SourceTotals(), self.phase_one.expected
        actual: dict[int, SourceTotals] = {}
        for kept in (*(result.kept for result in self.parts), *(result.kept for result in self.bitmaps)):
            for source, totals in kept.items():
                actual[source] = actual.get(source, none) + totals
        for number in self.phase_one.layout.kept_parts:  # a kept part without a new bitmap keeps all its rows
            old = self.phase_one.plan.sources[number]
            actual.setdefault(number, SourceTotals(old.messages, old.offset_sum))
        wrong = sorted(n for n in actual.keys() | expected.keys() if actual.get(n, none) != expected.get(n, none))
        if wrong:
            raise ObjectDamaged(
                f"phase two did not keep the rows that phase one expects of sources {wrong[:5]}",
                _REPORT,
                is_public=True,
            )
        last_offset = -1
        for part in self._new_parts():
            if part.first.offset <= last_offset:
                raise ObjectDamaged(
                    f"the part {part.rows.stored.name} begins before its predecessor ends", _REPORT, is_public=True
                )
            last_offset = part.last.offset

    def build_manifest(
        self, topic: TopicName, ledger_id: int, generation: int, run_id: int, created_at: int, horizon: LogPosition
    ) -> Manifest:
        """Return the manifest of the new compacted ledger. It writes nothing.

        `ledger_id`, `generation`: of the new ledger. `created_at`: milliseconds. `horizon`: the run's end position
        (P2).
        """
        statistics = [result.statistics for result in self.phase_one.ranges]
        before = self.phase_one.previous
        return Manifest(
            topic=str(topic),
            topic_uid=self.phase_one.plan.topic_uid,
            ledger_id=ledger_id,
            generation=generation,
            run_id=run_id,
            created_at=created_at,
            horizon=horizon,
            parts=tuple(sorted((*self._kept_parts(), *self._new_parts()), key=lambda part: part.first.offset)),
            index=self._index_levels(),
            frozen_at=self.phase_one.plan.now,
            policies=asdict(self.phase_one.plan.policies),
            dropped_to=max(
                before.dropped_to if before else -1,
                self.phase_one.last_unread_trimmed_offset(horizon.offset),
                *(each.dropped_to for each in statistics),
            ),
            keys=(before.keys if before else 0) + sum(each.keys for each in statistics),
            tombstones=(before.tombstones if before else 0) + sum(each.tombstones for each in statistics),
            chunks=tuple(result.chunks for result in self.phase_one.ranges if result.chunks is not None),
        )

    def last_message_id(self, manifest: Manifest, previous_id: MessageId | None) -> MessageId | None:
        """Return the id of the last live message (R6); None: the compacted ledger is empty.

        `previous_id`: the last live message of the previous compacted ledger.
        """
        if not manifest.parts:
            return None
        last = manifest.parts[-1]
        if last.deleted is None:
            return last.last.message_id
        last_alive = [result.last_alive for result in self.bitmaps if result.last_alive is not None]
        return last_alive[-1] if last_alive else previous_id

    def statistics(self, manifest: Manifest) -> dict[str, object]:
        """Return the statistics for the run's row, by name; sizes in bytes. `manifest`: from `build_manifest`."""
        ranges = [result.statistics for result in self.phase_one.ranges]
        old = self.phase_one.plan.sources[: self.phase_one.plan.old_parts]
        dirty = self.phase_one.plan.sources[self.phase_one.plan.old_parts :]
        new = list(self._new_parts())
        bitmaps = [location.length for result in self.bitmaps for location in result.deleted.values()]
        written = sum(part.rows.stored.size for part in new) + sum(bitmaps)
        return {
            "messages_in": sum(source.messages for source in dirty),
            "messages_before": sum(source.messages for source in old),
            "messages_out": manifest.messages,
            "keys": manifest.keys,
            "tombstones": manifest.tombstones,
            **_common_statistics(ranges),
            "index_records": sum(each.records for each in ranges),
            "index_levels": len(manifest.index),
            "levels_merged": self.phase_one.plan.merged,
            "hash_ranges": len(self.phase_one.ranges),
            "parts": len(manifest.parts),
            "parts_kept": len(self.phase_one.layout.kept_parts),
            "parts_written": len(new),
            "tasks": len(self.phase_one.scans) + len(self.phase_one.ranges) + len(self.phase_one.layout.tasks),
            "bytes_in": sum(source.rows.stored.size for source in dirty),
            "bytes_read": sum(each.bytes_read for each in ranges) + sum(result.bytes_read for result in self.parts),
            "bytes_written": written + sum(each.bytes_written for each in ranges),
            "bytes_out": manifest.stored_bytes,
            "logical_bytes_out": manifest.logical_bytes,
            **({"raw_from": self.phase_one.plan.raw_from} if self.phase_one.plan.raw_from else {}),  # verify reads it
        }

    def _new_parts(self) -> list[Part]:
        return [result.part for result in self.parts if result.part is not None]

    def _kept_parts(self) -> list[Part]:
        if self.phase_one.previous is None:
            return []
        scanned = {result.source: result for result in self.phase_one.scans}
        deleted = {source: location for result in self.bitmaps for source, location in result.deleted.items()}
        kept = []
        for number in self.phase_one.layout.kept_parts:
            part = self.phase_one.previous.parts[number]
            if number in deleted:
                part = replace(part, deleted=deleted[number], offset_sum=self.phase_one.expected[number].offset_sum)
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

    def _index_levels(self) -> tuple[tuple[IndexLocation, ...], ...]:
        new = tuple(result.index for result in self.phase_one.ranges if result.index is not None)
        return ((new,) if new else ()) + self.phase_one.plan.levels[self.phase_one.plan.merged :]


def _common_statistics(ranges: Sequence[HashRangeStatistics]) -> dict[str, object]:
    """Return the statistics that runs and dry runs have in common.

    Those of chunks (P10), which `depends_on_time` reads, are absent without chunks.
    """
    chunks = {name: sum(getattr(each, name) for each in ranges) for name in _CHUNK_STATISTICS}
    return {
        "tombstones_removed": sum(each.tombstones_removed for each in ranges),
        "tombstones_kept": sum(each.tombstones_kept for each in ranges),
        "expired": sum(each.expired for each in ranges),
        "null_keys_kept": sum(each.null_keys for each in ranges),
        **(chunks if any(chunks.values()) else {}),
    }
