"""A consumer with read_committed gets no aborted record, no control record, nothing from an open transaction on."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from storage.errors import InvalidRecord
from storage.kafka.record_batch import read_batches
from storage.kafka.transactions import CommittedBatchFilter, TransactionScan, control_type
from tests.kafka_batches import ABORT, COMMIT, CONTROL, TRANSACTIONAL, Batch, Record, encode, marker


def data_of(offset: int, producer_id: int, count: int = 2) -> bytes:
    rows = [Record(offset + number) for number in range(count)]
    return encode(Batch(rows, attributes=TRANSACTIONAL, producer_id=producer_id))


def plain(offset: int, count: int = 2) -> bytes:
    return encode(Batch([Record(offset + number) for number in range(count)]))


def committed(data: bytes) -> tuple[list[int], TransactionScan, CommittedBatchFilter]:
    """First offsets of the batches that are accepted."""
    scan = TransactionScan()
    batches = list(read_batches(data))
    for batch in batches:
        scan.add(batch)
    accepted = CommittedBatchFilter(scan.aborted)
    return [batch.first_offset for batch in batches if accepted.accepts(batch)], scan, accepted


def test_interleaved_transactions() -> None:
    data = b"".join(
        (
            data_of(0, 1),
            data_of(2, 2),
            plain(4),
            data_of(6, 1),
            marker(8, 1, ABORT),
            data_of(9, 2),
            data_of(11, 1),
            marker(13, 2, COMMIT),
            marker(14, 1, COMMIT),
        )
    )
    accepted, scan, result = committed(data)
    assert accepted == [2, 4, 9, 11]
    assert scan.last_stable_offset is None
    assert result.aborted_records == 4


def test_an_open_transaction_is_the_end() -> None:
    _, scan, _ = committed(data_of(0, 1) + data_of(2, 2) + plain(4) + marker(6, 1, COMMIT) + data_of(7, 3))
    assert (scan.last_stable_offset, scan.oldest_open_producer) == (2, 2)


def test_a_log_that_begins_inside_a_transaction() -> None:
    accepted, scan, _ = committed(marker(5, 1, ABORT) + data_of(6, 1) + marker(8, 1, COMMIT))
    assert accepted == [6]
    assert scan.aborted == []


def test_control_batches_of_other_kinds_end_nothing() -> None:
    accepted, scan, _ = committed(data_of(0, 1) + marker(2, 1, 5) + data_of(3, 1))
    assert accepted == [0, 3]
    assert scan.last_stable_offset == 0


def test_an_unreadable_control_record_is_an_error() -> None:
    record = Record(0, key=b"\x00")
    (batch,) = read_batches(encode(Batch([record], attributes=TRANSACTIONAL | CONTROL)))
    with pytest.raises(InvalidRecord, match="position 0, offset 0, holds no control record"):
        control_type(batch)


STEPS = st.tuples(st.integers(0, 3), st.sampled_from(["data", "data", "plain", "abort", "commit"]))


@pytest.mark.slow
@given(st.lists(STEPS, max_size=40))
def test_as_a_model_that_remembers_each_batch_has_it(steps: list[tuple[int, str]]) -> None:
    """The model holds each transaction's batches until its end."""
    parts, offset = [], 0
    pending: dict[int, list[int]] = {}
    kept: list[int] = []
    for producer_id, step in steps:
        if step == "plain":
            parts.append(plain(offset))
            kept.append(offset)
        elif step == "data":
            parts.append(data_of(offset, producer_id))
            pending.setdefault(producer_id, []).append(offset)
        else:
            parts.append(marker(offset, producer_id, ABORT if step == "abort" else COMMIT))
            kept += pending.pop(producer_id, []) if step == "commit" else []
            pending.pop(producer_id, None)
        offset += 2
    accepted, scan, _ = committed(b"".join(parts))
    assert scan.last_stable_offset == min((batches[0] for batches in pending.values()), default=None)
    end = offset if scan.last_stable_offset is None else scan.last_stable_offset
    assert [first for first in accepted if first < end] == sorted(first for first in kept if first < end)
