"""The manager of topics' logs: rolls active segments, seals rolled ones, removes files that ledgers have replaced.

    roll    the open segment is closed: by its writer if one lives, or by another service that has its log directory
            (both get the request through SQL), else here, under the lease; also when it is older than `segment.ms` and
            no writer has it open
    seal    a rolled segment becomes a sealed ledger: objects first, then one transaction; its messages keep their ids
    sweep   files of sealed segments are removed after `file.delete.delay`, then their rows; so is the folder of a
            deleted topic (S8); files that hold messages and that no row names are set aside (orphan_segments.py)

A segment whose sealers died (out of memory) is abandoned after `MAX_SEALING_TRIES`; then only an operator seals it. A
process that must not die seals only small segments; the rest is left to the process that it wakes
(LogDirectory.wake_sealer).

Any process that has the log directory and the store may seal, beside the writer and other sealers: an attempt claims a
segment, and of two attempts at the same one, one commits. An interruption leaves the segment rolled, or sealed, never
both and never neither: the transaction decides, and readers follow the rows.

Errors: LeaseHeld, ObjectDamaged and ObjectMissing for a segment's file, SegmentNotLocal for a segment in another log
directory, Misconfigured for a store of another database, any error of store and database. Memory of sealing: about
200 MiB, 150 bytes a message, and four times the largest entry.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from storage.environment import Environment
from storage.errors import CompactorError, DataLoss, ErrorText, LeaseHeld, Misconfigured, TopicNotFound, Unavailable
from storage.failpoints import Failpoint, failpoint
from storage.heartbeat import Heartbeat
from storage.ledger.hashing import Xxh3KeyHasher
from storage.ledger.sealing import Sealer
from storage.log.damaged import recovered_rows
from storage.log.lease import release_ignoring_errors, writer_lease
from storage.log.orphan_segments import first_offsets_with_data
from storage.log.prepared_segments import PIECE_BYTES, PreparedSegments
from storage.log.segment import LocalSegment
from storage.log.segment_lifecycle import roll_open_segment
from storage.log.segment_tables import SegmentTableReader
from storage.log.sweep import LogSweep
from storage.metadata.liveness import is_alive
from storage.metadata.records import Attempt, SegmentRecord, SegmentState, TopicRecord
from storage.model import LedgerRecord
from storage.owner import is_alive_here, new_owner_name
from storage.store_identity import StoreIdentity

ROLL_WAIT_MS = 10_000
"""The time that a writer has to roll on request; another process's polls every `lease_renewer.POLL_SECONDS`."""
SEALER_WAIT_MS = 60_000
"""The time that the process has which is woken to seal large segments."""
SMALL_BYTES = 16 << 20
SMALL_MESSAGES = 100_000
"""A segment of at most that many logical bytes and messages takes less than 100 MiB to seal."""
SEALER_DEAD_MS = 60_000
"""The age of a heartbeat from which its sealer has lost the segment."""
_HEARTBEAT_SECONDS = 5.0
_FIRST_POLL_SECONDS, _POLL_SECONDS = 0.01, 0.1


@dataclass(frozen=True)
class RecoveredLedger:
    """The ledger that replaced a segment, and the number of messages that were lost: 0 unless the segment was
    damaged."""

    ledger: LedgerRecord
    lost: int


