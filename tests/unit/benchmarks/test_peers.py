"""The parts of benchmarks.peers that decide what a figure means: reading the cleaner's log, comparing, rating."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.data import Shape, write_parquet
from benchmarks.peers import steady
from benchmarks.peers.cleaner_log import Pass, elapsed, is_done, read_passes
from benchmarks.peers.contender import Compaction, Messages, PeerFailed, Usage
from benchmarks.peers.records import (
    Disagreement,
    Survivors,
    check,
    records_of,
    survivors,
    survivors_of_file,
    survivors_of_parts,
    write_records,
)
from benchmarks.peers.report import Line, markdown, verdicts
from benchmarks.peers.steady import Stage, Turn
from benchmarks.peers.this_job import OURS

LOG = """\
2026-11-21 16:00:00.500 INFO a.Cleaner: Cleaner 0: Beginning cleaning of log other-0
2026-11-21 16:00:01.000 INFO a.Cleaner: Cleaner 0: Beginning cleaning of log t-1-0
2026-11-21 16:00:01.250 INFO a.Cleaner: Cleaner 1: Beginning cleaning of log t-1-1
2026-11-21 16:00:01.251 INFO a.Cleaner: Cleaner 1: Building offset map for t-1-1...
2026-11-21 16:00:03.000 INFO a.LogCleaner: [kafka-log-cleaner-thread-1]:
\tLog cleaner thread 1 cleaned log t-1-1 (dirty section = [0, 500])
\t1,000.0 MB of log processed in 1.7 seconds (588.2 MB/sec).
\tIndexed 1,000.0 MB in 0.9 seconds (1,111.1 Mb/sec, 50.0% of total time)
\tStart size: 1,000.0 MB (1,000 messages)

