"""LogStore: what the log asks of SQL. Segments are opened, rolled and sealed, ledgers trimmed.

Reached as MetadataStore.log. As there, each method is one transaction, and may raise Unavailable, Misconfigured and
TopicNotFound. Opening, rolling, sealing and trimming find out by themselves whether a COMMIT whose answer was lost has
happened; all other methods may be called again. What a method does is said where it is done: segments, sealing,
trimming. Must not know: files, objects.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from sqlalchemy import Connection

from storage.clock import Clock
from storage.failpoints import Failpoint, failpoint
from storage.metadata import leases, ledgers, sealing, segments, topics, trimming
from storage.metadata.engine import Database
from storage.metadata.liveness import LEASE_TTL_MS, is_held
from storage.metadata.records import (
    Attempt,
    Lease,
    SegmentContent,
    SegmentRecord,
    SegmentState,
    TopicRecord,
    TopicTail,
)
from storage.model import LedgerRecord


class LogStore:
    """The log's part of the metadata, over the database of a MetadataStore. Safe to share between threads."""

    def __init__(self, database: Database, clock: Clock, defaults: Mapping[str, object]) -> None:
        """`defaults`: the broker's policies (PolicyStore)."""
        self._database = database
        self._clock = clock
        self._defaults = defaults

    def lease_of(self, topic_id: int) -> Lease | None:
        """Who holds the topic's lease now; None: nobody."""
        with self._database.read() as connection:
            lease = leases.find(connection, topic_id)
        now = self._clock.now_ms()
        return lease if lease is not None and is_held(lease.holder, lease.expires_at, LEASE_TTL_MS, now) else None

    def end_lease(self, topic_id: int, *, force: bool = False, dry_run: bool = False) -> Lease | None:
        """Take the topic's lease from its owner, which is fenced from then on; the lease as it was, None: none is held.

        `dry_run`: only check. Raises LeaseHeld, unless forced, for an owner that is known to be alive.
        """
        with self._database.write() as connection:
            return leases.end(connection, topic_id, self._clock.now_ms(), force=force, dry_run=dry_run)

    def renew_leases(self, held: Sequence[Lease], ttl_ms: int) -> leases.Unrenewed:
        """A new term from now on for many leases, in one transaction; those that got none."""
        with self._database.write() as connection:
            return leases.renew_many(connection, held, ttl_ms, self._clock.now_ms())

    # Segments, by the holder of the topic's lease

    def open_segment(self, lease: Lease, segment: SegmentRecord) -> None:
        """Make a segment, whose file exists, the topic's open one.

        Raises Fenced if the lease was overtaken or the topic has moved on.
        """
        self._write_segment(lease, segment, segments.open_, "opened")

    def take_up_segment(self, lease: Lease, segment: SegmentRecord) -> None:
        """Make a segment, whose row was lost, the topic's open one again, under the id that its file has.

        Ids that are given out later are above it. Raises Conflict if the id is another's, or below one of the topic's;
        Fenced as `open_segment`.
        """
        self._write_segment(lease, segment, segments.take_up, "taken up")

    def _write_segment(
        self, lease: Lease, segment: SegmentRecord, write: Callable[[Connection, Lease, SegmentRecord], None], done: str
    ) -> None:

        def happened(connection: Connection, _: None) -> bool:
            topics.locked(connection, lease.topic_id)
            return segments.find(connection, lease.topic_id, segment.ledger_id) is not None

        self._database.write_once(
            lambda connection: write(connection, lease, segment),
            happened,
            f"whether the segment of ledger {segment.ledger_id} was {done}",
        )

    def roll_segment(self, lease: Lease, ledger_id: int, content: SegmentContent) -> SegmentRecord:
        """Close the open segment, which is flushed and holds `content`; a wish to roll the topic is fulfilled.

        Again with the same content changes nothing. Raises Fenced if the lease was overtaken.
        """

        def roll(connection: Connection) -> SegmentRecord:
            rolled = segments.roll(connection, lease, ledger_id, content, self._clock.now_ms())
            failpoint(Failpoint.ROLL_INSIDE_COMMIT)
            return rolled

        def happened(connection: Connection, _: SegmentRecord) -> bool:
            topics.locked(connection, lease.topic_id)
            found = segments.find(connection, lease.topic_id, ledger_id)
            return found is not None and found.state is not SegmentState.OPEN

        return self._database.write_once(roll, happened, f"whether the segment of ledger {ledger_id} was rolled")

    def drop_segment(self, lease: Lease, ledger_id: int) -> None:
        """Take back an open segment that holds nothing, and fulfil a wish to roll the topic. Raises Fenced."""
        with self._database.write() as connection:
            segments.drop(connection, lease, ledger_id)

    def clear_roll_request(self, lease: Lease) -> None:
        """Fulfil a wish to roll the topic when there is nothing to roll. Raises Fenced."""
        with self._database.write() as connection:
            segments.clear_request(connection, lease)

    def request_roll(self, topic_id: int) -> None:
        """Ask the topic's writer to roll its open segment."""
        with self._database.write() as connection:
            segments.request_roll(connection, topic_id, self._clock.now_ms())

    def roll_requested(self, topic_id: int) -> bool:
        with self._database.read() as connection:
            return segments.roll_requested(connection, topic_id)

    def asked_to_roll(self, log_uid: str) -> list[TopicRecord]:
        """The topics with an open segment in that log directory that somebody wants rolled, by name."""
        with self._database.read() as connection:
            return segments.asked_to_roll(connection, log_uid)

    def roll_requests(self, topic_ids: Sequence[int]) -> dict[int, bool]:
        """Whether somebody wants them to roll, by topic id; a topic that was deleted is not there."""
        with self._database.read() as connection:
            return segments.roll_requests(connection, topic_ids)

    def tails(self, topic_ids: Sequence[int]) -> list[TopicTail]:
        """The topics and their open segments, in a few statements; a topic that was deleted is not there."""
        with self._database.read() as connection:
            return segments.tails(connection, topic_ids)

    def check_open_segment(self, lease: Lease, ledger_id: int | None) -> None:
        """Raises Fenced unless the lease is its holder's and the topic's open segment is that one; None: it has none.

        For the process that has the lock on a segment's file and is about to write: it may have slept since it got the
        lease.
        """
        with self._database.write() as connection:
            segments.check_open(connection, lease, ledger_id)

    def segments(self, topic_id: int) -> list[SegmentRecord]:
        """All that have a row, also sealed ones whose files wait to be removed; in the order of offsets."""
        with self._database.read() as connection:
            return list(segments.of_topic(connection, topic_id))

    def open_segment_of(self, topic_id: int) -> SegmentRecord | None:
        with self._database.read() as connection:
            return segments.open_of(connection, topic_id)

    def topics_with_segments(self, states: Collection[SegmentState], log_uid: str | None = None) -> list[TopicRecord]:
        """The topics that have a segment in one of those states, by name; with `log_uid`, in that log directory."""
        with self._database.read() as connection:
            return segments.topics_with(connection, states, log_uid)

    def named_segments(self, log_uid: str) -> dict[str, set[int]]:
        """The first offsets of all segments in a log directory that have a row, by the uid of their topic."""
        with self._database.read() as connection:
            return segments.named_in(connection, log_uid)

    def keep_ledger_ids(self, highest: int) -> None:
        """Give out no ledger id up to that one any more: files have them whose rows were lost."""
        with self._database.write() as connection:
            ledgers.keep_ids(connection, highest)

    def rolled_bytes(self, log_uid: str) -> int:
        """The size of a log directory's segments that wait to be sealed."""
        with self._database.read() as connection:
            return segments.rolled_bytes(connection, log_uid)

    def open_without_writer(self, log_uid: str, created_until: int) -> list[tuple[TopicRecord, SegmentRecord]]:
        """The open segments of a log directory that no writer has, made at that time (ms) or before; oldest first."""
        with self._database.snapshot() as connection:
            return segments.open_without_writer(connection, log_uid, created_until, self._clock.now_ms())

    # Sealing, by anybody

    def claim_sealing(
        self,
        topic_id: int,
        holder: str,
        log_uid: str,
        stale_ms: int,
        below: int | None = None,
        but: Collection[int] = (),
        *,
        again: bool = False,
    ) -> tuple[SegmentRecord, Attempt] | None:
        """The oldest rolled segment of a log directory that nobody seals, now claimed by a new attempt; None: none.

        `below`: only one that begins below this offset; `but`: none of these ledger ids; `again`: also one that was
        tried too often.
        A sealer that claimed it before and sent no heartbeat for `stale_ms` is fenced.
        """
        with self._database.write() as connection:
            now = self._clock.now_ms()
            return sealing.claim(connection, topic_id, holder, log_uid, stale_ms, now, below, but, again=again)

    def let_go_of_sealing(self, attempt: Attempt) -> None:
        """Finish a sealer's attempt that has ended by itself, sealed or not: it is no try. Again changes nothing."""
        with self._database.write() as connection:
            sealing.let_go(connection, attempt, self._clock.now_ms())

    def seal_segment(self, attempt: Attempt, ledger: LedgerRecord) -> None:
        """Let a ledger, whose objects exist, stand for the segment of its id, and finish the attempt.

        Raises Fenced if the attempt was given up as dead, or somebody else has claimed or sealed the segment.
        """

        def seal(connection: Connection) -> None:
            sealing.seal(connection, attempt, ledger, self._clock.now_ms())
            failpoint(Failpoint.SEAL_INSIDE_COMMIT)

        def happened(connection: Connection, _: None) -> bool:
            topics.locked(connection, attempt.topic_id)
            return sealing.sealed_by(connection, attempt, ledger.ledger_id)

        self._database.write_once(seal, happened, f"whether ledger {ledger.ledger_id} was sealed")

    def sealed_files(
        self, log_uid: str, sealed_before: int, topic_id: int | None = None
    ) -> list[tuple[TopicRecord, SegmentRecord]]:
        """The segments of a log directory that were sealed at that time (ms) or before: their files may go.

        `topic_id`: only of that topic.
        """
        with self._database.snapshot() as connection:
            return sealing.files(connection, log_uid, sealed_before, topic_id)

    def forget_segment(self, topic_id: int, ledger_id: int) -> None:
        """Delete the row of a sealed segment whose file is gone; nothing happens if the row is gone."""
        with self._database.write() as connection:
            sealing.forget(connection, topic_id, ledger_id)

    # Trimming

    def trim(
        self,
        topic_id: int,
        start_offset: int,
        ledger_ids: Collection[int],
        *,
        force: bool,
        keep_start: bool = False,
    ) -> None:
        """Begin reads at `start_offset` and mark as deleted the given ledgers, which are wholly below it (C1, C3).

        A topic for which compaction is enabled, and that has no cursor `__compaction`, needs all that it has (S9).
        The start never goes back. `keep_start`: it stays where it is; the ledgers are the topic's oldest and are at or
        below the horizon, and what of them survived is in the compacted ledger (C2). `force`: no cursor holds
        anything back. Raises InvalidInput for an offset beyond the topic's end, Conflict if a cursor needs what would
        go (it is named), or if a ledger was trimmed already.
        """

        def trim(connection: Connection) -> None:
            trimming.trim(
                connection,
                topic_id,
                start_offset,
                ledger_ids,
                self._clock.now_ms(),
                self._defaults,
                force=force,
                keep_start=keep_start,
            )
            failpoint(Failpoint.TRIM_INSIDE_COMMIT)

        def happened(connection: Connection, _: None) -> bool:
            topic = topics.locked(connection, topic_id)
            moved = keep_start or topic.start_offset >= start_offset
            return moved and trimming.is_trimmed(connection, topic_id, ledger_ids)

        self._database.write_once(trim, happened, f"whether the topic with id {topic_id} was trimmed")

    def truncate(self, topic_id: int) -> TopicRecord:
        """Clear what is below the topic's end of now, raw and compacted, and raise the epoch; offsets go on (C2).

        Roll the open segment before: it stays. The topic as it is then. Called again, it clears what came meanwhile.
        """
        return self.truncate_all([topic_id])[0]

    def truncate_all(self, topic_ids: Sequence[int]) -> list[TopicRecord]:
        """As `truncate`, each of these topics or none; as they are then, in their order."""

        def truncate(connection: Connection) -> list[TopicRecord]:
            now = self._clock.now_ms()
            truncated = {topic_id: trimming.truncate(connection, topic_id, now) for topic_id in sorted(topic_ids)}
            failpoint(Failpoint.TRUNCATE_INSIDE_COMMIT)
            return [truncated[topic_id] for topic_id in topic_ids]

        def happened(connection: Connection, truncated: list[TopicRecord]) -> bool:
            return all(_is_truncated(connection, one) for one in sorted(truncated, key=lambda one: one.id))

        truncated = self._database.write_once(truncate, happened, f"whether topics {topic_ids} were truncated")
        failpoint(Failpoint.TRUNCATED)
        return truncated

    def trimmed_ledgers(self, topic_id: int) -> list[LedgerRecord]:
        """The ledgers that are marked as deleted and not forgotten, in the order of offsets."""
        with self._database.read() as connection:
            return trimming.trimmed(connection, topic_id)

    def forget_trimmed(self, topic_id: int, before_ms: int) -> int:
        """Delete the rows of ledgers that were marked at that time (ms) or before; how many.

        Afterwards nothing refers to their objects, and garbage collection may delete them.
        """
        with self._database.write() as connection:
            return trimming.forget(connection, topic_id, before_ms)


def _is_truncated(connection: Connection, truncated: TopicRecord) -> bool:
    """Whether a topic was cleared as far as that. It is locked from then on."""
    topic = topics.locked(connection, truncated.id)
    # a claim may have raised the epoch as far, of a topic of which nothing was cleared
    cleared = trimming.is_cleared(connection, truncated.id, truncated.start_offset)
    return cleared and topic.epoch >= truncated.epoch and topic.start_offset >= truncated.start_offset
