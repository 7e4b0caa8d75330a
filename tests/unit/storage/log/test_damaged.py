"""A damaged or lost segment is sealed with what is left: all that can be proved comes back, the rest leaves no gap."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from compactor.maintenance.retention import Retention
from storage.advice import AdviceKind
from storage.errors import DataLoss, ObjectDamaged, ObjectMissing
from storage.ledger.rows import RowType
from storage.log.damaged import recovered_rows
from storage.log.frames import FRAME_BYTES, HEADER_BYTES
from storage.log.segment import LocalSegment, SegmentPaths
from storage.log.segment_dump import SegmentScan
from storage.metadata.policy_store import topic_scope
from storage.model import Message
from storage.topic import Topic
from tests.entries import NOW, batch, produce, single
from tests.segments import OneSegment, flip
from tests.workbench import Workbench, content, raw

Damage = Callable[[SegmentPaths, list[int]], None]

ENTRIES = [
    single(b"k%d" % n, b"%d" % n, NOW + n)
    if n % 3
    else batch((b"k%d" % n, b"1"), (b"k", b"%d" % n), publish_time=NOW + n)
    for n in range(12)
]
"""Batches of two, then single messages; the last one is single."""
OFFSETS = [0, 2, 3, 4, 6, 7, 8, 10, 11, 12, 14, 15, 16]
"""First offset of each entry, and the end."""


def damaged(bench: Workbench, topic: Topic, damage: Damage, entries: list[bytes] = ENTRIES) -> list[Message]:
    """A rolled segment, damaged; what could be read before."""
    produce(topic, entries)
    topic.log_manager().roll(topic.record)
    before = raw(topic)
    segment = bench.files(topic)
    with SegmentScan(segment.log) as scanned:
        positions = [frame.position for frame in scanned.frames()]
    damage(segment, positions)
    with pytest.raises(DataLoss):
        raw(topic)
    return before


def in_entry(*numbers: int) -> Damage:
    def damage(segment: SegmentPaths, at: list[int]) -> None:
        for number in numbers:
            flip(segment.log, at[number] + FRAME_BYTES + 8)

    return damage


def in_checksum(*numbers: int) -> Damage:
    """The frame's checksum alone: the entry's own is right."""

    def damage(segment: SegmentPaths, at: list[int]) -> None:
        for number in numbers:
            flip(segment.log, at[number] + FRAME_BYTES - 1)

    return damage


def in_length(segment: SegmentPaths, at: list[int]) -> None:
    segment.index.unlink()
    flip(segment.log, at[5] + 1)


def zeros(segment: SegmentPaths, at: list[int]) -> None:
    data = segment.log.read_bytes()
    segment.log.write_bytes(data[: at[4] + 3] + bytes(at[7] - at[4] - 5) + data[at[7] - 2 :])
    segment.index.unlink()


def two_holes(segment: SegmentPaths, at: list[int]) -> None:
    segment.index.unlink()
    flip(segment.log, at[2] + 1)
    flip(segment.log, at[8] + 1)


def in_length_and_the_last(segment: SegmentPaths, at: list[int]) -> None:
    in_length(segment, at)
    in_entry(11)(segment, at)


def torn(segment: SegmentPaths, at: list[int]) -> None:
    segment.log.write_bytes(segment.log.read_bytes()[: at[9] + 20])


def in_header(segment: SegmentPaths, _: list[int]) -> None:
    for position in range(HEADER_BYTES):
        flip(segment.log, position)


def in_header_and_the_last_checksum(segment: SegmentPaths, at: list[int]) -> None:
    in_header(segment, at)
    in_checksum(11)(segment, at)


def missing(segment: SegmentPaths, _: list[int]) -> None:
    segment.log.unlink()


def emptied(segment: SegmentPaths, _: list[int]) -> None:
    segment.log.write_bytes(b"")


def of_another(segment: SegmentPaths, _: list[int]) -> None:
    """The same entries, in the segment of another topic: their places are proved for that one alone."""
    other = OneSegment(segment.folder / "other", 1, 0)
    other.folder.mkdir()
    other.rolled(ENTRIES)
    other.files.log.replace(segment.log)


@pytest.mark.parametrize(
    ("damage", "lost"),
    [
        pytest.param(in_entry(0), {0}, id="the first entry"),
        pytest.param(in_entry(4), {4}, id="one entry"),
        pytest.param(in_entry(3, 9), {3, 9}, id="two batches"),
        pytest.param(in_entry(11), {11}, id="the last entry"),
        pytest.param(in_checksum(4), set(), id="a frame's checksum"),
        pytest.param(in_checksum(3, 4), set(), id="two frames' checksums"),
        pytest.param(in_checksum(11), set(), id="the last frame's checksum"),
        pytest.param(in_length, {5}, id="a length, without an index"),
        pytest.param(zeros, {4, 5, 6}, id="a block of zeros"),
        pytest.param(two_holes, {*range(2, 9)}, id="two lengths: what is between is nowhere"),
        pytest.param(in_length_and_the_last, {*range(5, 12)}, id="a length, and the end"),
        pytest.param(torn, {9, 10, 11}, id="the end"),
        pytest.param(in_header, set(), id="the header"),
        pytest.param(in_header_and_the_last_checksum, set(), id="the header and the last frame's checksum"),
        pytest.param(missing, {*range(12)}, id="the file"),
        pytest.param(emptied, {*range(12)}, id="all bytes"),
        pytest.param(of_another, {*range(12)}, id="another file"),
    ],
)
def test_what_is_proved_comes_back_and_the_rest_leaves_no_gap(
    bench: Workbench, topic: Topic, damage: Damage, lost: set[int]
) -> None:
    before = damaged(bench, topic, damage)
    (row,) = bench.metadata.segments.of_topic(topic.record.id)
    assert row.content is not None
    (remains,) = topic.log_manager().seal_accepting_loss(topic.record)
    lost_offsets = {offset for number in lost for offset in range(OFFSETS[number], OFFSETS[number + 1])}
    assert remains.lost == len(lost_offsets)
    assert raw(topic) == [message for message in before if message.offset not in lost_offsets]
    ledger = remains.ledger
    assert (ledger.first_offset, ledger.last_offset, ledger.messages) == (0, 15, 16)
    assert (ledger.entries, ledger.last_message_id) == (12, row.content.last_message_id)
    times = row.content.min_publish_time, row.content.max_publish_time
    assert times[0] <= ledger.min_publish_time <= ledger.max_publish_time <= times[1]
    assert ledger.max_publish_time == times[1], "what is lost does not let the ledger go earlier"
    bench.append(topic, [content((b"new", b"1"))])
    bench.compact(topic)
    newest = {message.key: message.offset for message in raw(topic)}
    assert {message.key: message.offset for message in topic.messages(read_compacted=True)} == newest
    assert topic.newest_value(b"new") is not None


def test_rows_of_what_is_lost_are_in_order_and_end_as_the_row_says(bench: Workbench, topic: Topic) -> None:
    """The last entry was a batch: its lost rows are a batch's, so the last id stays the one that producers got."""
    entries = [single(b"a", b"1"), batch((b"b", b"1"), (b"c", b"1")), single(b"d", b"1"), batch(*[(b"e", b"1")] * 3)]
    before = damaged(bench, topic, missing, entries)
    topic_id = topic.record.id
    (row,) = bench.metadata.segments.of_topic(topic_id)
    (remains,) = topic.log_manager().seal_accepting_loss(topic.record)
    assert row.content is not None
    assert remains.ledger.last_message_id == row.content.last_message_id == before[-1].message_id
    reader_rows = [item for table in topic.read() for item in table.to_pylist()]
    assert {item["slot"] for item in reader_rows} <= {RowType.COMPACTED_OUT}


