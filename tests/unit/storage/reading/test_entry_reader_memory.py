"""The memory of a reader of entries while its consumer does nothing."""

from __future__ import annotations

import gc
import os
import tracemalloc

import pyarrow as pa
import pytest

from storage.entries.encode import encode_message
from storage.log.frame_reader import CHUNK_BYTES
from storage.log.segment_tables import ENTRIES_BYTES
from tests.workbench import Workbench

SIZE = 100_000


@pytest.mark.slow
def test_a_reader_of_the_log_holds_its_page_once(bench: Workbench) -> None:
    """The page, the buffer of the file, and the entry that did not fit; no table with copies of them."""
    topic = bench.topic()
    with topic.append_log() as log:
        for number in range(100):
            log.append(encode_message(b"k", os.urandom(SIZE), producer="p", sequence_id=number, publish_time=1))
    topic.entry_reader().read()  # Arrow imports what it needs at first
    reader = topic.entry_reader()
    gc.collect()
    arrow = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        page = reader.read()
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert ENTRIES_BYTES - 2 * SIZE <= sum(len(entry.data) for entry in page) <= ENTRIES_BYTES
    assert held <= ENTRIES_BYTES + CHUNK_BYTES // 2 + 3 * SIZE
    assert pa.total_allocated_bytes() - arrow <= SIZE
    assert [len(entry.data) for entry in reader.read()] == [len(entry.data) for entry in page]
    reader.close()


def test_a_reader_behind_a_large_entry_keeps_no_large_buffer(bench: Workbench) -> None:
    topic = bench.topic()
    with topic.append_log() as log:
        for size in (4 << 20, *[SIZE] * 40):
            log.append(encode_message(b"k", os.urandom(size), producer="p", sequence_id=0, publish_time=1))
    topic.entry_reader().read()  # Arrow imports what it needs at first
    reader = topic.entry_reader()
    tracemalloc.start()
    try:
        assert [len(entry.data) >> 20 for entry in reader.read()] == [4]
        page = reader.read()
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    reader.close()
    assert len(page) == ENTRIES_BYTES // (SIZE + 100)
    assert held <= ENTRIES_BYTES + CHUNK_BYTES // 2 + 3 * SIZE
