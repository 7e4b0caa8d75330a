"""Runs that write the topic's Iceberg table: its files and snapshots, what hinders it, and who keeps its objects.

I1 to I9 are the pitfalls that docs/tables.md names; test_table_properties.py compares rows after any runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import StaticTable
from sqlalchemy import update

from compactor.maintenance import truncation
from compactor.maintenance.garbage import GarbageCollector
from compactor.maintenance.grace import GRACE_MS
from compactor.run.plan import RunPolicies, Sizing
from compactor.verify.verify import Verifier
from storage.errors import Fenced, ObjectDamaged, Unavailable
from storage.ledger import rows
from storage.ledger.manifest import TableSnapshot
from storage.metadata.records import COMPACTION_CURSOR, RunRecord
from storage.metadata.tables import compacted_ledgers
from storage.metadata.topic_work import WorkKind
from storage.objects.local import LocalStore
from storage.objects.throttled import RateLimits, ThrottledStore
from storage.table.table_writer import object_uri, read_table_metadata, write_table
from storage.topic import Topic
from tests.chunked import append as append_rows, message, whole
from tests.tables import READERS, by_pyiceberg, expected, manifest_of, table_uri
from tests.workbench import Workbench, compacted_ledger, content

ONE_PART = Sizing(1, max_garbage_ratio=1.0)
"""Sizes at which a topic has a part for each import, which runs keep."""
V3 = RunPolicies(table_format_version=3)
DAY = 86_400_000


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    bench = Workbench.embedded(tmp_path, sizing=ONE_PART)
    yield bench
    bench.metadata.close()


@pytest.fixture
def topic(bench: Workbench) -> Topic:
    """Twenty keys in one part."""
    topic = bench.topic()
    bench.append(topic, [content(*((b"key-%02d" % number, b"first") for number in range(20)))])
    return topic


def compact(bench: Workbench, topic: Topic, policies: RunPolicies = V3) -> RunRecord:
    run = bench.compactor().compact(topic.name, policies).run
    assert run is not None
    return run


def table_of(bench: Workbench, topic: Topic) -> TableSnapshot:
    table = manifest_of(bench, topic).table
    assert table is not None
    return table


def supersede(bench: Workbench, topic: Topic, *numbers: int) -> None:
    bench.append(topic, [content(*((b"key-%02d" % number, b"again") for number in numbers))])


def files_of(bench: Workbench, topic: Topic) -> list[dict[str, Any]]:
    """The live files of the table, by pyiceberg (I9: it lists delete files as well)."""
    entries = StaticTable.from_metadata(table_uri(bench, topic)).inspect.entries().to_pylist()
    return [entry["data_file"] for entry in entries if entry["status"] != 2]


def check_rows(bench: Workbench, topic: Topic) -> None:
    for reader, read in READERS.items():
        assert read(table_uri(bench, topic)) == expected(topic), reader


def test_each_changed_part_has_a_puffin_file_of_its_own(bench: Workbench, topic: Topic) -> None:
    """I1: DuckDB 1.5 reads the first blob of a Puffin file, whichever is named. I9: pyiceberg lists delete files."""
    compact(bench, topic)
    bench.append(topic, [content(*((b"more-%02d" % number, b"first") for number in range(20)))])
    compact(bench, topic)
    bench.append(topic, [content((b"key-03", b"again"), (b"more-04", b"again"), (b"more-05", None))])
    compact(bench, topic)
    deletes = [file for file in files_of(bench, topic) if file["content"] == 1]
    assert len({file["file_path"] for file in deletes}) == len(deletes) == 2
    assert sorted(file["record_count"] for file in deletes) == [1, 2]
    check_rows(bench, topic)


@pytest.mark.slow
def test_a_part_that_did_not_change_keeps_its_files_and_row_ids(bench: Workbench, topic: Topic) -> None:
    compact(bench, topic)
    supersede(bench, topic, 1)
    compact(bench, topic)
    (kept,) = table_of(bench, topic).deletes
    bench.append(topic, [content((b"new", b"1"))])
    compact(bench, topic)
    assert table_of(bench, topic).deletes == (kept,)
    supersede(bench, topic, 2)
    compact(bench, topic)
    (replaced,) = table_of(bench, topic).deletes
    assert (replaced.part, replaced.cardinality, replaced.superseded) == (kept.part, 2, 2)
    assert replaced.stored.name != kept.stored.name
    metadata = read_table_metadata(bench.store, table_of(bench, topic).metadata)
    assert [each["first-row-id"] for each in metadata.snapshots] == [0, 20, 21, 22]
    assert metadata.next_row_id == 23
    assert [each["summary"]["operation"] for each in metadata.snapshots] == [
        "append",
        "overwrite",
        "append",
        "overwrite",
    ]
    check_rows(bench, topic)


@pytest.mark.slow
def test_a_summary_says_what_is_hidden_and_where_to_read_on(bench: Workbench, topic: Topic) -> None:
    policies = RunPolicies(table_format_version=3, tombstone_retention_ms=9, retain_null_key=True)
    bench.append(topic, [content((b"key-01", None), (None, b"no key"))])
    compact(bench, topic, policies)
    supersede(bench, topic, 2, 3)
    run = compact(bench, topic, policies)
    summary = read_table_metadata(bench.store, table_of(bench, topic).metadata).current_snapshot["summary"]
    numbers = {name.removeprefix("compactor."): int(text) for name, text in summary.items() if name != "operation"}
    assert numbers == {
        "added-data-files": 1,
        "added-records": 2,
        "total-data-files": 2,
        "total-records": 23,
        "total-delete-files": 1,
        "total-position-deletes": 3,
        "total-equality-deletes": 0,
        "horizon-offset": 23,
        "run-id": run.run_id,
        "generation": 2,
        "hidden-superseded": 2,
        "hidden-tombstones": 1,
        "hidden-not-messages": 0,
    }
    check_rows(bench, topic)


@pytest.mark.slow
@pytest.mark.parametrize("version", [2, 3])
def test_an_empty_compacted_ledger_is_a_table_without_rows(bench: Workbench, version: int) -> None:
    topic = bench.topic()
    bench.append(topic, [content((b"a", b"1"))])
    compact(bench, topic, RunPolicies(table_format_version=version))
    bench.append(topic, [content((b"a", None))])
    compact(bench, topic, RunPolicies(table_format_version=version))
    assert manifest_of(bench, topic).parts == ()
    for reader, read in READERS.items():
        assert read(table_uri(bench, topic)) == [], reader


@pytest.mark.slow
def test_parts_without_field_ids_are_read_by_the_name_mapping(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I2, I4: parts of earlier versions, beside parts with ids."""
    monkeypatch.setattr(rows, "FILE_SCHEMA", rows.SCHEMA)
    compact(bench, topic, RunPolicies())
    monkeypatch.undo()
    supersede(bench, topic, 7)
    compact(bench, topic)
    parts = [bench.store.get(part.rows.stored.name) for part in manifest_of(bench, topic).parts]
    with_ids = [
        b"PARQUET:field_id" in (pq.read_schema(pa.BufferReader(part)).field("key").metadata or {}) for part in parts
    ]
    assert with_ids == [False, True]
    check_rows(bench, topic)