2026-11-21 16:00:03.500 INFO a.LogCleaner: [kafka-log-cleaner-thread-0]:
\tLog cleaner thread 0 cleaned log t-1-0 (dirty section = [0, 300])
\t900.0 MB of log processed in 1,002.5 seconds (0.9 MB/sec).
2026-11-21 16:00:03.600 INFO a.Cleaner: Cleaner 0: Beginning cleaning of log t-1-0
"""

SECOND_PASS = """\
2026-11-21 16:00:04.125 INFO a.LogCleaner: [kafka-log-cleaner-thread-0]:
\tLog cleaner thread 0 cleaned log t-1-0 (dirty section = [300, 500])
\t900.0 MB of log processed in 0.5 seconds (1,800.0 MB/sec).
"""


def test_passes_are_read_with_the_stamps_of_their_messages() -> None:
    passes = read_passes(LOG, "t-1")
    assert [(pass_.partition, pass_.dirty_from, pass_.dirty_to, pass_.seconds) for pass_ in passes] == [
        ("t-1-1", 0, 500, 1.7),
        ("t-1-0", 0, 300, 1002.5),
    ]
    assert [pass_.end - pass_.start for pass_ in passes] == pytest.approx([1.75, 2.5])


def test_time_runs_from_the_first_begin_to_the_last_end_of_the_topic() -> None:
    assert elapsed(read_passes(LOG + SECOND_PASS, "t-1")) == pytest.approx(3.125)


def test_a_partition_with_a_full_map_is_not_done_after_its_first_pass() -> None:
    ends = {"t-1-0": 500, "t-1-1": 500}
    assert not is_done(read_passes(LOG, "t-1"), ends)
    assert is_done(read_passes(LOG + SECOND_PASS, "t-1"), ends)


def test_nothing_is_done_while_no_pass_has_ended() -> None:
    assert not is_done([], {"t-0": 1})
    assert read_passes(LOG, "t") == []


def test_a_pass_in_the_midst_of_its_end_message_is_not_read() -> None:
    assert read_passes(LOG[: LOG.index("\t1,000.0 MB of log")], "t-1") == []


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    file = tmp_path / "messages.parquet"
    write_parquet(Shape(1000, 20, 1_000_000), file)
    return file


def test_records_file_holds_the_same_bytes_as_the_parquet_file(parquet: Path, tmp_path: Path) -> None:
    write_records(parquet, 20, tmp_path / "records")
    table = pq.read_table(parquet)
    pairs = zip(table.column("key").to_pylist(), table.column("value").to_pylist(), strict=True)
    assert (tmp_path / "records").read_bytes() == b"".join(key.encode() + value for key, value in pairs)


def test_survivors_do_not_depend_on_order_but_on_every_byte(parquet: Path, tmp_path: Path) -> None:
    write_records(parquet, 20, tmp_path / "records")
    records = np.fromfile(tmp_path / "records", np.uint8).reshape(-1, 32)
    whole = survivors_of_file(tmp_path / "records", 20)
    assert survivors(records[::-1]) == whole
    altered = records.copy()
    altered[17, 31] ^= 1
    for other in (altered, records[1:], np.vstack([records, records[:1]])):
        with pytest.raises(Disagreement, match="a peer kept"):
            check("a peer", survivors(other), whole)


def test_parts_without_their_tombstones_equal_the_records(parquet: Path, tmp_path: Path) -> None:
    write_records(parquet, 20, tmp_path / "records")
    table = pq.read_table(parquet).rename_columns(["key", "payload"])
    tombstone = pa.table([["000000000000"], [b""]], schema=table.schema)
    files = [str(tmp_path / "one.parquet"), str(tmp_path / "two.parquet")]
    pq.write_table(pa.concat_tables([table.slice(600), tombstone]), files[0])
    pq.write_table(table.slice(0, 600), files[1])
    assert survivors_of_parts(files, 20) == survivors_of_file(tmp_path / "records", 20)


def test_a_slice_of_a_column_gives_its_own_bytes() -> None:
    keys = pa.array(["000000000001", "000000000002", "000000000003"])
    values = pa.array([b"a", b"b", b"c"])
    assert records_of(keys.slice(1, 1), values.slice(1, 1), 1).tobytes() == b"000000000002b"


def test_a_value_of_another_size_is_refused() -> None:
    with pytest.raises(pa.ArrowInvalid):
        records_of(pa.array(["000000000001"]), pa.array([b"ab"]), 1)


def lines() -> list[Line]:
    return [
        Line("this job", "this job", [1.0, 2.0], [10 << 20, 12 << 20], [5 << 20, 6 << 20]),
        Line("slow", "Kafka", [8.0, 8.0], [1 << 20, 1 << 20], [1 << 20, 1 << 20]),
        Line("quick", "Kafka", [3.0, 4.0], [1 << 20, 1 << 20], [1 << 20, 1 << 20]),
        Line("broken", "Pulsar", failure="it\nended"),
    ]


def test_goals_are_held_against_the_quickest_of_a_family() -> None:
    assert verdicts(lines(), {"Kafka": 2.5, "Pulsar": 7.0}) == ["Kafka: 2.50 × this job's time (goal 2.5: reached)"]
    assert verdicts(lines(), {"Kafka": 2.6}) == ["Kafka: 2.50 × this job's time (goal 2.6: MISSED)"]


def test_table_has_ratios_within_rounds_and_failures() -> None:
    rows = markdown(lines(), 3_000_000).splitlines()
    assert rows[2] == "| this job | 1.50 | 1.00–2.00 | 2,000,000 | 11 | 6 | 1.00 |"
    assert rows[4].endswith("| 2.50 |")
    assert rows[5] == "| broken | failed: it ended | | | | | |"


def test_elapsed_counts_no_gap_twice() -> None:
    assert elapsed([Pass("t-0", 0, 1, 10.0, 12.0, 2.0), Pass("t-1", 0, 1, 10.5, 11.0, 0.5)]) == 2.0


def turn(compaction_seconds: float, cpu_seconds: float) -> Turn:
    return Turn(1.0, Usage(0, 0, 0, 1.0), compaction_seconds, Usage(3 << 20, 0, 5 << 20, cpu_seconds))


def test_steady_ratios_are_those_of_the_same_round() -> None:
    stage = Stage("1.0% new", Shape(10, 20, 5), 3)
    stage.turns["this service"] = [turn(1.0, 1.0), turn(4.0, 3.0), turn(9.0, 1.0)]
    stage.turns["peer"] = [turn(2.0, 3.0), turn(2.0, 3.0), turn(30.0, 3.0)]
    rows = steady.markdown([stage], "peer").splitlines()
    assert rows[2] == "| 1.0% new | this service | 1.00 | 4.00 | 1.00–9.00 | 1.00 + 1.00 | 5 | 3 | 0.50 | 0.50 |"
    assert steady.markdown([stage], "none").splitlines()[2].endswith("| – | – |")


def test_steady_rounds_have_other_messages_of_the_same_keys() -> None:
    first, later = steady.stages(Shape(1000, 20, 50), [0.01], 4)
    assert (first.shape.messages, first.rounds) == (1000, 1)
    assert (later.title, later.shape.messages, later.shape.keys, later.rounds) == ("1.0% new", 10, 50, 4)


@dataclass
class FoldingPeer:
    """A contender that keeps the newest value of each key; `broken`: it ends at that round."""

    folder: Path
    name: str
    family: str
    broken: int = -1
    seen: list[int] = field(default_factory=list)
    newest: dict[bytes, bytes] = field(default_factory=dict)

    def start(self) -> None: ...

    def load(self, messages: Messages, topic: str) -> float:
        if len(self.seen) == self.broken:
            raise PeerFailed("it ended")
        self.seen.append(messages.shape.messages)
        data = messages.records.read_bytes()
        for start in range(0, len(data), 32) if topic == steady.TOPIC else ():
            self.newest[data[start : start + 12]] = data[start + 12 : start + 32]
        return 0.25

    def compact(self, topic: str) -> Compaction:
        return Compaction(0.5)

    def survivors(self, topic: str, shape: Shape) -> Survivors:
        file = self.folder / self.name
        file.write_bytes(b"".join(key + value for key, value in self.newest.items()))
        return survivors_of_file(file, shape.payload_bytes)

    def forget(self, topic: str) -> None: ...

    def process(self) -> int:
        return os.getpid()

    def stop(self) -> None: ...


def test_steady_contenders_get_the_same_messages_and_one_that_fails_is_left_out(tmp_path: Path) -> None:
    plan = steady.stages(Shape(200, 20, 30), [0.05], 2)
    our_service, peer = FoldingPeer(tmp_path, "our_service", OURS), FoldingPeer(tmp_path, "peer", "Kafka")
    ending = FoldingPeer(tmp_path, "ending", "Pulsar", broken=2)
    survivors = steady.measure(plan, [our_service, peer, ending], tmp_path, lambda text: None)
    assert survivors is not None
    assert survivors.count == len(our_service.newest) == 30
    assert our_service.seen == peer.seen == [200, 200, 10, 10]
    assert [len(plan[1].turns.get(name, [])) for name in ("our_service", "peer", "ending")] == [2, 2, 0]
    assert plan[1].turns["our_service"][0].compaction_seconds == 0.5


def test_steady_survivors_that_differ_are_refused(tmp_path: Path) -> None:
    plan = steady.stages(Shape(200, 20, 30), [], 1)
    our_service, peer = FoldingPeer(tmp_path, "our_service", OURS), FoldingPeer(tmp_path, "peer", "Kafka")
    our_service.newest[b"000000000099"] = b"v" * 20
    with pytest.raises(Disagreement, match="peer kept"):
        steady.measure(plan, [our_service, peer], tmp_path, lambda text: None)
