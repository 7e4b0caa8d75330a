"""A scan of a topic through a service, over HTTP, in pieces: for drivers and executors without database and store.

A piece is a range of offsets. Of a compacted read the pieces up to the horizon continue in the compacted ledger that
serves when the scan is planned: their start is the token of a read in it, and the service reads a replaced one until it
is collected. Whether it was, a first and a last request prove: their answer is that of the plan only in the same
compacted ledger. Without Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from storage.errors import InvalidInput, Unavailable
from storage.model import TopicName
from storage.positions import CompactedProgress, ContinuationToken, StartOffset, StartPosition
from storage.reading.scan import ScanRange

if TYPE_CHECKING:
    from compactor.client import Client, Topic

DEFAULT_PARTITIONS = 8
"""The maximum number of pieces of the compacted messages, and of the raw ones."""
LEAST_OFFSETS = 10_000
"""A piece of fewer offsets costs more to ask for than to read."""


@dataclass(frozen=True)
class Service:
    """The address of a service, and the token of a role that may read the topic."""

    url: str
    token: str | None = field(default=None, repr=False)

    def connect(self) -> Client:
        """Return an HTTP client of the service. Raises InvalidInput for an invalid URL or token."""
        from compactor.client import connect

        try:
            return connect(self.url, token=self.token)
        except ValueError as error:
            raise InvalidInput(f"the option url or token is wrong: {error}", "correct it") from error


@dataclass(frozen=True)
class _CompactedLedger:
    """A compacted ledger to read through a service. `progress`: the state of a read in it, for continuation tokens.
    `token_after_first`: the token after its first message, by which a replaced ledger is recognized."""

    progress: CompactedProgress
    token_after_first: str

    def start_token(self, offset: int) -> str:
        """Return the continuation token of a read in this compacted ledger from an offset on."""
        return ContinuationToken(StartOffset(offset), compacted=self.progress).to_token()

    def check_still_readable(self, topic: Topic) -> None:
        """Raise Unavailable if the service cannot read this compacted ledger any more."""
        if _read_first_message(topic, self.start_token(0), compacted=True).token_after != self.token_after_first:
            raise Unavailable(
                "the compacted ledger was replaced and collected since the query was planned", "run the query again"
            )


@dataclass(frozen=True)
class ServicePiece:
    """The messages with offsets from `first` to before `end`, raw or of a compacted ledger. It can be pickled."""

    service: Service
    topic: TopicName
    first: int
    end: int
    compacted: _CompactedLedger | None = None

    def tables(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Read the messages of the piece from the service, and yield them as tables that are not empty.

        `columns`: columns of compactor.client. Raises ClientError; Unavailable if the compacted ledger was collected or
        the raw messages were trimmed.
        """
        with self.service.connect() as client:
            topic = client.topic(str(self.topic))
            if self.compacted is not None:  # Spark may not read to the end, as for a LIMIT
                self.compacted.check_still_readable(topic)
            for batch in self._read_batches(topic):
                table = pa.Table.from_batches([batch])
                is_last = table.column("offset")[-1].as_py() >= self.end - 1
                if is_last:
                    table = table.filter(pc.less(table.column("offset"), self.end))
                if len(table):
                    yield table.select(list(columns))
                if is_last:
                    break
            if self.compacted is not None:
                self.compacted.check_still_readable(topic)

    def _read_batches(self, topic: Topic) -> Iterator[pa.RecordBatch]:
        """Read messages from `first` on, as many as the piece has offsets, and yield them in batches."""
        from compactor.client import ClientError

        start = self.first if self.compacted is None else self.compacted.start_token(self.first)
        read = topic.read(compacted=self.compacted is not None, start=start, limit=self.end - self.first)
        try:
            yield from read.batches()
        except ClientError as error:
            if error.status != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise
            raise Unavailable(
                f"messages from offset {self.first} on were trimmed since the query was planned", "run the query again"
            ) from error


def plan_service_scan(
    service: Service, name: TopicName, scan_range: ScanRange, partitions: int, *, read_compacted: bool
) -> list[ServicePiece]:
    """Divide the messages of a topic into pieces, in their order; the present end of the topic is the last.

    Only the offsets of `scan_range` are used. `partitions`: the maximum number of pieces of compacted messages, and of
    raw ones. Raises ClientError.
    """
    with service.connect() as client:
        topic = client.topic(str(name))
        first, token = _read_first_message(topic, "earliest", compacted=read_compacted)
        # Asked afterwards: so the end is not before a message that has superseded one of the compacted ledger.
        latest = _read_first_message(topic, "latest", compacted=False).token_after
    if first is None:
        return []
    compacted, raw_from = _find_compacted_ledger(token) if read_compacted else _NO_COMPACTED_RANGE
    end = min(_parse_start_offset(latest).offset, scan_range.end_offset)
    pieces = []
    if compacted is not None:
        for begin, stop in _split_offsets(max(first, scan_range.first_offset), min(raw_from, end), partitions):
            pieces.append(ServicePiece(service, name, begin, stop, compacted))
    for begin, stop in _split_offsets(max(raw_from or first, scan_range.first_offset), end, partitions):
        pieces.append(ServicePiece(service, name, begin, stop))
    return pieces


def _split_offsets(first: int, end: int, max_ranges: int) -> Iterator[tuple[int, int]]:
    """Yield the first and end offsets of at most `max_ranges` ranges of similar size, from `first` to before `end`."""
    count = min(max_ranges, max(1, (end - first) // LEAST_OFFSETS))
    bounds = [first + (end - first) * number // count for number in range(count + 1)]
    yield from ((begin, stop) for begin, stop in pairwise(bounds) if begin < stop)


class _CompactedRange(NamedTuple):
    """The compacted ledger of a topic, and the first offset after its horizon; None and 0: the first message is raw."""

    ledger: _CompactedLedger | None
    end_offset: int


_NO_COMPACTED_RANGE = _CompactedRange(None, 0)


def _find_compacted_ledger(token: str) -> _CompactedRange:
    """Find the compacted ledger of a read in the continuation token after its first message.

    Raises Unavailable if this version does not know the token.
    """
    state = ContinuationToken.from_token(token, _refuse_other_start)
    assert isinstance(state.start, StartOffset)
    progress = state.compacted
    if progress is None or progress.is_raw or progress.ledger_id is None:
        return _NO_COMPACTED_RANGE
    known_to = state.start.offset - 1 if progress.complete_to is None else progress.complete_to
    whole = CompactedProgress(progress.ledger_id, progress.by_event, complete_to=known_to)
    return _CompactedRange(_CompactedLedger(whole, token), known_to + 1)


class _FirstMessage(NamedTuple):
    """The offset of the first message of a read, None without one; and the continuation token after the message."""

    offset: int | None
    token_after: str


def _read_first_message(topic: Topic, start: str, *, compacted: bool) -> _FirstMessage:
    """Read the first message of a topic at or after a start position, through the service."""
    read = topic.read(compacted=compacted, start=start, limit=1)
    offsets = [batch.column("offset")[0].as_py() for batch in read.batches()]
    assert read.next is not None
    return _FirstMessage(offsets[0] if offsets else None, read.next)


def _parse_start_offset(token: str) -> StartOffset:
    """Return the offset of a continuation token. Raises Unavailable for a token of another version."""
    start = ContinuationToken.from_token(token, _refuse_other_start).start
    assert isinstance(start, StartOffset)
    return start


def _refuse_other_start(text: str) -> StartPosition:
    """Raise Unavailable for a continuation token whose start is not an offset."""
    raise Unavailable(f"the service continues reads at {text!r}, which no service of this version does", "upgrade it")