def test_a_row_that_knows_of_less_than_the_file_holds_is_believed(bench: Workbench, topic: Topic) -> None:
    """Nothing beyond the segment's end becomes part of its ledger: those offsets are the next one's."""
    damaged(bench, topic, in_entry(0))
    (row,) = bench.metadata.segments.of_topic(topic.record.id)
    assert row.content is not None
    shorter = replace(row.content, entries=10, last_offset=OFFSETS[10] - 1)
    table, _ = recovered_rows(LocalSegment.from_row(bench.log, topic.record, row), shorter)
    assert table.column("offset").to_pylist() == [*range(OFFSETS[10])]
    assert table.column("entry_id").to_pylist()[-1] == 9


@pytest.mark.parametrize("seed", range(30))
def test_any_damage_at_all(bench: Workbench, topic: Topic, seed: int) -> None:
    """All messages that are read afterwards were there before, at their place, with dense offsets.

    No message before the damage is lost.
    """
    choose = random.Random(seed)
    first_hit = 1 << 40

    def damage(segment: SegmentPaths, at: list[int]) -> None:
        nonlocal first_hit
        data = bytearray(segment.log.read_bytes())
        for _ in range(choose.randint(1, 4)):
            start = choose.randrange(HEADER_BYTES, len(data))
            end = min(len(data), start + choose.choice([1, 1, 5, 60, 500]))
            data[start:end] = bytes(byte ^ choose.randint(1, 255) for byte in data[start:end])
            first_hit = min(first_hit, start)
        segment.log.write_bytes(data)
        first_hit = max(number for number, position in enumerate(at) if position <= first_hit)
        if choose.random() < 0.5:
            segment.index.unlink()

    before = damaged(bench, topic, damage)
    (remains,) = topic.log_manager().seal_accepting_loss(topic.record)
    after = raw(topic)
    assert remains.lost == len(before) - len(after)
    assert [message for message in before if message in after] == after
    assert [message for message in after if message.offset < OFFSETS[first_hit]] == before[: OFFSETS[first_hit]]
    assert (remains.ledger.messages, remains.ledger.entries) == (16, 12)