@pytest.mark.slow
def test_offsets_with_gaps_are_found_in_the_column(bench: Workbench) -> None:
    """A part that a merge has made of what was left of others."""
    topic = bench.topic()
    for _ in range(3):
        bench.append(topic, [content(*((b"key-%02d" % number, b"x") for number in range(0, 40, 3)))])
        bench.append(topic, [content(*((b"key-%02d" % number, b"y") for number in range(0, 40, 5)))])
    compact(bench, topic, RunPolicies())
    supersede(bench, topic, 3, 9, 10, 35)
    compact(bench, topic)
    (deletes,) = table_of(bench, topic).deletes
    assert deletes.cardinality == 4
    part = manifest_of(bench, topic).parts[0]
    assert part.last.offset - part.first.offset + 1 > part.messages
    check_rows(bench, topic)


def test_a_topic_with_chunked_messages_compacts_and_its_table_says_why_it_stays(bench: Workbench, topic: Topic) -> None:
    compact(bench, topic)
    before = table_of(bench, topic)
    append_rows(bench, topic, [*whole("1", b"a", b"A", b"B"), message(b"key-01", b"again")])
    run = compact(bench, topic)
    assert "chunked messages" in run.iceberg_table_error.summary
    assert bench.compactor().compact(topic.name, V3).run is None, "another run would not mend that"
    assert table_of(bench, topic) == before, "the table stays at the snapshot before"
    assert compacted_ledger(topic).table_metadata == before.metadata
    assert compacted_ledger(topic).ledger_id != before.ledger_id
    assert len(by_pyiceberg(table_uri(bench, topic))) == 20
    bench.clock.advance(3 * DAY)
    GarbageCollector(bench).collect(topic.record)
    assert len(by_pyiceberg(table_uri(bench, topic))) == 20, "what it shows is kept"
    bench.append(topic, [content((b"a", None))])
    run = compact(bench, topic)
    assert not run.iceberg_table_error
    assert [item.snapshot_id for item in StaticTable.from_metadata(table_uri(bench, topic)).snapshots()] == [
        before.ledger_id,
        compacted_ledger(topic).ledger_id,
    ]
    check_rows(bench, topic)


