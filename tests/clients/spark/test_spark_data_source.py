"""The Spark data source in a real Spark: batch queries, and streams that continue through compactions and restarts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from api.formats.inputs import InputOptions
from api.formats.jsonl import read_import_jsonl
from compactor.engines.engine import Engine
from storage.topic import Topic
from tests.real_input import CHANGES, real_input
from tests.workbench import Workbench, content, half_compacted

pytestmark = pytest.mark.slow

Load = Callable[..., Any]


@pytest.fixture
def load(spark_engine: Engine, tmp_path: Path) -> Iterator[Load]:
    """`load(reader, topic, …)`: a data frame of a topic of the bench."""
    from pyspark.sql import SparkSession

    from api.spark import register

    session = SparkSession.getActiveSession()
    assert session is not None
    register(session)
    session.conf.set("spark.sql.shuffle.partitions", "2")  # of the 200 by default each is a task of its own
    options = places(tmp_path)

    def loading(topic: str, *, stream: bool = False, **more: str) -> Any:
        reader = session.readStream if stream else session.read
        return reader.format("compactor").options(**options, **more).load(topic)

    yield loading
    session.sql("RESET")


def places(folder: Path) -> dict[str, str]:
    """The options that name database and store of the bench."""
    database, store = f"sqlite:///{folder / 'metadata.db'}", (folder / "objects").as_uri()
    return {"database": database, "store": store, "data": str(folder)}


def test_a_query_reads_raw_or_compacted_and_leaves_pieces_out(bench: Workbench, load: Load) -> None:
    half_compacted(bench)  # a@0 b@1 a@2 c@3 | compacted: b@1 a@2 c@3 | b@4 -c@5 d@6
    raw, compacted = load("t"), load("persistent://public/default/t", readCompacted="true")
    assert [row.offset for row in raw.select("offset").collect()] == list(range(7))
    rows = compacted.orderBy("offset").collect()
    assert [(row.offset, bytes(row.key), row.payload and bytes(row.payload)) for row in rows] == [
        (1, b"b", b"1"), (2, b"a", b"2"), (3, b"c", b"3"), (4, b"b", b"4"), (5, b"c", None), (6, b"d", b"6"),
    ]  # fmt: skip
    assert {row.publish_time.timestamp() * 1000 for row in rows} == {bench.clock.now_ms()}
    assert compacted.rdd.getNumPartitions() == 4
    of_a = compacted.where("key = cast('a' as binary)")
    assert of_a.rdd.getNumPartitions() == 1
    assert [row.offset for row in of_a.collect()] == [2]
    assert compacted.where("offset >= 4 and offset < 6").rdd.getNumPartitions() == 1
    narrow = load("t").selectExpr("cast(key as string) key").distinct().orderBy("key")
    assert [row.key for row in narrow.collect()] == ["a", "b", "c", "d"]


def test_a_stream_through_ten_compactions_and_restarts_has_each_message_once(
    bench: Workbench, load: Load, tmp_path: Path
) -> None:
    """Each batch is a query of its own, which continues at the checkpoint. Raw: every message. Compacted: a reader's
    state is the fold of all messages."""
    topic = bench.topic()
    raw: list[int] = []
    state: dict[bytes, bytes | None] = {}
    offsets: list[int] = []

    def take(frame: Any, compacted: bool) -> None:
        for row in frame.orderBy("offset").collect():
            (offsets if compacted else raw).append(row.offset)
            if compacted:
                state[bytes(row.key)] = None if row.payload is None else bytes(row.payload)

    def run(read_compacted: bool) -> None:
        frame = load("t", stream=True, readCompacted=str(read_compacted))
        query = (
            frame.writeStream.foreachBatch(lambda batch, _: take(batch, read_compacted))
            .option("checkpointLocation", str(tmp_path / f"checkpoint-{read_compacted}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    fold: dict[bytes, bytes | None] = {}
    for number in range(10):
        changes = [(b"%d" % (17 * number * i % 13), b"%d.%d" % (number, i) if i % 7 else None) for i in range(20)]
        fold.update(changes)
        bench.append(topic, [content(*changes)])
        if number == 4:
            run(True)
        bench.compact(topic)
    run(True)
    run(False)
    assert raw == list(range(200))
    assert offsets == sorted(set(offsets))
    assert {key: value for key, value in state.items() if value is not None} == {
        key: value for key, value in fold.items() if value is not None
    }


def test_real_input_is_its_tree_in_sql(bench: Workbench, load: Load) -> None:
    tables: list[pa.Table] = list(read_import_jsonl(str(CHANGES), InputOptions()))
    topic = bench.topic("bookkeeper")
    fill(bench, topic, tables)
    load("bookkeeper", readCompacted="true").createOrReplaceTempView("bookkeeper")
    rows = load("bookkeeper", readCompacted="true").sparkSession.sql(
        "select key, max_by(payload, offset) payload from bookkeeper group by key having payload is not null"
    )
    assert {bytes(row.key): bytes(row.payload) for row in rows.collect()} == real_input().tree


def fill(bench: Workbench, topic: Topic, tables: list[pa.Table]) -> None:
    """Compact half of the messages; the other half stays raw."""
    whole = pa.concat_tables(tables)
    bench.with_sizing(None).append(topic, [whole.slice(0, len(whole) // 2)])
    bench.with_sizing(None).compact(topic)
    bench.append(topic, [whole.slice(len(whole) // 2)])


def test_what_spark_writes_is_a_topic_and_a_failed_job_leaves_nothing(
    bench: Workbench, load: Load, tmp_path: Path
) -> None:
    """Three partitions and an empty one; then jobs of which one task fails."""
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    assert session is not None
    numbers = session.range(0, 60, 1, 4).where("id < 45")
    rows = numbers.selectExpr(
        "cast(id % 20 as string) key",
        "cast(id as string) payload",
        "timestamp_millis(id) event_time",
        "map('number', cast(id as string)) properties",
    )

    def save(frame: Any, topic: str) -> None:
        frame.write.format("compactor").options(**places(tmp_path)).mode("append").save(topic)

    save(rows, "numbers")
    read = [(int(row.payload), row.offset, row.properties["number"]) for row in load("numbers").collect()]
    assert read == [(number, number, str(number)) for number in range(45)]
    topic = bench.topic("numbers")
    assert [ledger.messages for ledger in topic.snapshot().ledgers] == [15, 15, 15]
    bench.compact(topic)
    compacted = load("numbers", readCompacted="true").orderBy("offset").collect()
    assert [row.offset for row in compacted] == list(range(25, 45))
    save(rows.limit(1), "numbers")
    assert load("numbers").count() == 46

    failing = rows.selectExpr("key", "if(key = '9', cast(raise_error('no nine') as string), payload) payload")
    for name in ("numbers", "new"):
        with pytest.raises(Exception, match="no nine"):
            save(failing, name)
    assert load("numbers").count() == 46
    assert [str(record.name) for record in bench.metadata.topics.all()] == ["persistent://public/default/numbers"]
    attempts = bench.metadata.attempts.of_topic(topic.record.id)
    assert len(attempts) == 4, "Spark plans a write once"
    assert all(attempt.finished_at is not None for attempt in attempts), "nothing is appended later"
    with pytest.raises(Exception, match="a topic cannot be overwritten: it is a log"):
        rows.write.format("compactor").options(**places(tmp_path)).mode("overwrite").save("numbers")
