"""Strategies of hypothesis: messages, histories of them, rows in every column.

Keys come from a small pool and few are new, so that most histories have superseded messages, tombstones and keys that
come back. Nothing here knows how messages are stored.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from storage.ledger import rows
from storage.log.bulk_append import INPUT_SCHEMA

keys = st.sampled_from([b"", b"a", b"b", b"c", b"\x00", b"\xff\xfe", b"key-7"]) | st.binary(max_size=20)
"""Keys, the empty one among them (P10: it is a key like any other)."""
payloads = st.one_of(st.none(), st.just(b""), st.binary(max_size=24), st.binary(min_size=1, max_size=24))
texts = st.text(max_size=6)
properties = st.none() | st.dictionaries(texts, texts, max_size=3).map(lambda drawn: list(drawn.items()))
times = st.integers(0, 2**42)
int64 = st.integers(-(2**63), 2**63 - 1)

_INPUT_ROW = st.fixed_dictionaries(
    {
        "key": st.one_of(keys, keys, keys, st.none()),
        "payload": payloads,
        "publish_time": st.none() | times,
        "event_time": st.none() | st.integers(0, 9),
        "properties": properties,
    }
)


def contents(min_size: int = 1, max_size: int = 30) -> st.SearchStrategy[pa.Table]:
    """Tables that a bulk append takes (INPUT_SCHEMA)."""
    lists = st.lists(_INPUT_ROW, min_size=min_size, max_size=max_size)
    return lists.map(lambda drawn: pa.Table.from_pylist(drawn, schema=INPUT_SCHEMA))


def histories(max_tables: int = 4, max_size: int = 20) -> st.SearchStrategy[list[pa.Table]]:
    """A topic's history: the contents of one ledger after the other."""
    return st.lists(contents(max_size=max_size), min_size=1, max_size=max_tables)


_ROW = st.fixed_dictionaries(
    {
        "key": st.none() | keys,
        "key_base64": st.booleans(),
        "payload": payloads,
        "publish_time": int64,
        "event_time": st.none() | int64,
        "producer": st.none() | texts,
        "sequence_id": st.none() | int64,
        "properties": properties,
        "chunk_uuid": st.none() | texts,
        "chunk_index": st.none() | st.integers(0, 2**31 - 1),
        "chunk_count": st.none() | st.integers(0, 2**31 - 1),
        "codec": st.sampled_from([int(codec) for codec in rows.CompressionType]),
        "slot": st.sampled_from([int(slot) for slot in rows.RowType]),
        "metadata": st.none() | st.binary(max_size=9),
    }
)
_STEP = st.tuples(st.integers(1, 3), st.sampled_from(["next entry", "in the batch", "next ledger"]))


@st.composite
def rows_tables(draw: st.DrawFn, min_size: int = 1, max_size: int = 20, ledgers: int = 20) -> pa.Table:
    """Rows objects' contents (rows.SCHEMA): every column, ascending, some columns the same in every row.

    `ledgers`: the most ledgers that the rows may come from, as those of a part do.
    """
    drawn: list[dict[str, Any]] = draw(st.lists(_ROW, min_size=min_size, max_size=max_size))
    same = draw(st.sets(st.sampled_from(sorted(drawn[0])))) if drawn else set()
    offset, ledger_id, entry_id, batch_index = draw(st.integers(0, 2**61)), draw(st.integers(0, 2**40)), 0, -1
    for row in drawn:
        step, move = draw(_STEP)
        offset += step
        if move == "in the batch" and batch_index >= 0:
            batch_index += 1
        elif move == "next ledger" and ledgers > 1:
            ledgers -= 1
            ledger_id, entry_id, batch_index = ledger_id + step, 0, -1
        else:
            entry_id, batch_index = entry_id + step, 0 if move == "in the batch" else -1
        row |= {name: drawn[0][name] for name in same}
        row |= {"offset": offset, "ledger_id": ledger_id, "entry_id": entry_id}
        row |= {"batch_index": batch_index, "batch_size": 1000 if batch_index >= 0 else 0}
    table = pa.Table.from_pylist(drawn, schema=rows.SCHEMA)
    cut = draw(st.integers(0, len(drawn)))
    return pa.concat_tables([table.slice(0, cut), table.slice(cut)])
