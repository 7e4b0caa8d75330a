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

import pyarrow as pa
import pyarrow.compute as pc

from compactor.client import Client, ClientError, Topic, connect
from storage.errors import InvalidInput, Unavailable
from storage.model import TopicName
from storage.positions import CompactedProgress, ContinuationToken, StartOffset, StartPosition
from storage.reading.scan import ScanRange

DEFAULT_PARTITIONS = 8
"""The most pieces of the compacted messages, and of the raw ones."""
LEAST_OFFSETS = 10_000
"""A piece of fewer offsets costs more to ask for than to read."""


@dataclass(frozen=True)
class Service:
    """The address of a service, and the token of a role that may read the topic."""

    url: str
    token: str | None = field(default=None, repr=False)

    def connect(self) -> Client:
        """Return a client. Raises InvalidInput for an address or a token that is none."""
        try:
            return connect(self.url, token=self.token)
        except ValueError as error:
            raise InvalidInput(f"the option url or token is wrong: {error}", "correct it") from error


@dataclass(frozen=True)
class _CompactedLedger:
    """A compacted ledger that is read: the state of a read in it at offset 0, and the token after its first message."""

    progress: CompactedProgress
    token_after_first: str

    def token(self, offset: int) -> str:
        """Return the start of a read in it from an offset on."""
        return ContinuationToken(StartOffset(offset), compacted=self.progress).to_token()

    def check(self, topic: Topic) -> None:
        """Raise Unavailable if the service cannot read it any more."""
        if _first_page(topic, self.token(0), compacted=True)[1] != self.token_after_first:
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
        """Yield the messages as tables of some of compactor.client's columns; none is empty.

        Raises ClientError, and Unavailable if the compacted ledger was collected or the raw messages were trimmed.
        """
        with self.service.connect() as client:
            topic = client.topic(str(self.topic))
            if self.compacted is not None:  # Spark may not read to the end, as for a LIMIT
                self.compacted.check(topic)
            for batch in self._batches(topic):
                table = pa.Table.from_batches([batch])
                is_last = table.column("offset")[-1].as_py() >= self.end - 1
                if is_last:
                    table = table.filter(pc.less(table.column("offset"), self.end))
                if len(table):
                    yield table.select(list(columns))
                if is_last:
                    break
            if self.compacted is not None:
                self.compacted.check(topic)

    def _batches(self, topic: Topic) -> Iterator[pa.RecordBatch]:
        """Yield the messages from `first` on, a number of them that reaches `end`."""
        start = self.first if self.compacted is None else self.compacted.token(self.first)
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
    """Return the pieces of a topic, in the order of its messages; its present end is the end of the scan.

    Of the range the offsets count alone. Raises ClientError.
    """
    with service.connect() as client:
        topic = client.topic(str(name))
        first, token = _first_page(topic, "earliest", compacted=read_compacted)
        # Asked afterwards: so the end is not before a message that has superseded one of the compacted ledger.
        _, latest = _first_page(topic, "latest", compacted=False)
    if first is None:
        return []
    compacted, raw_from = _compacted_ledger(token) if read_compacted else (None, 0)
    end = min(_state(latest).offset, scan_range.end_offset)
    pieces = []
    if compacted is not None:
        for begin, stop in _ranges(max(first, scan_range.first_offset), min(raw_from, end), partitions):
            pieces.append(ServicePiece(service, name, begin, stop, compacted))
    for begin, stop in _ranges(max(raw_from or first, scan_range.first_offset), end, partitions):
        pieces.append(ServicePiece(service, name, begin, stop))
    return pieces


def _ranges(first: int, end: int, limit: int) -> Iterator[tuple[int, int]]:
    """Yield at most `limit` ranges of about as many offsets, from `first` to before `end`."""
    count = min(limit, max(1, (end - first) // LEAST_OFFSETS))
    bounds = [first + (end - first) * number // count for number in range(count + 1)]
    yield from ((begin, stop) for begin, stop in pairwise(bounds) if begin < stop)


def _compacted_ledger(token: str) -> tuple[_CompactedLedger | None, int]:
    """Return the compacted ledger that gave the first message of a read, and the first offset after its horizon.

    None and 0: the first message was raw. `token`: the position of the read after that message. Raises Unavailable if
    this version does not know the token.
    """
    state = ContinuationToken.from_token(token, _no_other_start)
    assert isinstance(state.start, StartOffset)
    progress = state.compacted
    if progress is None or progress.is_raw or progress.ledger_id is None:
        return None, 0
    known_to = state.start.offset - 1 if progress.complete_to is None else progress.complete_to
    whole = CompactedProgress(progress.ledger_id, progress.by_event, complete_to=known_to)
    return _CompactedLedger(whole, token), known_to + 1


def _first_page(topic: Topic, start: str, *, compacted: bool) -> tuple[int | None, str]:
    """Return the offset of the first message from a start on, and the token after it; None: there is no message."""
    read = topic.read(compacted=compacted, start=start, limit=1)
    offsets = [batch.column("offset")[0].as_py() for batch in read.batches()]
    assert read.next is not None
    return (offsets[0] if offsets else None), read.next


def _state(token: str) -> StartOffset:
    start = ContinuationToken.from_token(token, _no_other_start).start
    assert isinstance(start, StartOffset)
    return start


def _no_other_start(text: str) -> StartPosition:
    raise Unavailable(f"the service continues reads at {text!r}, which no service of this version does", "upgrade it")
