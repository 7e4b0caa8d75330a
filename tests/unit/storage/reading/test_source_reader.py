"""A compacted ledger as the source of a replicated topic sees it: by its positions, up to a horizon that it knows."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from sqlalchemy import update

from compactor.maintenance.garbage import GarbageCollector
from compactor.maintenance.grace import GRACE_MS
from compactor.maintenance.retention import Retention
from compactor.run.plan import RunPolicies
from storage.entries.source_position import with_position
from storage.errors import Conflict
from storage.ledger import rows
from storage.ledger.rows_file import RowsReader
from storage.metadata.producer_sequences import ProducerSequences
from storage.metadata.tables import compacted_ledgers
from storage.model import SourcePosition, SourceProgress
from storage.reading.source_reader import SourceMessage
from storage.topic import Topic
from tests.pulsar_entries import PUBLISHED, batch_payload, encrypted, entry, metadata, single
from tests.workbench import Workbench, compacted_ledger, content

END = SourcePosition(2**40, 0)
FIRST = SourcePosition(-1, -1)
Position = tuple[int, int]


def message(key: bytes, value: bytes | None, time: int = 0, cluster: str | None = "us") -> bytes:
    """An entry of one message; `cluster` None: as it is at the source."""
    described = metadata(partition_key=key, publish_time=PUBLISHED + time, uncompressed_size=len(value or b""))
    if cluster is not None:
        described.replicated_from = cluster
    if value is None:
        described.null_value = True
    return entry(described, value or b"")


def batch(*keys: bytes) -> bytes:
    payload = batch_payload(single(b"v", partition_key=key) for key in keys)
    fields = {"num_messages_in_batch": len(keys), "uncompressed_size": len(payload), "replicated_from": "us"}
    return entry(metadata(**fields), payload)


def replicate(
    bench: Workbench, topic: Topic, *entries: tuple[Position, bytes], sources: Sequence[str] = ("us",)
) -> None:
    """Append entries with their positions at the source, as a replicator does."""
    with topic.append_log() as log:
        for position, data in entries:
            log.append(with_position(data, SourcePosition(*position)))
    progress = SourceProgress(SourcePosition(*entries[-1][0]), PUBLISHED)
    stored = ProducerSequences(topic.snapshot_reader().end, None, dict.fromkeys(sources, progress))
    bench.metadata.producer_sequences.replace(topic.record.id, stored)


def read(
    topic: Topic, start: SourcePosition = FIRST, horizon: SourcePosition = END, generation: int | None = None
) -> dict[Position, bytes]:
    """The entries of the compacted ledger by position."""
    reader = topic.reader_by_source_position(generation)
    assert reader is not None
    entries = [((item.ledger_id, item.entry_id), item.data) for item in reader.entries(start, horizon)]
    assert [position for position, _ in entries] == sorted({position for position, _ in entries})
    return dict(entries)


def horizon(topic: Topic) -> SourcePosition:
    reader = topic.reader_by_source_position()
    assert reader is not None
    return reader.horizon()


@pytest.fixture
def topic(bench: Workbench) -> Topic:
    """Twenty keys in two ledgers of the source, some of them replaced; the last entry deletes one."""
    return bench.built(_topic)


def _topic(bench: Workbench) -> Topic:
    topic = bench.topic()
    first = [((7, number), message(b"k%02d" % number, b"first" * 9, number)) for number in range(20)]
    second = [((9, number), message(b"k%02d" % (2 * number), b"second", 100 + number)) for number in range(10)]
    replicate(bench, topic, *first, *second, ((9, 10), message(b"k01", None, 200)))
    bench.compact(topic)
    return topic


SURVIVORS = [(7, number) for number in range(3, 20, 2)] + [(9, number) for number in range(10)]


def test_entries_are_those_of_the_source(topic: Topic, bench: Workbench) -> None:
    assert len(bench.manifest(topic).parts) > 2
    entries = read(topic)
    assert list(entries) == SURVIVORS
    assert entries[7, 3] == message(b"k03", b"first" * 9, 3, cluster=None), "it does not name its cluster"


@pytest.mark.parametrize(
    "start", [(-1, -1), (0, 0), (7, 0), (7, 4), (7, 19), (8, -1), (9, 0), (9, 9), (9, 10), (10, 0)]
)
def test_a_read_begins_at_any_position(topic: Topic, start: Position) -> None:
    expected = [position for position in SURVIVORS if position >= start]
    assert list(read(topic, SourcePosition(*start))) == expected


@pytest.mark.parametrize("end", [(7, -1), (7, 3), (7, 4), (7, 19), (9, 0), (9, 8)])
def test_a_read_ends_at_the_callers_horizon(topic: Topic, end: Position) -> None:
    assert list(read(topic, horizon=SourcePosition(*end))) == [position for position in SURVIVORS if position <= end]


def test_a_batch_keeps_its_slots(bench: Workbench) -> None:
    topic = bench.topic()
    replicate(bench, topic, ((3, 0), batch(b"a", b"b", b"c")), ((3, 1), batch(b"a", b"d")), ((3, 2), batch(b"b", b"c")))
    bench.compact(topic)
    reader = topic.reader_by_source_position()
    assert reader is not None
    entries = list(reader.entries(FIRST, END))
    assert reader.last_message() == SourceMessage(SourcePosition(3, 2), 1, PUBLISHED)
    assert [(item.entry_id, item.messages, item.live_mask) for item in entries] == [(1, 2, 3), (2, 2, 3)]


@pytest.mark.parametrize(
    ("last", "batch_index"),
    [(batch(b"x"), -1), (entry(encrypted(num_messages_in_batch=3, replicated_from="us"), b"cipher"), 2)],
    ids=["alone", "encrypted"],
)
def test_the_batch_index_of_the_last_message_is_a_brokers(bench: Workbench, last: bytes, batch_index: int) -> None:
    topic = bench.topic()
    replicate(bench, topic, ((3, 0), message(b"a", b"1")), ((3, 1), last))
    bench.compact(topic)
    reader = topic.reader_by_source_position()
    assert reader is not None
    assert reader.last_message() == SourceMessage(SourcePosition(3, 1), batch_index, PUBLISHED)


def test_the_first_entry_is_known_until_raw_is_trimmed(topic: Topic, bench: Workbench) -> None:
    assert topic.first_source_entry() == (7, 0)
    trim_to_horizon(bench, topic)
    assert topic.first_source_entry() is None
    assert bench.topic("empty").first_source_entry() is None


def test_horizon_and_last_message(topic: Topic) -> None:
    reader = topic.reader_by_source_position()
    assert reader is not None
    assert reader.horizon() == (9, 10), "a deletion counts, although it left no row"
    assert reader.last_message() == SourceMessage(SourcePosition(9, 9), -1, PUBLISHED + 109)


def test_the_view_decodes_no_payloads(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker asks for it at each load of a topic."""
    decoded: set[str] = set()
    read = RowsReader.read

    def watched(reader: RowsReader, group: int, columns: list[str] | None = None) -> pa.Table:
        decoded.update(columns or rows.SCHEMA.names)
        return read(reader, group, columns)

    monkeypatch.setattr(RowsReader, "read", watched)
    reader = topic.reader_by_source_position()
    assert reader is not None
    assert reader.last_message() == SourceMessage(SourcePosition(9, 9), -1, PUBLISHED + 109)
    assert topic.first_source_entry() == (7, 0)
    assert "source_entry_id" in decoded
    assert not decoded & {"key", "payload", "properties", "metadata"}


