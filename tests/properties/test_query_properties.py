"""Any history of runs: a query shows each key as a read of that key alone does, before and after each compaction."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from api.broker.schema_columns import schema_columns
from api.cli.local.query_engine import QueryLimits, open_query
from api.formats.text_encoding import TextEncoding
from storage.entries.chunk_assembler import assemble_messages
from storage.topic import Topic
from tests import chunked
from tests.budgets import IN_SOAK
from tests.properties.test_table_properties import append, draw_policies, draw_sizing
from tests.workbench import Workbench

LIVES = 100 if IN_SOAK else 1
RUNS = 3
BYTES = schema_columns([], TextEncoding.BASE64, TextEncoding.BASE64)
Rows = list[tuple[int, bytes | None, bytes | None]]


def queried(topic: Topic, *sql: str, raw: bool = False) -> list[Rows]:
    """The rows of each of some queries."""
    with open_query([topic], "t", BYTES, QueryLimits(64 << 20), raw=raw) as query:
        results = [[row for batch in query.execute(each).batches for row in batch.to_pylist()] for each in sql]
    return [[tuple(row.values()) for row in rows] for rows in results]  # type: ignore[misc]


def newest(topic: Topic) -> Rows:
    """The newest value of each key, read one by one, and the messages without a key of a compacted read."""
    everything = list(assemble_messages(topic.read(read_compacted=True), -1))
    keyless = [message for message in everything if message.key is None]
    keys = {message.key for message in everything if message.key is not None}
    values = [value for key in keys if (value := topic.newest_value(key)) is not None]
    return sorted((message.offset, message.key, message.payload) for message in (*keyless, *values))


def append_chunked(bench: Workbench, topic: Topic, drawn: random.Random) -> None:
    """Append chunks of a message, of which some may be in a later call, or never."""
    key = drawn.choice([None, b"0", b"1", b"2"])
    chunks = chunked.whole(drawn.choice("uv"), key, b"c", drawn.choice([b"d", b"e"]))
    chunked.append(bench, topic, drawn.choice([chunks, chunks[:1], chunks[1:]]))


@pytest.mark.parametrize("seed", range(LIVES))
def test_a_query_shows_what_reads_of_single_keys_show(tmp_path: Path, seed: int) -> None:
    drawn = random.Random(seed)
    bench = Workbench.embedded(tmp_path)
    topic = bench.topic()
    for _ in range(RUNS):
        append(bench, topic, drawn)
        if seed % 2:
            append_chunked(bench, topic, drawn)
        rows = newest(topic)
        key = drawn.choice(rows)[1] if rows else b""
        visible, count, of_key = queried(
            topic,
            'SELECT "offset", key, value FROM topic ORDER BY 1',
            "SELECT count(*) FROM t",
            f'SELECT "offset", key, value FROM t WHERE key IS NOT DISTINCT FROM {_literal(key)} ORDER BY 1',
        )
        assert visible == rows
        assert count == [(len(rows),)]
        assert of_key == [row for row in rows if row[1] == key]
        raw = [(message.offset, message.key, message.payload) for message in assemble_messages(topic.read(), -1)]
        assert queried(topic, 'SELECT "offset", key, value FROM topic ORDER BY 1', raw=True) == [raw]
        bench.clock.advance(drawn.choice([0, 5, 50, 200]))
        bench.with_sizing(draw_sizing(drawn)).compactor().compact(topic.name, draw_policies(drawn, 3))
    bench.metadata.close()


def _literal(key: bytes | None) -> str:
    return "NULL" if key is None else f"from_hex('{key.hex()}')"
