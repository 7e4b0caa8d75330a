"""Parquet out: a chunked message is one row (P10), wherever its chunks are, and counts as one."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from api.formats import message_tables
from api.formats.parquet import write_parquet
from api.formats.text_encoding import TextEncoding
from tests import chunked
from tests.workbench import Workbench


@pytest.mark.parametrize(
    ("limit", "keys"),
    [(None, ["x", "123", "y", "45", "z"]), (0, []), (1, ["x"]), (2, ["x", "123"]), (4, ["x", "123", "y", "45"])],
)
def test_chunked_messages_come_whole(tmp_path: Path, limit: int | None, keys: list[str]) -> None:
    bench = Workbench.embedded(tmp_path)
    topic = bench.topic()
    first, second = chunked.whole("u", b"k", b"1", b"2", b"3"), chunked.whole("v", b"k", b"4", b"5")
    stray = chunked.chunk("w", 1, 2, b"k", b"!")
    properties = [("p", "q")]
    chunked.append(bench, topic, [chunked.message(b"k", b"x", properties=properties), first[0], stray])
    chunked.append(bench, topic, [*first[1:], chunked.message(b"k", b"y"), *second, chunked.message(None, b"z")])
    file = tmp_path / "out.parquet"
    assert write_parquet(str(file), topic.read(), -1, TextEncoding.UTF8, TextEncoding.UTF8, limit) == len(keys)
    table = pq.read_table(file)
    assert table.column("value").to_pylist() == keys
    expected = list(topic.messages(max_messages=limit))
    assert table.column("message_id").to_pylist() == [str(item.message_id) for item in expected]
    assert table.column("offset").to_pylist() == [item.offset for item in expected]
    assert [dict(item or ()) for item in table.column("properties").to_pylist()] == [
        item.properties for item in expected
    ]


def test_chunked_messages_are_not_all_held_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few chunks that were compressed become many bytes: they are written as soon as there are enough."""
    monkeypatch.setattr(message_tables, "BATCH_BYTES", 5)
    bench = Workbench.embedded(tmp_path)
    topic = bench.topic()
    chunked.append(bench, topic, [item for uuid in "uvwx" for item in chunked.whole(uuid, b"k", b"12", b"3")])
    file = tmp_path / "out.parquet"
    assert write_parquet(str(file), topic.read(), -1, TextEncoding.UTF8, TextEncoding.UTF8, 3) == 3
    with pq.ParquetFile(file) as written:
        assert [written.metadata.row_group(number).num_rows for number in range(written.num_row_groups)] == [2, 1]