def test_only_deletions_leave_no_message(bench: Workbench) -> None:
    topic = bench.topic()
    replicate(bench, topic, ((3, 0), message(b"a", b"1")), ((3, 1), message(b"a", None)))
    reader = topic.reader_by_source_position()
    assert reader is None, "it was never compacted"
    bench.compact(topic)
    reader = topic.reader_by_source_position()
    assert reader is not None
    assert reader.last_message() is None
    assert reader.horizon() == (3, 1)
    assert read(topic) == {}


def trim_to_horizon(bench: Workbench, topic: Topic) -> None:
    compacted = topic.snapshot().compacted
    assert compacted is not None
    Retention(bench).trim(topic.record, compacted.horizon.offset + 1, force=True)
    assert topic.snapshot_reader().first_offset == compacted.horizon.offset + 1


def forget_horizon(bench: Workbench) -> None:
    """Make compacted ledgers look like those of an older version."""
    with bench.metadata.database.write() as connection:
        connection.execute(
            update(compacted_ledgers).values(source_horizon_ledger_id=None, source_horizon_entry_id=None)
        )


def test_the_horizon_of_a_run_never_changes(topic: Topic, bench: Workbench) -> None:
    """Brokers of the source that ask different services must learn the same one."""
    replicate(bench, topic, ((12, 5), message(b"late", b"1")))
    assert horizon(topic) == (9, 10)
    trim_to_horizon(bench, topic)
    assert horizon(topic) == (9, 10)
    bench.compactor().compact(topic.name, RunPolicies(min_lag_ms=2**60))
    assert compacted_ledger(topic).generation == 2
    assert horizon(topic) == (9, 10), "a run without new messages keeps it"