@pytest.mark.parametrize("error", [ValueError("a fault"), Unavailable("the store is down", "wait")])
def test_a_table_that_cannot_be_written_stops_no_compaction_and_is_repaired(
    bench: Workbench, topic: Topic, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the error; only an unexpected one is logged with its traceback."""
    compact(bench, topic)
    before = table_of(bench, topic)
    supersede(bench, topic, 1)
    with mock.patch("storage.table.hidden_rows.part_statistics", side_effect=error):
        run = compact(bench, topic)
    assert str(error) in str(run.iceberg_table_error)
    traced = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert traced == ([error] if isinstance(error, ValueError) else [])
    assert compacted_ledger(topic).ledger_id == run.compacted_ledger_id
    assert table_of(bench, topic) == before
    assert not compact(bench, topic).iceberg_table_error, "no message is new, but the table is behind"
    check_rows(bench, topic)
    assert bench.compactor().compact(topic.name, V3).run is None


@pytest.mark.slow
def test_what_a_table_reads_is_within_the_rates_of_the_run(bench: Workbench, topic: Topic) -> None:
    """C4: where a run has not written the parts itself, it reads a column of them."""
    compactor = replace(bench.compactor(), rates=RateLimits(read=1 << 30))
    with mock.patch("storage.table.table_writer.write_table", wraps=write_table) as written:
        assert compactor.compact(topic.name, V3).run is not None
    assert isinstance(written.call_args.args[0], ThrottledStore)
    check_rows(bench, topic)


def test_a_fenced_run_does_not_continue_without_its_table(bench: Workbench, topic: Topic) -> None:
    error = Fenced("the run was overtaken", "check the newer run")
    with mock.patch("storage.table.hidden_rows.part_statistics", side_effect=error), pytest.raises(Fenced):
        compact(bench, topic)
    assert topic.snapshot().compacted is None


@pytest.mark.parametrize(
    "lost",
    [*(pytest.param(kind, marks=pytest.mark.slow) for kind in ("metadata", "data", "deletes")), "list", "puffin"],
)
def test_a_table_with_a_lost_object_is_repaired_by_the_next_run(bench: Workbench, topic: Topic, lost: str) -> None:
    compact(bench, topic)
    supersede(bench, topic, 1)
    compact(bench, topic)
    table = table_of(bench, topic)
    name = {
        "metadata": table.metadata.name,
        "list": table.manifest_list.name,
        "data": table.manifests[0].name,
        "deletes": table.manifests[1].name,
        "puffin": table.deletes[0].stored.name,
    }[lost]
    bench.store.delete(name)
    supersede(bench, topic, 2)
    assert not compact(bench, topic).iceberg_table_error
    assert Verifier(bench, bench.engine).verify(topic.name).differences == ()
    assert len(table_of(bench, topic).snapshots) == (3 if lost == "puffin" else 1), "a new history, if need be"
    check_rows(bench, topic)


@pytest.mark.slow
def test_a_change_of_version_begins_a_new_history(bench: Workbench, topic: Topic) -> None:
    compact(bench, topic, RunPolicies(table_format_version=2))
    supersede(bench, topic, 1)
    compact(bench, topic)
    table = table_of(bench, topic)
    assert (table.format_version, table.snapshots) == (3, (compacted_ledger(topic).ledger_id,))
    check_rows(bench, topic)


@pytest.mark.slow
def test_a_store_at_another_place_begins_a_new_history(bench: Workbench, topic: Topic, tmp_path: Path) -> None:
    """URIs in the table are absolute."""
    compact(bench, topic)
    assert isinstance(bench.store, LocalStore)
    moved = LocalStore(bench.store.root.rename(tmp_path / "moved to here"))
    elsewhere = Workbench(bench.metadata, moved, bench.clock, bench.log, bench.engine, bench.sizing)
    topic = elsewhere.topic()
    supersede(elsewhere, topic, 1)
    compact(elsewhere, topic)
    assert table_of(elsewhere, topic).snapshots == (compacted_ledger(topic).ledger_id,)
    assert " " in table_uri(elsewhere, topic), "a URI of Iceberg is not percent-encoded"
    check_rows(elsewhere, topic)


@pytest.mark.slow
def test_enabling_and_disabling_tables_is_a_reason_to_run_and_limits_are_none(bench: Workbench, topic: Topic) -> None:
    compact(bench, topic, RunPolicies())
    compact(bench, topic)
    check_rows(bench, topic)
    assert bench.compactor().compact(topic.name, V3).run is None
    limits = RunPolicies(table_format_version=3, table_snapshots_max=2, table_snapshot_age_ms=5)
    assert bench.compactor().compact(topic.name, limits).run is None
    compact(bench, topic, RunPolicies())
    assert manifest_of(bench, topic).table is None
    assert compacted_ledger(topic).table_metadata is None


def generations(bench: Workbench, topic: Topic, policies: RunPolicies, count: int) -> dict[int, Any]:
    """Rows of each snapshot, by id; a day passes before each run but the first."""
    by_snapshot = {}
    for number in range(count):
        if number:
            bench.clock.advance(DAY)
        supersede(bench, topic, number)
        compact(bench, topic, policies)
        by_snapshot[compacted_ledger(topic).ledger_id] = expected(topic)
    return by_snapshot


@pytest.mark.slow
def test_garbage_collection_keeps_the_snapshots_that_the_table_lists(bench: Workbench, topic: Topic) -> None:
    bench.set_policies(topic, **{"table.snapshot.age.ms": 20 * DAY})
    policies = RunPolicies(table_format_version=3, table_snapshot_age_ms=3 * DAY, table_snapshots_max=3)
    by_snapshot = generations(bench, topic, policies, 5)
    bench.clock.advance(10 * DAY)
    collector = GarbageCollector(bench)
    assert collector.collect(topic.record, dry_run=True).compacted_ledgers == 2
    assert collector.collect(topic.record).compacted_ledgers == 2
    listed = [item.snapshot_id for item in StaticTable.from_metadata(table_uri(bench, topic)).snapshots()]
    assert listed == list(by_snapshot)[-3:]
    for snapshot_id in listed:
        assert by_pyiceberg(table_uri(bench, topic), snapshot_id) == by_snapshot[snapshot_id]
    supersede(bench, topic, 9)
    compact(bench, topic, RunPolicies(table_format_version=3, table_snapshots_max=1))
    bench.clock.advance(GRACE_MS - 1)
    assert collector.collect(topic.record).compacted_ledgers == 0, "they left the list less than a grace time ago"
    bench.clock.advance(1)
    assert collector.collect(topic.record).compacted_ledgers == 3
    check_rows(bench, topic)


def test_an_idle_topic_keeps_replaced_snapshots_no_longer_than_their_age(bench: Workbench, topic: Topic) -> None:
    generations(bench, topic, RunPolicies(table_format_version=3, table_snapshot_age_ms=3 * DAY), 2)
    collector = GarbageCollector(bench)
    bench.clock.advance(DAY - 1)
    assert collector.collect(topic.record).compacted_ledgers == 0
    (work,) = bench.metadata.topic_work.due(WorkKind.COLLECT, bench.clock.now_ms() + 1)
    assert work.topic_id == topic.record.id
    bench.clock.advance(1)
    assert collector.collect(topic.record).compacted_ledgers == 1
    assert bench.metadata.topic_work.due(WorkKind.COLLECT, bench.clock.now_ms() + 100 * DAY) == []
    check_rows(bench, topic)
    supersede(bench, topic, 9)
    assert not compact(bench, topic).iceberg_table_error, "a listed snapshot without objects hinders no run"
    check_rows(bench, topic)


@pytest.mark.slow
def test_as_many_compacted_ledgers_stay_as_the_table_lists(bench: Workbench, topic: Topic) -> None:
    for number in range(10):
        bench.clock.advance(GRACE_MS)
        supersede(bench, topic, number)
        compact(bench, topic, RunPolicies(table_format_version=3, table_snapshots_max=3))
        GarbageCollector(bench).collect(topic.record)
    assert len(bench.metadata.pins.gc_snapshot(topic.record.id).compacted) == 4, "three, and the one that left last"


@pytest.mark.slow
def test_a_snapshot_that_is_listed_no_more_stays_for_a_grace_time(bench: Workbench, topic: Topic) -> None:
    """A reader that opened the table before goes on."""
    compact(bench, topic, RunPolicies(table_format_version=3, table_snapshots_max=1))
    opened, rows_before = table_uri(bench, topic), expected(topic)
    supersede(bench, topic, 0)
    compact(bench, topic, RunPolicies(table_format_version=3, table_snapshots_max=1))
    bench.clock.advance(GRACE_MS - 1)
    GarbageCollector(bench).collect(topic.record)
    assert by_pyiceberg(opened) == rows_before
    bench.clock.advance(1)
    GarbageCollector(bench).collect(topic.record)
    with pytest.raises(FileNotFoundError):
        by_pyiceberg(opened)


@pytest.mark.slow
@pytest.mark.parametrize("event", ["cursor deleted", "truncated"])
def test_nothing_serves_after_the_compacted_ledger_is_gone(bench: Workbench, topic: Topic, event: str) -> None:
    compact(bench, topic)
    if event == "truncated":
        truncation.truncate(bench, [topic.record])
    else:
        bench.metadata.cursors.delete(topic.record.id, COMPACTION_CURSOR)
    assert topic.snapshot().compacted is None
    supersede(bench, topic, 4)
    compact(bench, topic)
    assert len(table_of(bench, topic).snapshots) == 1
    check_rows(bench, topic)


@pytest.mark.slow
def test_all_objects_of_a_table_go_with_their_generations(bench: Workbench, topic: Topic) -> None:
    compact(bench, topic)
    supersede(bench, topic, 1)
    compact(bench, topic)
    supersede(bench, topic, 2)
    compact(bench, topic, RunPolicies())
    bench.clock.advance(2 * DAY)
    GarbageCollector(bench).collect(topic.record)
    assert [info.name for info in bench.store.list() if "/table/" in info.name] == []


@pytest.mark.slow
def test_verify_compares_the_row_with_the_table_of_the_manifest(bench: Workbench, topic: Topic) -> None:
    compact(bench, topic)
    assert not Verifier(bench, bench.engine).verify(topic.name).differences
    with bench.metadata.database.write() as connection:
        connection.execute(update(compacted_ledgers).values(table_metadata_crc32c=1))
    (difference,) = Verifier(bench, bench.engine).verify(topic.name).differences
    assert "table_metadata" in difference.what


def test_a_damaged_metadata_file_is_an_error(bench: Workbench, topic: Topic) -> None:
    compact(bench, topic)
    metadata = table_of(bench, topic).metadata
    assert isinstance(bench.store, LocalStore)
    path = bench.store.root / metadata.name
    path.chmod(0o600)
    path.write_bytes(bytes(metadata.size))
    with pytest.raises(ObjectDamaged, match="checksum"):
        read_table_metadata(bench.store, metadata)
    assert object_uri(bench.store, metadata.name) == f"file://{path}"
