"""Manages the logs of topics: rolls active segments, seals rolled ones, removes files that ledgers have replaced.

    roll    the open segment is closed, by its writer if one lives, or by the service that has its log directory if it
            is another one (they are asked through SQL), else here, under the lease; also when it is older than
            `segment.ms` and no writer has it open
    seal    a rolled segment becomes a sealed ledger: objects first, then one transaction; its messages keep their ids
    sweep   files of sealed segments go after `file.delete.delay`, then their rows; so does the folder of a topic that
            was deleted (S8); files that hold messages and that no row names are set aside (orphan_segments.py)

A segment whose sealers die (out of memory) is given up after `MAX_SEALING_TRIES`; then only an operator seals it. In
a process that must not die, only what is small is sealed; the rest is left to the process that is woken for it
(LogDirectory.wake_sealer).

Sealing may be done by any process that has the log directory and the store, beside the writer and beside other
sealers: a segment is claimed by an attempt, and of two that seal the same one, one commits. Whatever is cut off leaves
the segment rolled, or sealed, never both and never neither: the transaction decides which, and readers go by rows.

May go wrong: LeaseHeld, ObjectDamaged and ObjectMissing for a segment's file, SegmentNotLocal for a segment that is in
another log directory, Misconfigured for a store that is another database's, any error of store and database. Memory:
one segment, about four times its logical size (`segment.bytes`, storage/log/segment_lifecycle.py bounds it) and 250
bytes a message.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from storage.environment import Environment
from storage.errors import CompactorError, DataLoss, LeaseHeld, Misconfigured, TopicNotFound, Unavailable
from storage.failpoints import Failpoint, failpoint
from storage.heartbeat import Heartbeat
from storage.ledger.hashing import Xxh3KeyHasher
from storage.ledger.sealing import Sealer
from storage.log.damaged import readable_rows
from storage.log.lease import afterwards, writer_lease
from storage.log.orphan_segments import behind
from storage.log.segment import LocalSegment
from storage.log.segment_lifecycle import roll_open_segment
from storage.log.segment_tables import SegmentTableReader
from storage.log.sweep import LogSweep
from storage.metadata.liveness import is_alive
from storage.metadata.records import Attempt, SegmentRecord, SegmentState, TopicRecord
from storage.model import LedgerRecord
from storage.owner import is_alive_here, owner_name
from storage.store_identity import StoreIdentity

ROLL_WAIT_MS = 10_000
"""How long a writer may take to roll when it is asked to; it polls every `topic_log.POLL_SECONDS`."""
SEALER_WAIT_MS = 60_000
"""How long the process that is woken to seal what is large may take."""
SMALL_BYTES = 16 << 20
SMALL_MESSAGES = 100_000
"""A segment of that many logical bytes and messages at most takes less than 100 MiB to seal."""
SEALER_DEAD_MS = 60_000
"""A sealer whose heartbeat is older than this has lost its segment."""
_HEARTBEAT_SECONDS = 5.0
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class RecoveredLedger:
    """What a segment became, and how many of its messages are lost."""

    ledger: LedgerRecord
    lost: int


@dataclass(frozen=True)
class LogManager:
    """Manages the logs of topics whose segments are in the log directory. `owner`: unique to one piece of work."""

    environment: Environment
    owner: str = field(default_factory=owner_name)

    def roll_and_seal(self, topic: TopicRecord, wait_ms: int = ROLL_WAIT_MS) -> tuple[LedgerRecord, ...]:
        """Roll the active segment and seal all that is rolled, so that what is there now is in ledgers.

        Raises LeaseHeld for a writer that does not roll when it is asked to, or another sealer that does not finish,
        within `wait_ms` each; Misconfigured for a segment in another log directory that no process there seals.
        """
        self.roll(topic, wait_ms)
        end = self._rolled_end(topic)
        sealed = list(self._seal_below(topic, end))
        if self.environment.log.wake_sealer is not None and self.rolled(topic, end):
            self.environment.log.wake_sealer()
            wait_ms = max(wait_ms, SEALER_WAIT_MS)
        deadline = self.environment.clock.now_ms() + wait_ms
        while unsealed := self.rolled(topic, end):
            if not self._is_kept_elsewhere(unsealed[0]):
                self.environment.log.check(topic.name, unsealed[0])
            if self.environment.clock.now_ms() >= deadline:
                raise self._unsealed(topic, unsealed[0], wait_ms)
            self.environment.clock.wait(_POLL_SECONDS)
            sealed += self._seal_below(topic, end)
        return tuple(sealed)

    def try_roll_and_seal(self, topic: TopicRecord) -> CompactorError | None:
        """As `roll_and_seal`; why something is left: a writer or sealer has it, it is elsewhere, or it is damaged."""
        try:
            self.roll_and_seal(topic)
        except (LeaseHeld, Misconfigured, DataLoss) as error:
            return error
        return None

    def _unsealed(self, topic: TopicRecord, segment: SegmentRecord, wait_ms: int) -> LeaseHeld:
        """Why a segment is not sealed yet though its sealer was waited for."""
        claims = {
            attempt.attempt_id: attempt
            for attempt in self.environment.metadata.attempts.of_topic(topic.id)
            if attempt.finished_at is None
        }
        claim = claims.get(segment.sealing_attempt_id or "")
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
        """Close the segment that is open now, if there is one. Raises LeaseHeld, ObjectDamaged (see
        segment_lifecycle.py).

        `accept_loss`: also one that is damaged, with all offsets that it gave out; `seal_damaged` seals what is left.
        The row of one whose file is gone is removed; which offsets it gave out is not known, so they are given out
        again.

        What the database has lost of the log is taken up again, and rolled (orphan_segments.py); Misconfigured if it
        cannot be.
        """
        clock, segments = self.environment.clock, self.environment.metadata.segments
        requested: int | None = None
        deadline = 0
        while (segment := segments.find_open(topic.id)) is not None:
            if requested is not None and segment.ledger_id != requested:
                return  # it was rolled, and the writer has gone on
            try:
                if self._is_kept_elsewhere(segment):
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
            clock.wait(_POLL_SECONDS)
        if self._is_behind_its_log(topic):
            self._roll_here(topic, accept_loss)

    def _roll_here(self, topic: TopicRecord, accept_loss: bool) -> None:
        with writer_lease(self.environment, topic.id, self.owner, 0) as lease:
            roll_open_segment(self.environment, topic, lease, accept_loss=accept_loss)

    def roll_old(self, failing: dict[str, str]) -> int:
        """Close the open segments here that are older than `segment.ms` and that no writer has open; how many.

        A writer checks the age by itself. `failing`: why one cannot be rolled, by topic.
        """
        uid = self.environment.log.known_uid
        if uid is None:
            return 0
        now = self.environment.clock.now_ms()
        idle = self.environment.metadata.segments.open_without_writer(
            uid, now - self.environment.metadata.policies.least("segment.ms")
        )
        resolver = self.environment.metadata.policies.resolver() if idle else None
        rolled = 0
        for topic, segment in idle:
            assert resolver is not None
            if segment.created_at > now - resolver.resolved(topic).policies.segment_ms:
                continue
            try:
                self.roll(topic, 0)
                rolled += 1
            except (LeaseHeld, TopicNotFound):
                continue  # it is written or compacted now, or was deleted
            except CompactorError as error:
                failing[str(topic.name)] = str(error)
        return rolled

    def _is_behind_its_log(self, topic: TopicRecord) -> bool:
        """Whether files here hold messages from the topic's end on that no row names: the database was restored."""
        files = behind(self.environment.log.of_topic(topic.uid), 0)
        if not files:
            return False
        try:
            now = self.environment.metadata.topics.get(topic.name)
        except TopicNotFound:
            return False
        named = {segment.first_offset for segment in self.environment.metadata.segments.of_topic(topic.id)}
        return now.uid == topic.uid and any(first >= now.next_offset and first not in named for first in files)

    def _is_kept_elsewhere(self, segment: SegmentRecord) -> bool:
        """Whether a service that lives has the segment's log directory, and this is another one: it rolls and seals
        what it is asked to, whether it has the topic's log open or not (api/background/maintenance_loop.py)."""
        if segment.log_uid == self.environment.log.known_uid:
            return False
        return any(service.log_uid == segment.log_uid for service in self.environment.metadata.services.live())

    def seal(self, topic: TopicRecord, *, again: bool = False) -> Iterator[LedgerRecord]:
        """Seal what of a topic is rolled now, the oldest first; segments that another sealer has are left to it.

        What is rolled meanwhile is for the next call, so this ends however fast the topic is written. A segment that
        is damaged, or was given up, is passed over, and raised as DataLoss or Misconfigured when all others had their
        turn. `again`: seal what was given up, too.
        """
        yield from self._seal_below(topic, self._rolled_end(topic), again=again)

    def seal_damaged(self, topic: TopicRecord) -> Iterator[RecoveredLedger]:
        """As `seal` again; but of what is damaged or gone seal what is left: the rest is lost for good."""
        end = self._rolled_end(topic)
        while (claimed := self._claim(topic, self._sealable(topic, end), end, again=True)) is not None:
            yield self._sealed(topic, *claimed, accept_loss=True)

    def _rolled_end(self, topic: TopicRecord) -> int:
        """The offset behind all that is rolled now."""
        return max((segment.content.last_offset + 1 for segment in self.rolled(topic) if segment.content), default=0)

    def _seal_below(self, topic: TopicRecord, end: int, *, again: bool = False) -> Iterator[LedgerRecord]:
        damaged: dict[int, DataLoss] = {}
        while True:
            waiting = self._sealable(topic, end)
            claimed = self._claim(topic, waiting, end, damaged, again=again)
            if claimed is None:
                break
            segment, attempt = claimed
            try:
                sealed = self._sealed(topic, segment, attempt)
            except DataLoss as error:
                damaged[segment.ledger_id] = error
                continue
            yield sealed.ledger
        if damaged:
            raise next(iter(damaged.values()))
        self._check_given_up(topic, waiting)

    def _sealable(self, topic: TopicRecord, end: int) -> list[SegmentRecord]:
        """What waits to be sealed and is here."""
        uid = self.environment.log.known_uid
        return [segment for segment in self.rolled(topic, end) if segment.log_uid == uid]

    def _claim(
        self,
        topic: TopicRecord,
        waiting: Sequence[SegmentRecord],
        end: int,
        damaged: Collection[int] = (),
        *,
        again: bool = False,
    ) -> tuple[SegmentRecord, Attempt] | None:
        """The oldest segment that may be sealed here; nothing is written where there is none."""
        others = {
            *damaged,
            *(segment.ledger_id for segment in waiting if self.environment.log.wake_sealer and not _is_small(segment)),
        }
        given_up = () if again else self._given_up(topic, waiting)
        if all(segment.ledger_id in others or segment in given_up for segment in waiting):
            return None
        uid = self.environment.log.known_uid
        assert uid is not None, "a segment is in it"
        StoreIdentity(self.environment.metadata, self.environment.store).require()
        claimed = self.environment.metadata.sealing.claim(
            topic.id, self.owner, uid, SEALER_DEAD_MS, end, others, again=again
        )
        if claimed is not None:
            failpoint(Failpoint.SEAL_CLAIMED)
        return claimed

    def _check_given_up(self, topic: TopicRecord, waiting: Sequence[SegmentRecord]) -> None:
        """Raises Misconfigured for a segment that was tried too often, unless the last try may be under way."""
        for segment in self._given_up(topic, waiting):
            if segment.content is not None:
                raise Misconfigured(
                    f"the segment {segment.ledger_id} of {topic.name} ({segment.content.messages} messages, "
                    f"{segment.content.logical_bytes} bytes) is given up: of {segment.sealing_tries} tries to seal "
                    "it none was finished; their processes died, ran out of memory, or lost the database and ended",
                    "seal it by hand where there is more memory, and lower segment.bytes (docs/operations.md)",
                    is_public=True,
                )

    def _given_up(self, topic: TopicRecord, waiting: Sequence[SegmentRecord]) -> list[SegmentRecord]:
        """Those that were tried too often, unless the last try may be under way, or stopped while its process lives."""
        too_often = [segment for segment in waiting if segment.tried_too_often]
        if not too_often:
            return []
        now = self.environment.clock.now_ms()
        living = {
            attempt.attempt_id
            for attempt in self.environment.metadata.attempts.of_topic(topic.id)
            if attempt.finished_at is None
            and (is_alive_here(attempt.owner) or is_alive(attempt.owner, attempt.heartbeat_at, SEALER_DEAD_MS, now))
        }
        return [segment for segment in too_often if segment.sealing_attempt_id not in living]

    def _sealed(
        self, topic: TopicRecord, segment: SegmentRecord, attempt: Attempt, *, accept_loss: bool = False
    ) -> RecoveredLedger:
        with (
            self._trying(attempt),
            Heartbeat(lambda: self.environment.metadata.attempts.heartbeat(attempt), _HEARTBEAT_SECONDS),
        ):
            hasher = Xxh3KeyHasher(topic.hash_seed)
            sealer = Sealer(self.environment.store, topic.uid, topic.name.partition, hasher, attempt.attempt_id)
            table, lost = self._rows(topic, segment, accept_loss)
            ledger = sealer.seal(table, segment.ledger_id, self.environment.clock.now_ms())
            self.environment.metadata.sealing.seal(attempt, ledger)
        failpoint(Failpoint.SEGMENT_SEALED)
        return RecoveredLedger(ledger, lost)

    @contextmanager
    def _trying(self, attempt: Attempt) -> Iterator[None]:
        """Finish the attempt at the end. It counts as a try if memory runs out, or if this process dies before.

        If the database is away at the end, the next claim sees that this process lives (sealing.py).
        """
        ran_out = False

        def finish() -> None:
            if ran_out:
                self.environment.metadata.attempts.finish(attempt.attempt_id)
            else:
                self.environment.metadata.sealing.release(attempt)

        with afterwards(finish):
            try:
                yield
            except MemoryError:
                ran_out = True
                raise

    def _rows(self, topic: TopicRecord, segment: SegmentRecord, accept_loss: bool) -> tuple[pa.Table, int]:
        """All rows of a segment, and how many of its messages are not among them."""
        try:
            return SegmentTableReader(self.environment.log).table(topic, segment), 0
        except DataLoss:
            if not accept_loss or segment.content is None:
                raise
        found = readable_rows(LocalSegment.of(self.environment.log, topic, segment), segment.content)
        return found.table, found.lost

    def sweep(self, topic: TopicRecord | None = None, failing: dict[str, str] | None = None) -> int:
        """Remove the files of segments that were sealed long enough ago; how many (sweep.py).

        Of one topic, cheap enough to be called all the time; or of all topics, and then what no row names, too. What
        cannot be removed holds up nothing else: `failing` gets a reason by topic (by uid, if it was deleted); where
        there is none, Unavailable is raised when all others had their turn.
        """
        failed: dict[str, str] = {} if failing is None else failing
        removed = LogSweep(self.environment, self._take_up).sweep(topic, failed)
        if failing is None and failed:
            owner, why = next(iter(failed.items()))
            raise Unavailable(f"files of {owner} are not swept: {why}", "see to the log directory, then try again")
        return removed

    def _take_up(self, topic: TopicRecord) -> None:
        """Let the topic have again what the database has lost of its log."""
        if self._is_behind_its_log(topic):
            self.roll(topic, 0)

    def rolled(self, topic: TopicRecord, end: int | None = None) -> tuple[SegmentRecord, ...]:
        """The segments that wait to be sealed; with `end`, of those that begin below this offset."""
        return tuple(
            segment
            for segment in self.environment.metadata.segments.of_topic(topic.id)
            if segment.state is SegmentState.ROLLED and (end is None or segment.first_offset < end)
        )


def _is_small(segment: SegmentRecord) -> bool:
    """Whether sealing takes little memory, and no sealer has died over it."""
    content = segment.content
    if content is None or segment.sealing_tries:
        return False
    return content.logical_bytes <= SMALL_BYTES and content.messages <= SMALL_MESSAGES
