"""The messages of a topic as a dataset: what a scan reads and when, and sets of offsets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, strategies as st

from api.broker.schema_columns import schema_columns
from api.cli.local.topic_dataset import OffsetSet, ScanSource, TopicDataset
from api.formats.text_encoding import TextEncoding
from storage.reading.scan import ScanPiece, ScanRange
from storage.topic import Topic
from tests.workbench import Workbench, content

COLUMNS = schema_columns([], TextEncoding.UTF8, TextEncoding.BASE64)


@given(st.integers(0, 2**62), st.sets(st.integers(0, 200)), st.lists(st.integers(-20, 220)))
def test_a_set_of_offsets(first: int, members: set[int], probed: list[int]) -> None:
    offsets = OffsetSet(first, first + 201)
    for part in (sorted(members)[::2], sorted(members)[1::2], sorted(members)):
        offsets.add(np.array(part, np.int64) + first)
    answers = offsets.contains(np.array(probed, np.int64) + first)
    assert answers.tolist() == [each in members for each in probed]
    assert OffsetSet(0, 0).contains(np.array([0, 1], np.int64)).tolist() == [False, False]


@pytest.fixture
def reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[TopicDataset, list[list[str]]]]:
    """A dataset of three ledgers of a message each, and the columns of each read of a ledger that began."""
    bench = Workbench.embedded(tmp_path)
    topic = bench.topic()
    for number in range(3):
        bench.append(topic, [content((b"k%d" % number, b"v"))])
    begun: list[list[str]] = []
    tables = Topic.tables

    def noting(self: Topic, piece: ScanPiece, columns: Sequence[str]) -> Iterator[pa.Table]:
        for table in tables(self, piece, columns):
            begun.append(list(columns))
            yield table

    monkeypatch.setattr(Topic, "tables", noting)
    yield TopicDataset([ScanSource(topic, topic.scan(ScanRange()), False)], COLUMNS), begun
    bench.metadata.close()


def test_a_scan_reads_when_it_is_asked_and_never_ahead(reads: tuple[TopicDataset, list[list[str]]]) -> None:
    """A query with a limit ends before its scan; a thread that reads on would outlive the process's end."""
    dataset, begun = reads
    reader = dataset.scanner(columns=["key"]).to_reader()
    assert begun == []
    assert reader.read_next_batch().to_pylist() == [{"key": "k0"}]
    assert begun == [["slot", "offset", "key"]]


def test_a_filter_reads_its_own_columns_and_shows_others(reads: tuple[TopicDataset, list[list[str]]]) -> None:
    dataset, begun = reads
    condition = (pc.field("key") == "k1") | (pc.field("offset") > 1)
    assert (
        dataset.scanner(columns=["value"], filter=condition).to_reader().read_all().to_pylist() == [{"value": b"v"}] * 2
    )
    assert begun == [["slot", "offset", "payload", "key"]] * 3


def test_no_columns_are_rows(reads: tuple[TopicDataset, list[list[str]]]) -> None:
    dataset, _ = reads
    assert sum(len(batch) for batch in dataset.scanner(columns=[]).to_reader()) == 3
