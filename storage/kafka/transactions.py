"""Records of a consumer with `read_committed`: committed transactions, and nothing from the first open one on.

A transaction ends with a control record of its producer, abort or commit, which comes after its data. So a log is read
twice: `TransactionScan` reads headers and control records to the end; `CommittedBatchFilter` then leaves out control
batches and the batches of aborted transactions. A broker that answers a Fetch has done the scan: its answer lists the
aborted transactions, and its last stable offset. A segment's `.txnindex` has the same list, and is not needed.

A cleaned log fits: its cleaner removes aborted data before the markers that abort it, and keeps a commit's marker as
long as its data.

Raises InvalidRecord. Must not know: files. Sources: KIP-98, Kafka's ProducerStateManager, CompletedFetch.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from storage.kafka.compression import Undecompressable, decompress
from storage.kafka.record_batch import RecordBatch, damaged_batch_error
from storage.varints import read_varint

_CONTROL_KEY = Struct(">hh")
_ABORT, _COMMIT = 0, 1


class AbortedTransaction(NamedTuple):
    """A transaction that was aborted: its first offset in the log, and the id of its producer."""

    first_offset: int
    producer_id: int


class TransactionScan:
    """A scan for the outcomes of transactions, by the headers of batches that are added in order."""

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        self._aborted: list[AbortedTransaction] = []

    def add(self, batch: RecordBatch) -> None:
        """Record the transaction that the next batch begins, commits or aborts. Raises InvalidRecord for a control
        record that cannot be read."""
        if not batch.is_transactional:
            return
        if not batch.is_control:
            self._open.setdefault(batch.producer_id, batch.first_offset)
        elif batch.record_count and (kind := control_type(batch)) in (_ABORT, _COMMIT):
            first = self._open.pop(batch.producer_id, None)
            if first is not None and kind == _ABORT:
                self._aborted.append(AbortedTransaction(first, batch.producer_id))

    @property
    def aborted(self) -> list[AbortedTransaction]:
        """The aborted transactions, by their first offset."""
        return sorted(self._aborted)

    @property
    def last_stable_offset(self) -> int | None:
        """The first offset of the open transaction that began first; None: no transaction is open."""
        return min(self._open.values(), default=None)

    @property
    def oldest_open_producer(self) -> int | None:
        """The producer id of the open transaction that began first; None: no transaction is open."""
        return min(self._open, key=lambda producer_id: self._open[producer_id], default=None)


class CommittedBatchFilter:
    """A filter of batches in order: it accepts those that a consumer with `read_committed` gets.

    `aborted`: the aborted transactions, in any order. `aborted_records`: the number of records of aborted transactions
    that it has left out.
    """

    def __init__(self, aborted: Iterable[AbortedTransaction] = ()) -> None:
        self._pending = sorted(aborted, reverse=True)
        self._producers: set[int] = set()
        self.aborted_records = 0

    def accepts(self, batch: RecordBatch) -> bool:
        """Return whether a consumer with `read_committed` gets the records of a batch; False for control batches, and
        for those of aborted transactions."""
        while self._pending and self._pending[-1].first_offset <= batch.last_offset:
            self._producers.add(self._pending.pop().producer_id)
        if batch.is_control:
            if batch.is_transactional and batch.record_count:
                self._producers.discard(batch.producer_id)
            return False
        if batch.is_transactional and batch.producer_id in self._producers:
            self.aborted_records += batch.record_count
            return False
        return True


def control_type(batch: RecordBatch) -> int:
    """Return the type of a control batch's record: 0 aborts a transaction, 1 commits it. Raises InvalidRecord."""
    try:
        data = bytes(decompress(batch.codec, batch.records))
        _, at = read_varint(data, 0)  # length
        _, at = read_varint(data, at + 1)  # attributes, timestamp delta
        _, at = read_varint(data, at)  # offset delta
        size, at = read_varint(data, at)
        if size < _CONTROL_KEY.size or at + size > len(data):
            raise IndexError
        return int(_CONTROL_KEY.unpack_from(data, at)[1])
    except (IndexError, Undecompressable) as error:
        raise damaged_batch_error(batch, "holds no control record") from error
