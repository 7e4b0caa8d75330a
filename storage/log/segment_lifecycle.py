"""The open segment of a topic: opened, recovered, rolled, and adopted again, for the holder of the topic's lease.

A file exists before its row, so a row without a file is a loss, and is reported as one. A file with messages but
without a row is newer than the database, which was restored. If it begins at the topic's end, the topic adopts it
again, with its ids and offsets. Otherwise nothing is appended, since ids would be assigned twice (orphan_segments.py).

A row says OPEN until the segment is flushed to its end; then one transaction records its content and the topic's end.

Errors: LeaseHeld, Fenced, TopicNotFound, InvalidRecord (an entry that cannot be accepted), StorageFull, Unavailable,
ObjectMissing, ObjectDamaged, Misconfigured. Must not know: callers that append, objects, sealing.
"""

from __future__ import annotations

import logging
from functools import partial

from storage.environment import Environment
from storage.errors import Conflict, DataLoss, Fenced, Misconfigured, ObjectDamaged, ObjectMissing
from storage.failpoints import Failpoint, failpoint
from storage.ledger import rows
from storage.log.active_segment_file import ActiveSegmentFile, BeforeWrite
from storage.log.ledger_id_recovery import reserve_lost_ids
from storage.log.orphan_segments import first_offsets_with_data, read_segment_header, set_aside_files
from storage.log.segment import FlushPolicy, LocalSegment, SegmentPaths, WriterOptions, translating_os_errors
from storage.log.segment_writer import SegmentWriter
from storage.metadata.records import Lease, SegmentRecord, SegmentState, TopicRecord

ENTRY_PADDING = 10 << 10
"""The bytes that an entry may have besides `max.message.bytes`: its metadata (Pulsar's padding of a frame)."""
INFLATION = 4
"""A segment is also rolled when its uncompressed messages exceed this multiple of `segment.bytes`: sealing holds them
in memory."""
_log = logging.getLogger(__name__)


class _CannotAdopt(Misconfigured):
    """The error about a segment file that has lost its database row and cannot have one again."""


