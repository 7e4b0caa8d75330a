"""Entries that are much larger uncompressed: what reads hold of them, and that they all get them."""

from __future__ import annotations

from typing import NoReturn

import pyarrow as pa
import pytest

from storage.entries.encode import encode_batch, encode_message
from storage.errors import Unavailable
from storage.ledger.rows import CompressionType
from storage.log.bulk_append import INPUT_SCHEMA
from storage.reading.page_reader import ReadLimits
from storage.topic import Topic
from tests.workbench import Workbench

LARGE = 8 << 20
ONE = ReadLimits(messages=1)


@pytest.fixture(params=["log", "sealed"])
def large(request: pytest.FixtureRequest, bench: Workbench) -> Topic:
    """A topic with four messages of 8 MiB that are a few KiB once compressed."""
    topic = bench.topic()
    with topic.append_log() as log:
        for number in range(4):
            log.append(
                encode_message(
                    b"k%d" % number, bytes(LARGE), producer="p", sequence_id=number, publish_time=1,
                    codec=CompressionType.ZSTD,
                )
            )  # fmt: skip
        if request.param == "sealed":
            log.roll()
    if request.param == "sealed":
        assert len(list(topic.log_manager().seal(topic.record))) == 1
    return topic


def test_reads_share_a_budget(large: Topic, bench: Workbench) -> None:
    bench.log.decoding.limit, bench.log.decoding.wait_seconds = LARGE, 0
    with bench.log.decoding.hold(LARGE):
        for read in (lambda: large.reader().messages(ONE), lambda: large.reader().rows(ONE)):
            with pytest.raises(Unavailable):
                read()
    assert len(large.reader().messages(ONE).messages) == 1


def test_a_reader_that_waits_holds_none_of_it(large: Topic, bench: Workbench) -> None:
    """Neither one of rows nor one of entries, between two pages; and both get all messages."""
    bench.log.decoding.limit, bench.log.decoding.wait_seconds = LARGE, 0
    pages, entries = large.reader(), large.entry_reader()
    sizes, offsets = [], []
    for _ in range(4):
        (batch,) = pages.rows(ONE).batches
        sizes.append(len(batch.column("payload")[0].as_py()))
        offsets += [entry.offset for entry in entries.read()]
        assert len(large.reader().messages(ONE).messages) == 1
    offsets += [entry.offset for entry in entries.read()]

    assert sizes == [LARGE] * 4
    assert offsets == [0, 1, 2, 3]


def test_a_page_of_ordinary_rows_keeps_its_source_open(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """To begin again costs a snapshot and the footer of a ledger, for each page."""

    def unavailable(*_: object) -> NoReturn:
        raise Unavailable("it was open", "continue with it")

    topic = bench.topic()
    count = 40_000
    columns = {"key": [b"k"] * count, "payload": [b"v"] * count, "publish_time": [1] * count}
    arrays = [pa.array(columns.get(field.name, [None] * count), field.type) for field in INPUT_SCHEMA]
    batch = pa.table(arrays, schema=INPUT_SCHEMA)
    with topic.append_log() as log:
        for first in (0, count):
            log.append(encode_batch(batch, producer="p", first_sequence_id=first, publish_time=1))
        log.roll()
    assert len(list(topic.log_manager().seal(topic.record))) == 1
    pages, entries = topic.reader(), topic.entry_reader()
    for reader, read in ((pages, lambda: pages.rows(ONE).batches), (entries, entries.read)):
        assert read()
        with monkeypatch.context() as patched:
            patched.setattr(bench.metadata, "topic_snapshot", unavailable)
            patched.setattr(type(bench.store), "get", unavailable)
            assert read()
        reader.close()
