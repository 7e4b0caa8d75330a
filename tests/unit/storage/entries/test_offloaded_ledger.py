"""Blocks and indexes of offloaded ledgers: every entry once, in blocks of any size; other bytes are an error."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, strategies as st

from storage.entries.offloaded_ledger import first_entry_bytes, read_block_header, read_entries, read_index
from storage.errors import InvalidRecord
from tests.offloaded_objects import HEADER_BYTES, data_object, index_object

ENTRIES = st.lists(st.binary(max_size=60), min_size=1, max_size=20)


@given(ENTRIES, st.integers(HEADER_BYTES + 72, HEADER_BYTES + 400))
def test_every_entry_is_in_one_block(entries: list[bytes], block_bytes: int) -> None:
    data = data_object(entries, block_bytes)
    result, position = [], 0
    while position < len(data):
        block = read_block_header(data[position : position + HEADER_BYTES], position, len(data))
        content = list(read_entries(data[block.position : block.end], block.position))
        assert content[0].entry_id == block.first_entry_id
        assert first_entry_bytes(data[content[-1].end : block.end]) is None
        result += content
        position = block.end
    assert [(entry.entry_id, entry.data) for entry in result] == list(enumerate(entries))


@given(st.binary(max_size=80), st.booleans())
def test_other_bytes_are_an_error(data: bytes, after_magic: bool) -> None:
    index = index_object(1, 1, "a/b/persistent/c")
    with suppress(InvalidRecord):
        read_index(index[:32] + data if after_magic else data)
    with suppress(InvalidRecord):
        read_block_header(b"\xfb\xdb\xab\xcb" + data if after_magic else data, 0, 1000)
    assert all(entry.end <= len(data) for entry in read_entries(data, 0))


def test_the_content_of_an_index() -> None:
    index = read_index(index_object(12345, 90, "lab/offload/persistent/users"))
    assert index == (12345, 90, "lab/offload/persistent/users")


@pytest.mark.parametrize("length", [0, 31, 60])
def test_a_cut_index_is_an_error(length: int) -> None:
    index = index_object(1, 90, "lab/offload/persistent/users")
    with pytest.raises(InvalidRecord):
        read_index(index[:length])