class SegmentLifecycle:
    """The opening, recovery and closing of one topic's segments, for the holder of the topic's lease."""

    def __init__(self, environment: Environment, topic: TopicRecord, lease: Lease) -> None:
        self._metadata, self._clock, self._log = environment.metadata, environment.clock, environment.log
        self._topic = topic
        self._lease = lease
        self._policies = self._metadata.policies.effective(topic)
        self._opened_at = self._clock.now_ms()

    def recover(self) -> SegmentWriter | None:
        """Recover the segment that the database names as open, and return its writer; None: no segment is open. Raises
        ObjectMissing, ObjectDamaged, LeaseHeld."""
        row = self._open_segment_row()
        if row is None:
            return None
        self._opened_at = row.created_at
        segment = LocalSegment.from_row(self._log, self._topic, row)
        return self._create_writer(
            ActiveSegmentFile.recover(segment, self._writer_options, self._open_segment_check(row.ledger_id))
        )

    def adopt_lost_segments(self, writer: SegmentWriter | None, *, accept_loss: bool = False) -> SegmentWriter | None:
        """Adopt the segment files after the segment of `writer` whose database rows are lost; return the writer of the
        last one.

        Return `writer` if there are none; None: no segment is open then. `accept_loss`: set files aside that cannot be
        adopted; otherwise raises Misconfigured or DataLoss for them.
        """
        reserve_lost_ids(self._metadata, self._log)
        with translating_os_errors(self._log.topic_folder(self._topic.uid), "read"):
            return self._adopt_files(writer, accept_loss)

    def _adopt_files(self, writer: SegmentWriter | None, accept_loss: bool) -> SegmentWriter | None:
        folder = self._log.topic_folder(self._topic.uid)
        while files := first_offsets_with_data(folder):
            end = writer.next_offset if writer else self._metadata.topics.get(self._topic.name).next_offset
            files = [first for first in files if first >= end]
            if not files:
                break
            self.roll(writer)
            writer = None
            try:
                writer = self._adopt_file(SegmentPaths(folder, files[0]), end)
            except (_CannotAdopt, DataLoss):
                if not accept_loss:
                    raise
                for lost in (SegmentPaths(folder, first) for first in files):
                    with translating_os_errors(lost.log, "rename"):
                        set_aside_files(lost)
        return writer

    def _adopt_file(self, files: SegmentPaths, end: int) -> SegmentWriter:
        """Make a segment file that has lost its database row the topic's open segment; return its writer. Raises
        Misconfigured, DataLoss, Fenced."""
        refusal = partial(self._cannot_adopt_error, files)
        if files.first_offset != end:
            raise refusal(f"the topic ends at offset {end} in the database, so messages in between are missing")
        header = read_segment_header(files)
        if isinstance(header, str) or (header.topic_uid, header.first_offset) != (self._topic.uid, end):
            raise refusal(header if isinstance(header, str) else "its header names another place")
        segment = LocalSegment(files.folder, header, self._topic.name.partition)
        writer = self._create_writer(
            ActiveSegmentFile.recover(segment, self._writer_options, self._open_segment_check(None))
        )
        try:
            written_at = min(self._clock.now_ms(), int(files.log.stat().st_mtime * 1000))
            row = SegmentRecord(header.ledger_id, end, self._log.uid, SegmentState.OPEN, written_at)
            self._metadata.segments.restore(self._lease, row)
        except BaseException as error:
            writer.close()
            if isinstance(error, Conflict) and not isinstance(error, Fenced):
                raise refusal(error.message) from error
            raise
        self._opened_at = written_at
        _log.warning(
            "%s has no row in the database, which must be older than the log; its %d messages are in the topic again",
            files.log,
            writer.messages,
        )
        return writer

    def _cannot_adopt_error(self, files: SegmentPaths, why: str) -> _CannotAdopt:
        return _CannotAdopt(
            f"{files.log} holds messages of {self._topic.name} that the database does not know, and they cannot "
            f"belong to it again: {why}",
            "restore a database that is as new as the log, or accept the loss of the file (docs/operations.md); until "
            "then nothing is appended, or ids and offsets would be assigned twice",
        )

    def roll_damaged(self) -> None:
        """Roll the open segment, which is damaged, with every offset that it ever assigned.

        Delete its row if it is empty. No offset is assigned again; the readable entries are sealed when an operator
        accepts the loss (log_manager.py).
        """
        row = self._open_segment_row()
        if row is None:
            return
        segment = LocalSegment.from_row(self._log, self._topic, row)
        with ActiveSegmentFile.locked_damaged_content(
            segment, self._writer_options, self._open_segment_check(row.ledger_id)
        ) as content:
            if content is None:
                self._metadata.segments.drop_empty(self._lease, row.ledger_id)
            else:
                self._metadata.segments.roll(self._lease, row.ledger_id, content)

    def _open_segment_row(self) -> SegmentRecord | None:
        """Return the row of the open segment, whose file must exist. Raises ObjectMissing, Misconfigured."""
        row = self._metadata.segments.find_open(self._topic.id)
        if row is None:
            return None
        self._log.check_is_local(self._topic.name, row)
        file = SegmentPaths(self._log.topic_folder(self._topic.uid), row.first_offset).log
        if not file.exists():
            raise ObjectMissing(
                f"the segment {file} of {self._topic.name} is missing",
                "restore the file: it holds messages that were acknowledged",
            )
        return row

    def create_segment_for(self, entry: bytes) -> SegmentWriter:
        """Create a segment that can take `entry`, and return its writer; the entry is not appended. Raises
        InvalidRecord, Fenced, LeaseHeld."""
        self._policies = self._metadata.policies.effective(self._topic)
        self._writer_options.read_valid_header(entry, self._clock.now_ms())
        first_offset = self._metadata.topics.get(self._topic.name).next_offset
        ledger_id = self._metadata.ledgers.allocate_ids(1)
        now = self._clock.now_ms()
        log_uid = self._log.uid  # before its first file
        row = SegmentRecord(ledger_id, first_offset, log_uid, SegmentState.OPEN, now)
        segment = LocalSegment.from_row(self._log, self._topic, row)
        writer = self._create_writer(
            ActiveSegmentFile.create(segment, self._writer_options, self._open_segment_check(None))
        )
        try:
            self._metadata.segments.open(self._lease, row)
            failpoint(Failpoint.SEGMENT_OPENED)
        except BaseException:
            writer.close()
            raise
        self._opened_at = now
        return writer

    def roll(self, writer: SegmentWriter | None) -> SegmentRecord | None:
        """Flush and close the writer's segment, and return its row, which is rolled now; None: `writer` is None, or the
        segment was empty.

        Raises Fenced.
        """
        if writer is None:
            self._metadata.segments.clear_roll_request(self._lease)
            return None
        try:
            writer.finish()
            failpoint(Failpoint.ROLL_FLUSHED)
            content = writer.content()
            if content is None:
                self._metadata.segments.drop_empty(self._lease, writer.ledger_id)
                return None
            rolled = self._metadata.segments.roll(self._lease, writer.ledger_id, content)
            failpoint(Failpoint.SEGMENT_ROLLED)
            return rolled
        finally:
            writer.close()  # not before: until its row is rolled, another process may take the segment for an open one

    def must_roll_before_append(self, writer: SegmentWriter) -> bool:
        """Return whether the segment must be rolled before the next append: by its size, its content or its age."""
        limit = self._policies.segment_bytes
        return (
            writer.size >= limit
            or writer.logical_bytes >= INFLATION * limit
            or writer.messages >= rows.LEDGER_ROWS
            or self.is_old(writer)
        )

    def is_old(self, writer: SegmentWriter) -> bool:
        """Return whether the segment has messages and is at least `segment.ms` old, so that it must be rolled."""
        age = self._clock.now_ms() - self._opened_at
        return writer.messages > 0 and age >= self._policies.segment_ms

    def _create_writer(self, file: ActiveSegmentFile) -> SegmentWriter:
        return SegmentWriter(file, self._clock, self._writer_options, self._log.committers)

    def _open_segment_check(self, ledger_id: int | None) -> BeforeWrite:
        """Return a check to call under the file's lock: it raises unless `ledger_id` is the topic's open segment; None:
        unless no segment is open."""
        return lambda: self._metadata.segments.check_open(self._lease, ledger_id)

    @property
    def _writer_options(self) -> WriterOptions:
        flush = FlushPolicy(self._policies.flush_messages, self._policies.flush_ms)
        return WriterOptions(
            flush,
            max_entry_bytes=self._policies.max_message_bytes + ENTRY_PADDING,
            max_ahead_ms=self._policies.message_timestamp_after_max_ms,
        )


def roll_open_segment(environment: Environment, topic: TopicRecord, lease: Lease, *, accept_loss: bool = False) -> None:
    """Close the segment that a writer left open, if there is one, and those that the database has lost.

    For the holder of the lease. `accept_loss`: also a segment whose flushed bytes are damaged: it stays as it is, and
    keeps its offsets. A segment whose file is missing is purged. A file that cannot be adopted is set aside.
    """
    segments = SegmentLifecycle(environment, topic, lease)
    try:
        segments.roll(segments.recover())
    except ObjectDamaged:
        if not accept_loss:
            raise
        segments.roll_damaged()
    except ObjectMissing:
        lost = environment.metadata.segments.find_open(topic.id)
        if not accept_loss or lost is None:
            raise
        environment.metadata.segments.drop_empty(lease, lost.ledger_id)
    last = segments.adopt_lost_segments(None, accept_loss=accept_loss)
    if last is not None:
        segments.roll(last)