def test_the_horizon_of_an_older_version_outlives_raw_messages(topic: Topic, bench: Workbench) -> None:
    forget_horizon(bench)
    assert horizon(topic) == (9, 10)
    trim_to_horizon(bench, topic)
    assert horizon(topic) == (9, 10), "the last position of the source"


def test_the_horizon_of_an_older_version_before_raw_messages(topic: Topic, bench: Workbench) -> None:
    forget_horizon(bench)
    replicate(bench, topic, ((12, 5), message(b"late", b"1")))
    trim_to_horizon(bench, topic)
    assert horizon(topic) == (12, 4), "the entry before the first one that is left"


def test_topics_of_other_producers_have_no_horizon(bench: Workbench) -> None:
    topic = bench.topic()
    bench.append(topic, [content((b"local", b"1"))])
    bench.compact(topic)
    assert compacted_ledger(topic).source_horizon is None


def test_publish_times(topic: Topic) -> None:
    reader = topic.reader_by_source_position()
    assert reader is not None
    assert reader.first_since(PUBLISHED, END) == (7, 3)
    assert reader.first_since(PUBLISHED + 19, END) == (7, 19)
    assert reader.first_since(PUBLISHED + 50, END) == (9, 0)
    assert reader.first_since(PUBLISHED + 50, SourcePosition(7, 19)) is None
    assert reader.first_since(PUBLISHED + 500, END) is None


def test_the_callers_generation_is_read_while_it_exists(topic: Topic, bench: Workbench) -> None:
    replicate(bench, topic, *(((12, number), message(b"k%02d" % number, b"third")) for number in range(20)))
    bench.compact(topic)
    old = SourcePosition(9, 10)
    assert list(read(topic, horizon=old, generation=1)) == SURVIVORS
    assert read(topic, horizon=old, generation=2) == {}, "all of it was replaced after the horizon"
    bench.advance(GRACE_MS + 1)
    GarbageCollector(bench, GRACE_MS).collect(topic.record)
    assert read(topic, horizon=old, generation=1) == {}, "it was collected"
    assert len(read(topic, generation=1)) == 20


def test_an_older_generation_than_the_callers_is_refused(topic: Topic, bench: Workbench) -> None:
    with pytest.raises(Conflict, match=r"generation 1 .* caller knows generation 2"):
        read(topic, generation=2)
    with pytest.raises(Conflict, match="generation 0"):
        bench.topic("other").reader_by_source_position(1)


def test_a_message_of_another_producer_is_refused(topic: Topic, bench: Workbench) -> None:
    bench.append(topic, [content((b"local", b"1"))])
    bench.compact(topic)
    with pytest.raises(Conflict, match="no replicator sent"):
        read(topic)
    with pytest.raises(Conflict, match="no replicator sent"):
        horizon(topic)


def test_two_sources_are_refused(bench: Workbench) -> None:
    topic = bench.topic()
    replicate(bench, topic, ((3, 0), message(b"a", b"1")), sources=("us", "eu"))
    bench.compact(topic)
    reader = topic.reader_by_source_position()
    assert reader is not None
    with pytest.raises(Conflict, match="eu, us replicate into"):
        reader.check_one_source()


def test_entries_of_two_sources_are_refused(bench: Workbench) -> None:
    """Also before their progress is stored."""
    topic = bench.topic()
    replicate(bench, topic, ((3, 0), message(b"a", b"1")), ((3, 1), message(b"b", b"1", cluster="eu")))
    bench.compact(topic)
    with pytest.raises(Conflict, match="eu, us replicate into"):
        read(topic)
