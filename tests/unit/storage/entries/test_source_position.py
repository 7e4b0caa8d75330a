"""The position of a replicated entry is in front of it, and nowhere else."""

from __future__ import annotations

import pytest

from storage.entries.entry import inspect, parse_metadata
from storage.entries.source_position import position_of, with_position, without_position
from storage.model import SourcePosition
from tests.pulsar_entries import brokers, entry, metadata

PLAIN = entry(metadata(), b"payload")


@pytest.mark.parametrize("position", [SourcePosition(0, 0), SourcePosition(7, 3), SourcePosition(2**63 - 1, 2**63 - 1)])
def test_a_position_is_read_back_and_removed(position: SourcePosition) -> None:
    stored = with_position(PLAIN, position)
    assert position_of(stored) == inspect(stored).source == position
    assert without_position(stored) == PLAIN
    assert parse_metadata(stored).metadata == metadata()


@pytest.mark.parametrize("other", [PLAIN, brokers(PLAIN), b"", with_position(b"", SourcePosition(1, 2))[:-1]])
def test_what_has_no_position_stays_as_it_is(other: bytes) -> None:
    assert position_of(other) is None
    assert without_position(other) == other


def test_a_brokers_own_metadata_is_no_position() -> None:
    positioned = with_position(PLAIN, SourcePosition(7, 3))
    of_another_size = brokers(PLAIN, positioned[6:26] + b"\x08\x01")
    other_fields = brokers(PLAIN, positioned[6:16] + b"\xb1\x06" + positioned[18:26])
    assert [position_of(data) for data in (of_another_size, other_fields)] == [None, None]
    assert inspect(brokers(PLAIN)).source is None