def test_a_damaged_segment_holds_up_nothing_behind_it_and_says_what_to_do(bench: Workbench, topic: Topic) -> None:
    """It used to be claimed first, again and again."""
    produce(topic, [single(b"a", b"1")])
    topic.log_manager().roll_and_seal(topic.record)
    for number in range(3):
        produce(topic, [single(b"k", b"%d" % number)])
        topic.log_manager().roll(topic.record)
    flip(bench.files(topic, 1).log, 100)
    sealing = topic.log_manager().seal(topic.record)
    assert [next(sealing).first_offset, next(sealing).first_offset] == [2, 3]
    with pytest.raises(
        ObjectDamaged, match=r"00000000000000000001.log is damaged at byte 64 .* with the loss of the rest accepted"
    ) as answer:
        next(sealing)
    assert answer.value.advice is not None
    assert answer.value.advice.kind is AdviceKind.ACCEPT_LOSS_ROLLED
    run = bench.compact(topic).run
    assert run is not None
    assert "with the loss of the rest accepted" in str(run.skipped_tail_error)
    horizon = topic.snapshot().horizon
    assert horizon is not None
    assert horizon.offset == 0, "nothing behind a segment that is not sealed is compacted"
    bench.metadata.policies.change([topic_scope(topic.record)], {"cleanup.policy": "delete"})
    retention = Retention(bench)
    trimmed = retention.trim(topic.record, 3, force=True)
    assert (trimmed.topic.start_offset, len(trimmed.plan.candidates)) == (0, 1)
    assert "with the loss of the rest accepted" in str(trimmed.tail_error)
    assert [remains.lost for remains in topic.log_manager().seal_accepting_loss(topic.record)] == [1]
    bench.compact(topic)
    assert [message.offset for message in topic.messages(read_compacted=True)] == [0, 3]


def test_an_open_segment_whose_file_is_gone_is_forgotten_by_hand(bench: Workbench, topic: Topic) -> None:
    produce(topic, [single(b"a", b"1")])
    topic.log_manager().roll_and_seal(topic.record)
    produce(topic, [single(b"b", b"1")])
    bench.files(topic, 1).log.unlink()
    with pytest.raises(ObjectMissing):
        topic.log_manager().roll(topic.record)
    topic.log_manager().roll(topic.record, accept_loss=True)
    produce(topic, [single(b"c", b"1")])
    assert [(message.offset, message.key) for message in raw(topic)] == [(0, b"a"), (1, b"c")]
