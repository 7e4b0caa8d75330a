"""One segment for tests: its files, writers and readers of it, and small entries that tell which they are."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import google_crc32c
import pytest

from storage.clock import Clock
from storage.entries.decode import StoredEntry
from storage.errors import CompactorError
from storage.log.active_segment_file import ActiveSegmentFile
from storage.log.directory import LogDirectory
from storage.log.frames import SegmentHeader
from storage.log.group_commit import GroupCommit
from storage.log.high_watermark import HighWatermark, read_high_watermark
from storage.log.segment import AppendResult, FlushPolicy, LocalSegment, SegmentPaths, WriterOptions
from storage.log.segment_reader import SegmentReader
from storage.log.segment_tables import SegmentTableReader
from storage.log.segment_writer import SegmentWriter
from storage.metadata.records import SegmentContent
from tests.clocks import ManualClock
from tests.pulsar_entries import PUBLISHED, entry, metadata

TOPIC_UID = "0123456789abcdef" * 2
PARTITION = 3
EVERY_APPEND = FlushPolicy()
NEVER = FlushPolicy(None)


def message(number: int, size: int = 0, publish_time: int = PUBLISHED) -> bytes:
    """An entry that is one message, with `number` as its sequence id and in its payload."""
    return entry(metadata(sequence_id=number, publish_time=publish_time), b"%d" % number + b"." * size)


def batch(messages: int, number: int = 0, publish_time: int = PUBLISHED) -> bytes:
    """An entry that says to be a batch."""
    described = metadata(sequence_id=number, publish_time=publish_time, num_messages_in_batch=messages)
    return entry(described, b"single" * messages)


class SteppedWriter(SegmentWriter):
    """A writer that a test steps: it appends now, and is closed by its `with` statement."""

    @property
    def entries(self) -> int:
        """The number of entries that are written."""
        content = self.content()
        return content.entries if content else 0

    def append(self, entry: bytes) -> AppendResult:
        """Append an entry and return when it is acknowledged."""
        return self.submit(entry).result()

    def flush_if_due(self) -> bool:
        """Do as a committing thread does when the time of a flush may have come. Return whether it flushed."""
        descriptor = self._commits.begin_commit()
        if descriptor is not None:
            os.fdatasync(descriptor)
            self._commits.complete_flush(None)
        return descriptor is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()


NO_LOG = SegmentTableReader(LogDirectory(Path("/no/log/directory")))
"""The reader of segments for topics that have none."""


@dataclass(frozen=True)
class OneSegment:
    """A segment's identity and folder."""

    folder: Path
    ledger_id: int = 7
    first_offset: int = 1000
    clock: Clock = field(default_factory=ManualClock)

    @property
    def files(self) -> SegmentPaths:
        return SegmentPaths(self.folder, self.first_offset)

    @property
    def header(self) -> SegmentHeader:
        return SegmentHeader(TOPIC_UID, self.ledger_id, self.first_offset)

    @property
    def local(self) -> LocalSegment:
        return LocalSegment(self.folder, self.header, PARTITION)

    def _writer(
        self, opened: Callable[[LocalSegment, WriterOptions], ActiveSegmentFile], options: WriterOptions
    ) -> SteppedWriter:
        return SteppedWriter(opened(self.local, options), self.clock, options)

    def create(self, policy: FlushPolicy = EVERY_APPEND, **options: Any) -> SteppedWriter:
        return self._writer(ActiveSegmentFile.create, WriterOptions(policy, **options))

    def recover(self, policy: FlushPolicy = EVERY_APPEND, **options: Any) -> SteppedWriter:
        return self._writer(ActiveSegmentFile.recover, WriterOptions(policy, **options))

    def damaged(self) -> SegmentContent | None:
        """Return its known content, although it cannot be recovered."""
        with ActiveSegmentFile.locked_damaged_content(self.local, WriterOptions()) as content:
            return content

    def reader(self, end: int | None = None, **options: Any) -> SegmentReader:
        return SegmentReader(self.local, end, **options)

    def end(self) -> HighWatermark:
        mark = read_high_watermark(self.files.high_watermark, self.header.checksum)
        assert mark is not None
        return mark

    def visible(self) -> list[bytes]:
        """The entries that readers of an open segment see."""
        return [stored.data for stored in self.reader().entries()]

    def rolled(self, entries: list[bytes], **options: Any) -> int:
        """Write a whole segment; its size."""
        with self.create(NEVER, **options) as writer:
            for item in entries:
                writer.append(item)
        return self.files.log.stat().st_size


def placed(stored: StoredEntry) -> tuple[int, int, bytes]:
    """An entry and its place, to compare."""
    return stored.entry_id, stored.offset, stored.data


def places(entries: list[bytes], first_offset: int = 1000) -> list[tuple[int, int, bytes]]:
    """Return the places that a reader must report for entries of `message` and `batch`."""
    expected, offset = [], first_offset
    for number, data in enumerate(entries):
        expected.append((number, offset, data))
        offset += data.count(b"single") or 1
    return expected


ENTRIES = [batch(1 + n % 3, n) if n % 2 else message(n, size=n % 40) for n in range(200)]
"""Entries of one to three messages, of different sizes."""
PLACES = places(ENTRIES)
NEXT_OFFSET = PLACES[-1][1] + (ENTRIES[-1].count(b"single") or 1)


def flip(path: Path, position: int, bits: int = 0x10) -> None:
    """Damage one byte of a file; once more repairs it."""
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ bits]))


def write_version_2(path: Path, seed: int, end: HighWatermark) -> None:
    """A `.end` file as version 2 was written: without logical bytes."""
    copy = struct.pack(">QQQQQB", 1, end.flushed_bytes, end.visible_bytes, end.entries, end.next_offset, 2)
    copy += struct.pack(">I", google_crc32c.extend(seed, copy))
    path.write_bytes((copy.ljust(64, b"\x00") * 2).ljust(256, b"\x00"))


class EndingQueues:
    """A record of the commit queues of writers that are being ended, for a wait until one of them refuses appends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._queues: list[GroupCommit] = []
        self._end = GroupCommit.close
        monkeypatch.setattr(GroupCommit, "close", lambda *arguments, **options: self._record(*arguments, **options))

    def _record(self, queue: GroupCommit, refusal: CompactorError, *, drop: bool) -> None:
        self._queues.append(queue)
        self._end(queue, refusal, drop=drop)

    def wait_for_refusal(self) -> None:
        while not any(queue.refusal for queue in list(self._queues)):
            os.sched_yield()