@dataclass(frozen=True)
class LogManager:
    """The manager of the logs whose segments are in the log directory: it rolls, seals and removes segments. `owner`:
    unique to one piece of work. `prepared`: the segments that this process has encoded in advance."""

    environment: Environment
    owner: str = field(default_factory=new_owner_name)
    prepared: PreparedSegments | None = None

    def roll_and_seal(self, topic: TopicRecord, wait_ms: int = ROLL_WAIT_MS) -> tuple[LedgerRecord, ...]:
        """Roll the active segment and seal all rolled ones, so that all present messages are in ledgers.

        Returns these ledgers. Ledgers that another process seals meanwhile are not among them. Raises LeaseHeld for a
        writer that does not roll on request, or another sealer that does not finish, within `wait_ms` each;
        Misconfigured for a segment in another log directory that no process there seals, and for an abandoned one;
        DataLoss for a damaged one.
        """
        self.roll(topic, wait_ms)
        end = self._end_of_rolled_segments(topic)
        sealed = list(self._seal_below(topic, end))
        if self.environment.log.wake_sealer is not None and self.rolled_segments(topic, end):
            self.environment.log.wake_sealer()
            wait_ms = max(wait_ms, SEALER_WAIT_MS)
        deadline, pauses = self.environment.clock.now_ms() + wait_ms, _poll_pauses()
        while unsealed := self.rolled_segments(topic, end):
            if not self._is_at_another_service(unsealed[0]):
                self.environment.log.check_is_local(topic.name, unsealed[0])
            if self.environment.clock.now_ms() >= deadline:
                raise self._not_sealed_error(topic, unsealed[0], wait_ms)
            self.environment.clock.wait(next(pauses))
            sealed += self._seal_below(topic, end)
        return tuple(sealed)

    def try_roll_and_seal(self, topic: TopicRecord) -> CompactorError | None:
        """Roll and seal as `roll_and_seal` does; return the error if messages remain unsealed, None otherwise.

        They remain if a writer or sealer holds them, if they are in another log directory, or if they are damaged.
        Raises other errors.
        """
        try:
            self.roll_and_seal(topic)
        except (LeaseHeld, Misconfigured, DataLoss) as error:
            return error
        return None

    def _not_sealed_error(self, topic: TopicRecord, segment: SegmentRecord, wait_ms: int) -> LeaseHeld:
        """Return the error for a segment that its sealer did not seal within `wait_ms`."""
        claim = self._unfinished_attempts(topic).get(segment.sealing_attempt_id or "")
        if claim is None:
            return LeaseHeld(
                f"the segment {segment.ledger_id} of {topic.name} is not sealed: its sealer released it",
                "try again",
            )
        silent = max(0, self.environment.clock.now_ms() - claim.heartbeat_at)
        return LeaseHeld(
            f"the segment {segment.ledger_id} of {topic.name} is being sealed by {claim.owner}, which has not "
            f"finished within {wait_ms} ms and was last heard of {silent} ms ago",
            f"try again; if it died, its claim ends {SEALER_DEAD_MS // 1000} s after its last heartbeat",
        )

    def roll(self, topic: TopicRecord, wait_ms: int = ROLL_WAIT_MS, *, accept_loss: bool = False) -> None:
        """Close the open segment of a topic, if there is one, here or by a request to its writer.

        Raises LeaseHeld, ObjectMissing, ObjectDamaged (segment_lifecycle.py). `wait_ms`: the time that its writer has.
        `accept_loss`: also close a damaged segment, with every offset that it assigned; `seal_accepting_loss` seals its
        readable entries. The row of a segment whose file is missing is removed; its offsets are unknown, so they are
        assigned again.

        Segments that the database has lost are adopted, and rolled (orphan_segments.py); raises Misconfigured if that
        is impossible.
        """
        clock, segments = self.environment.clock, self.environment.metadata.segments
        roll_open = self.environment.log.roll_open
        if roll_open is not None and wait_ms > 0:
            begin = clock.now_ms()
            if roll_open(topic.id, wait_ms):
                return
            wait_ms = max(0, wait_ms - (clock.now_ms() - begin))
        requested: int | None = None
        deadline, pauses = 0, _poll_pauses()
        while (segment := segments.find_open(topic.id)) is not None:
            if requested is not None and segment.ledger_id != requested:
                return  # it was rolled, and the writer continues in the next one
            try:
                if self._is_at_another_service(segment):
                    raise LeaseHeld(
                        f"the active segment of {topic.name} is in the log directory {segment.log_uid}, which another "
                        "service has",
                        "try again",
                    )
                self._roll_here(topic, accept_loss)
                return
            except LeaseHeld as error:
                if requested is not None and clock.now_ms() >= deadline:
                    last = segments.find_open(topic.id)
                    if last is None or last.ledger_id != requested:
                        break  # it was rolled while a busy database delayed this check
                    raise LeaseHeld(
                        f"{error.message}; it was asked to roll the segment {segment.ledger_id} and has not done so "
                        f"for {wait_ms} ms",
                        "try again when it has ended or answers",
                    ) from error
            if requested is None:
                segments.request_roll(topic.id)
                requested = segment.ledger_id
                # The writer's time begins with the request, however long the database took until here.
                deadline = clock.now_ms() + wait_ms
            clock.wait(next(pauses))
        if self._has_lost_segments(topic):
            self._roll_here(topic, accept_loss)

    def _roll_here(self, topic: TopicRecord, accept_loss: bool) -> None:
        with writer_lease(self.environment, topic.id, self.owner, 0) as lease:
            roll_open_segment(self.environment, topic, lease, accept_loss=accept_loss)

    def roll_old_segments(self, errors: dict[str, ErrorText]) -> int:
        """Close the open segments here that are older than `segment.ms` and have no writer; return their number.

        Writers check the age of their own segments. `errors` receives the error of each segment that cannot be rolled,
        by the topic's name.
        """
        uid = self.environment.log.known_uid
        if uid is None:
            return 0
        now = self.environment.clock.now_ms()
        idle = self.environment.metadata.segments.open_segments_without_writer(
            uid, now - self.environment.metadata.policies.smallest_value("segment.ms")
        )
        resolver = self.environment.metadata.policies.resolver() if idle else None
        rolled = 0
        for topic, segment in idle:
            assert resolver is not None
            if segment.created_at > now - resolver.resolve(topic).policies.segment_ms:
                continue
            try:
                self.roll(topic, 0)
                rolled += 1
            except (LeaseHeld, TopicNotFound):
                continue  # it is written or compacted now, or was deleted
            except CompactorError as error:
                errors[str(topic.name)] = ErrorText.from_error(error)
        return rolled

    def _has_lost_segments(self, topic: TopicRecord) -> bool:
        """Return whether segment files here hold messages, from the topic's end on, that no database row names.

        Then the database was restored from a backup.
        """
        files = first_offsets_with_data(self.environment.log.topic_folder(topic.uid))
        if not files:
            return False
        try:
            now = self.environment.metadata.topics.get(topic.name)
        except TopicNotFound:
            return False
        named = {segment.first_offset for segment in self.environment.metadata.segments.of_topic(topic.id)}
        return now.uid == topic.uid and any(first >= now.next_offset and first not in named for first in files)

    def _is_at_another_service(self, segment: SegmentRecord) -> bool:
        """Return whether another live service has the segment's log directory.

        That service rolls and seals on request, even if it does not have the topic's log open
        (api/background/maintenance_loop.py).
        """
        if segment.log_uid == self.environment.log.known_uid:
            return False
        return any(service.log_uid == segment.log_uid for service in self.environment.metadata.services.live())

    def seal(self, topic: TopicRecord, *, retry_abandoned: bool = False) -> Iterator[LedgerRecord]:
        """Seal the rolled segments of a topic, the oldest first, and yield their ledgers.

        Another sealer's segments are left to it. Segments that are rolled meanwhile are left to the next call, so this
        ends at any rate of appends. A segment that is damaged, or was abandoned, is skipped; after all others, DataLoss
        or Misconfigured is raised for it. `retry_abandoned`: also seal segments that were tried too often.
        """
        yield from self._seal_below(topic, self._end_of_rolled_segments(topic), retry_abandoned=retry_abandoned)

    def seal_accepting_loss(self, topic: TopicRecord) -> Iterator[RecoveredLedger]:
        """Seal all rolled segments, as `seal` does with `retry_abandoned`; of a damaged or missing one, only the
        readable entries. Yield each ledger with its number of lost messages.

        The rest of such a segment is lost forever: only for an operator who accepts that.
        """
        end = self._end_of_rolled_segments(topic)
        while (
            claimed := self._claim_oldest(topic, self._local_rolled_segments(topic, end), end, retry_abandoned=True)
        ) is not None:
            yield self._seal_segment(topic, *claimed, accept_loss=True)

    def _end_of_rolled_segments(self, topic: TopicRecord) -> int:
        """Return the offset after the last of the segments that are rolled now; 0: there is none."""
        return max(
            (segment.content.last_offset + 1 for segment in self.rolled_segments(topic) if segment.content), default=0
        )

    def _seal_below(self, topic: TopicRecord, end: int, *, retry_abandoned: bool = False) -> Iterator[LedgerRecord]:
        damaged: dict[int, DataLoss] = {}
        while True:
            waiting = self._local_rolled_segments(topic, end)
            claimed = self._claim_oldest(topic, waiting, end, damaged, retry_abandoned=retry_abandoned)
            if claimed is None:
                break
            segment, attempt = claimed
            try:
                sealed = self._seal_segment(topic, segment, attempt)
            except DataLoss as error:
                damaged[segment.ledger_id] = error
                continue
            yield sealed.ledger
        if damaged:
            raise next(iter(damaged.values()))
        self._check_none_tried_too_often(topic, waiting)

    def _local_rolled_segments(self, topic: TopicRecord, end: int) -> list[SegmentRecord]:
        """Return the rolled segments below the offset `end` whose files are in this process's log directory."""
        uid = self.environment.log.known_uid
        return [segment for segment in self.rolled_segments(topic, end) if segment.log_uid == uid]

    def _claim_oldest(
        self,
        topic: TopicRecord,
        waiting: Sequence[SegmentRecord],
        end: int,
        damaged: Collection[int] = (),
        *,
        retry_abandoned: bool = False,
    ) -> tuple[SegmentRecord, Attempt] | None:
        """Claim the oldest segment that may be sealed here; return the segment and the attempt. None: there is none,
        and nothing is written."""
        others = {
            *damaged,
            *(segment.ledger_id for segment in waiting if self._needs_sealer_process(segment)),
        }
        abandoned = () if retry_abandoned else self._segments_tried_too_often(topic, waiting)
        if all(segment.ledger_id in others or segment in abandoned for segment in waiting):
            return None
        uid = self.environment.log.known_uid
        assert uid is not None, "a segment is in it"
        StoreIdentity(self.environment.metadata, self.environment.store).check_or_bind()
        claimed = self.environment.metadata.sealing.claim(
            topic.id, self.owner, uid, SEALER_DEAD_MS, end, others, retry_abandoned=retry_abandoned
        )
        if claimed is not None:
            failpoint(Failpoint.SEAL_CLAIMED)
        return claimed

    def _needs_sealer_process(self, segment: SegmentRecord) -> bool:
        """Return whether only the process that `wake_sealer` wakes may seal a segment: it is large, or may be encoded
        in advance there."""
        log = self.environment.log
        if log.wake_sealer is None:
            return False
        may_be_prepared = log.has_preparation and segment.content is not None and segment.content.size >= PIECE_BYTES
        return may_be_prepared or not _is_cheap_to_seal(segment)

    def _check_none_tried_too_often(self, topic: TopicRecord, waiting: Sequence[SegmentRecord]) -> None:
        """Raise Misconfigured for a segment whose sealing was tried too often, unless the last try may still run."""
        for segment in self._segments_tried_too_often(topic, waiting):
            if segment.content is not None:
                raise Misconfigured(
                    f"the segment {segment.ledger_id} of {topic.name} ({segment.content.messages} messages, "
                    f"{segment.content.logical_bytes} bytes) is not sealed any more: none of {segment.sealing_tries} "
                    "tries finished; their processes died, ran out of memory, or lost the database and ended",
                    "seal it by hand where there is more memory, and lower segment.bytes (docs/operations.md)",
                    is_public=True,
                )

    def _segments_tried_too_often(self, topic: TopicRecord, waiting: Sequence[SegmentRecord]) -> list[SegmentRecord]:
        """Return the segments whose sealing was tried too often, except those whose last sealer still lives."""
        too_often = [segment for segment in waiting if segment.has_exceeded_sealing_tries]
        if not too_often:
            return []
        now = self.environment.clock.now_ms()
        living = {
            attempt_id
            for attempt_id, claim in self._unfinished_attempts(topic).items()
            if is_alive_here(claim.owner) or is_alive(claim.owner, claim.heartbeat_at, SEALER_DEAD_MS, now)
        }
        return [segment for segment in too_often if segment.sealing_attempt_id not in living]

    def _unfinished_attempts(self, topic: TopicRecord) -> dict[str, Attempt]:
        """Return the attempts on a topic that are not finished, by id."""
        attempts = self.environment.metadata.attempts.of_topic(topic.id)
        return {attempt.attempt_id: attempt for attempt in attempts if attempt.finished_at is None}

    def _seal_segment(
        self, topic: TopicRecord, segment: SegmentRecord, attempt: Attempt, *, accept_loss: bool = False
    ) -> RecoveredLedger:
        with (
            self._finishing_attempt(attempt),
            Heartbeat(lambda: self.environment.metadata.attempts.heartbeat(attempt), _HEARTBEAT_SECONDS),
        ):
            hasher = Xxh3KeyHasher(topic.hash_seed)
            sealer = Sealer(self.environment.store, topic.uid, topic.name.partition, hasher, attempt.attempt_id)
            sealed = self._seal_rows(topic, segment, sealer, accept_loss)
            self.environment.metadata.sealing.seal(attempt, sealed.ledger)
        failpoint(Failpoint.SEGMENT_SEALED)
        return sealed

    @contextmanager
    def _finishing_attempt(self, attempt: Attempt) -> Iterator[None]:
        """Finish a sealing attempt at the end of the context. It counts as a try if memory runs out, or if this process
        dies before.

        If the database is unreachable at the end, the next claim sees that this process lives (sealing.py).
        """
        ran_out = False

        def finish() -> None:
            if ran_out:
                self.environment.metadata.attempts.finish(attempt.attempt_id)
            else:
                self.environment.metadata.sealing.release(attempt)

        with release_ignoring_errors(finish):
            try:
                yield
            except MemoryError:
                ran_out = True
                raise

    def _seal_rows(
        self, topic: TopicRecord, segment: SegmentRecord, sealer: Sealer, accept_loss: bool
    ) -> RecoveredLedger:
        """Write the rows of a segment as a ledger, and return it; with `accept_loss`, the readable rows of a damaged
        one."""
        now = self.environment.clock.now_ms()
        begun = None if self.prepared is None else self.prepared.take(topic, segment)
        try:
            reader = SegmentTableReader(self.environment.log)
            tables = reader.all_tables(topic, segment, begun.next_offset if begun else segment.first_offset)
            return RecoveredLedger(sealer.seal(tables, segment.ledger_id, now, begun.ledger if begun else None), 0)
        except DataLoss:
            if not accept_loss or segment.content is None:
                raise
        recovered = recovered_rows(LocalSegment.from_row(self.environment.log, topic, segment), segment.content)
        return RecoveredLedger(sealer.seal([recovered.table], segment.ledger_id, now), recovered.lost)

    def remove_sealed_files(self, topic: TopicRecord | None = None, errors: dict[str, ErrorText] | None = None) -> int:
        """Remove the files of segments that were sealed long enough ago; return the number of segments (sweep.py).

        With `topic`, only its files: cheap enough to be called frequently. None: those of all topics, and files that no
        row names. A file that cannot be removed stops nothing else: `errors` receives the reason, by the topic's name
        (by uid, if it was deleted); if it is None, Unavailable is raised after all others.
        """
        failed: dict[str, ErrorText] = {} if errors is None else errors
        removed = LogSweep(self.environment, self._adopt_lost_segments).remove_files(topic, failed)
        if errors is None and failed:
            owner, why = next(iter(failed.items()))
            raise Unavailable(f"files of {owner} are not swept: {why}", "see to the log directory, then try again")
        return removed

    def _adopt_lost_segments(self, topic: TopicRecord) -> None:
        """Let a topic adopt, and roll, the segments that the database has lost."""
        if self._has_lost_segments(topic):
            self.roll(topic, 0)

    def rolled_segments(self, topic: TopicRecord, end: int | None = None) -> tuple[SegmentRecord, ...]:
        """Return the segments of a topic that are rolled and not sealed yet; with `end`, those that begin below this
        offset."""
        return tuple(
            segment
            for segment in self.environment.metadata.segments.of_topic(topic.id)
            if segment.state is SegmentState.ROLLED and (end is None or segment.first_offset < end)
        )


def _is_cheap_to_seal(segment: SegmentRecord) -> bool:
    """Return whether sealing a segment takes little memory, and no sealer has died over it."""
    content = segment.content
    if content is None or segment.sealing_tries:
        return False
    return content.logical_bytes <= SMALL_BYTES and content.messages <= SMALL_MESSAGES


def _poll_pauses() -> Iterator[float]:
    """Yield the seconds to wait between checks of other processes' work, growing: an eighth of the time until then, or
    less."""
    waited = 0.0
    while True:
        pause = min(max(_FIRST_POLL_SECONDS, waited / 8), _POLL_SECONDS)
        yield pause
        waited += pause
