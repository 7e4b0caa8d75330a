"""A stream of messages becomes ledgers: cut by bytes, in order, with ids and defaults."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from storage.ledger import rows
from storage.log.bulk_append import INPUT_SCHEMA, cut_into_ledgers, to_ledger_rows
from tests.strategies import contents


def logical_size(row: dict[str, object]) -> int:
    """Bytes of key, payload and properties, one message at a time."""
    size = 0
    for name in ("key", "payload"):
        size += len(row[name] or b"")  # type: ignore[arg-type]
    for name, value in row["properties"] or ():  # type: ignore[attr-defined]
        size += len(name.encode()) + len(value.encode())
    return size


TABLES = st.lists(contents(min_size=0, max_size=12), max_size=5)


@pytest.mark.slow
@given(TABLES, st.integers(1, 120))
def test_ledgers_keep_every_message_in_order_and_below_the_limit(tables: list[pa.Table], limit: int) -> None:
    cut = [ledger.to_pylist() for ledger in cut_into_ledgers(tables, limit)]
    assert [row for ledger in cut for row in ledger] == [row for table in tables for row in table.to_pylist()]
    sizes = [[logical_size(row) for row in ledger] for ledger in cut]
    assert all(len(ledger) == 1 or (len(ledger) > 0 and sum(ledger) <= limit) for ledger in sizes)
    for ledger, following in pairwise(sizes):
        assert sum(ledger) + following[0] > limit, "a ledger was cut although the next message fitted"


def test_a_ledger_has_no_more_rows_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "LEDGER_ROWS", 4)
    table = pa.table({name: pa.nulls(10, INPUT_SCHEMA.field(name).type) for name in INPUT_SCHEMA.names})
    assert [len(ledger) for ledger in cut_into_ledgers([table.cast(INPUT_SCHEMA)], 1000)] == [4, 4, 2]


def test_no_messages_make_no_ledgers() -> None:
    assert list(cut_into_ledgers([], 100)) == []
    assert list(cut_into_ledgers([INPUT_SCHEMA.empty_table()], 100)) == []


@pytest.mark.slow
@given(contents(max_size=8), contents(min_size=0, max_size=8), st.integers(0, 2**62))
def test_rows_get_ids_and_defaults_and_keep_what_was_given(first: pa.Table, second: pa.Table, offset: int) -> None:
    content = pa.concat_tables([first, second])
    created = to_ledger_rows(content, 42, offset, 1_234)
    assert created.schema == rows.SCHEMA
    assert len(created) == len(content)
    absent = ["producer", "sequence_id", "chunk_uuid", "chunk_index", "chunk_count", "metadata", "retained_at"]
    absent += ["source_ledger_id", "source_entry_id"]
    nothing = dict.fromkeys(absent)
    for number, (given_, row) in enumerate(zip(content.to_pylist(), created.to_pylist(), strict=True)):
        publish_time = 1_234 if given_["publish_time"] is None else given_["publish_time"]
        assert row == {
            **nothing,
            **given_,
            "publish_time": publish_time,
            "offset": offset + number,
            "ledger_id": 42,
            "entry_id": number,
            "batch_index": -1,
            "batch_size": 0,
            "key_base64": False,
            "codec": rows.CompressionType.NONE,
            "slot": rows.RowType.MESSAGE,
        }


@pytest.mark.slow
@given(contents(max_size=20), st.data())
def test_logical_sizes_are_those_of_each_message_in_any_slice(table: pa.Table, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(table)))
    sliced = pa.concat_tables([table.slice(first), table.slice(0, first), table.slice(first, 1)])
    assert rows.logical_sizes(sliced).tolist() == [logical_size(row) for row in sliced.to_pylist()]
