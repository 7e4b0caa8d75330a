"""Chunked messages, as verify assembles them from chunk records (docs/format.md)."""

from __future__ import annotations

import numpy as np

from compactor.verify.unkeyed import assemble_messages, certain_mask, chunk_fingerprint, records_of_messages
from storage.ledger.chunk_table import EMPTY, KEYED, RECORD, Chunks
from storage.ledger.key_index import NO_EVENT_TIME, TOMBSTONE
from tests.unit.compactor.verify.records import index_records

A, B = 1, 2


def chunks(*rows: tuple[int, int, int, int], flags: int = int(KEYED)) -> Chunks:
    """Chunk records of (uuid, index, count, offset), all with the key hash (5, 6) and publish time = offset."""
    table = np.zeros(len(rows), dtype=RECORD)
    for record, (uuid, index, count, offset) in zip(table, rows, strict=True):
        record["uuid_lo"], record["index"], record["count"] = uuid, index, count
        record["offset"], record["publish_time"] = offset | flags, offset
        record["key_hi"], record["key_lo"] = 5, 6
        record["event_time"] = record["retained_at"] = NO_EVENT_TIME
    return table


def test_chunks_in_order_are_a_message_at_the_offset_of_the_last() -> None:
    messages = assemble_messages(chunks((A, 0, 2, 3), (B, 0, 2, 4), (A, 1, 2, 7)))
    assert [message.offsets for message in messages.complete] == [[3, 7]]
    assert [message.offset for message in messages.complete] == [7]
    assert messages.stale == {7: []}
    assert [int(chunk["offset"]) & 0xFF for chunk in messages.pending] == [4]


def test_a_first_chunk_again_restarts_the_message_and_leaves_stale_chunks() -> None:
    messages = assemble_messages(chunks((A, 0, 2, 1), (A, 0, 2, 3), (A, 1, 2, 4)))
    assert [message.offsets for message in messages.complete] == [[3, 4]]
    assert messages.stale == {4: [1]}
    assert messages.pending == []


def test_a_chunk_out_of_order_does_not_continue_the_message() -> None:
    messages = assemble_messages(chunks((A, 0, 3, 1), (A, 2, 3, 2), (A, 1, 3, 3), (A, 2, 3, 4)))
    assert [message.offsets for message in messages.complete] == [[1, 3, 4]]
    assert messages.stale == {4: [2]}


def test_chunks_are_assembled_by_offset_whatever_their_order_in_the_tables() -> None:
    assert [message.offsets for message in assemble_messages(chunks((A, 1, 2, 7), (A, 0, 2, 3))).complete] == [[3, 7]]


def test_chunks_without_a_key_make_no_index_record() -> None:
    without_key = assemble_messages(chunks((A, 0, 1, 3), flags=0)).complete
    assert len(without_key) == 1
    assert len(records_of_messages(without_key)) == 0


def test_a_message_of_empty_chunks_is_a_tombstone() -> None:
    value = records_of_messages(assemble_messages(chunks((A, 0, 1, 3))).complete)
    tombstone = records_of_messages(assemble_messages(chunks((A, 0, 1, 3), flags=int(KEYED | EMPTY))).complete)
    assert (value.hi.tolist(), value.lo.tolist(), value.offset.tolist()) == ([5], [6], [3])
    assert tombstone.offset.tolist() == [3 | int(TOMBSTONE)]


def test_the_fingerprint_of_chunks_ignores_when_a_run_first_kept_them() -> None:
    kept = chunks((A, 0, 1, 3))
    later = kept.copy()
    later["retained_at"] = 77
    assert chunk_fingerprint(kept) == chunk_fingerprint(later)
    later["count"] = 2
    assert chunk_fingerprint(kept) != chunk_fingerprint(later)


def test_uncertain_messages_are_no_certain_winners() -> None:
    assert certain_mask(index_records((1, 4), (2, 5 | int(TOMBSTONE))), {5}).tolist() == [True, False]
