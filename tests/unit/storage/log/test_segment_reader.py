"""Reading a segment: open up to its high watermark, rolled up to its size; seeking; and damage."""

from __future__ import annotations

import errno
import os
import tracemalloc
from contextlib import closing
from pathlib import Path

import pytest

from storage.errors import ObjectDamaged, ObjectMissing, Unavailable
from storage.log import segment_reader
from storage.log.frames import FRAME_BYTES, HEADER_BYTES, encode_frame_head
from storage.log.high_watermark import HighWatermark, HighWatermarkWriter
from storage.log.segment import FlushPolicy
from storage.model import LogPosition, MessageId
from tests.pulsar_entries import PUBLISHED, encrypted, entry
from tests.segments import ENTRIES, NEVER, NEXT_OFFSET, PARTITION, PLACES, OneSegment, batch, flip, message, placed

# What it reads


@pytest.mark.slow
@pytest.mark.parametrize("index_spacing", [1, 100, 1 << 16])
@pytest.mark.parametrize("chunk_bytes", [16, 100, 1 << 21])
def test_from_every_offset(segment: OneSegment, index_spacing: int, chunk_bytes: int) -> None:
    size = segment.rolled(ENTRIES, index_spacing=index_spacing)
    reader = segment.reader(size, chunk_bytes=chunk_bytes)
    assert [placed(item) for item in reader.entries()] == PLACES
    ends = [offset for _, offset, _ in PLACES[1:]] + [NEXT_OFFSET]
    for start in range(990, NEXT_OFFSET + 3):
        expected = [place for place, end in zip(PLACES, ends, strict=True) if end > start]
        entries = reader.entries(start)
        assert [placed(item) for item in ([next(entries)] if len(expected) > 1 else entries)] == expected[:1]
    for start in (1000, 1077, NEXT_OFFSET - 1):
        assert placed(list(reader.entries(start))[-1]) == PLACES[-1]


def test_a_read_in_the_middle_reads_little(segment: OneSegment, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index is used: else each read of a following reader would cost as much as the segment is long."""
    size = segment.rolled([message(n, 1000) for n in range(2000)])
    read: list[int] = []
    real = os.preadv

    def record(descriptor: int, buffers: list[memoryview], position: int) -> int:
        read.append(position)
        return real(descriptor, buffers, position)

    monkeypatch.setattr(os, "preadv", record)
    reader = segment.reader(size, chunk_bytes=1 << 16)
    assert next(reader.entries(2500)).offset == 2500
    assert min(read) > size // 2
    read.clear()
    assert reader.last_position() == LogPosition(2999, MessageId(7, 1999, PARTITION))
    assert min(read) > size - (1 << 18)
    read.clear()
    assert reader.offset_of_entry(1500) == 2500
    assert min(read) > size // 2


def test_headers_are_handed_on(segment: OneSegment) -> None:
    size = segment.rolled([batch(3, 5)])
    (stored,) = segment.reader(size).entries()
    assert stored.header is not None
    assert (stored.header.messages, stored.header.sequence_id) == (3, 5)


@pytest.mark.parametrize("index_spacing", [1, 1 << 16])
def test_seeking_by_entry(segment: OneSegment, index_spacing: int) -> None:
    reader = segment.reader(segment.rolled(ENTRIES, index_spacing=index_spacing))
    for entry_id, offset, _ in PLACES:
        assert reader.offset_of_entry(entry_id) == offset
    assert reader.offset_of_entry(200) == reader.offset_of_entry(10**9) == NEXT_OFFSET


@pytest.mark.parametrize("index_spacing", [1, 200, 1 << 16])
def test_seeking_by_time_finds_the_first_that_is_not_older(segment: OneSegment, index_spacing: int) -> None:
    times = [PUBLISHED + (n * 37 % 50) + n // 10 for n in range(100)]
    size = segment.rolled([message(n, publish_time=time) for n, time in enumerate(times)], index_spacing=index_spacing)
    reader = segment.reader(size)
    for time in range(PUBLISHED - 1, PUBLISHED + 70):
        expected = next((1000 + n for n, published in enumerate(times) if published >= time), 1100)
        assert reader.offset_at_time(time) == expected


def test_the_last_message(segment: OneSegment) -> None:
    with segment.create() as writer:
        assert segment.reader().last_position() is None
        writer.append(message(0))
        assert segment.reader().last_position() == LogPosition(1000, MessageId(7, 0, PARTITION))
        writer.append(batch(4))
        last = segment.reader().last_position()
        assert last == LogPosition(1004, MessageId(7, 1, PARTITION, 3))
        writer.append(entry(encrypted(num_messages_in_batch=3)))
        assert segment.reader().last_position() == LogPosition(1005, MessageId(7, 2, PARTITION))


@pytest.mark.parametrize("size", [99, 100, 101, 1000, 300_000])
def test_an_entry_larger_than_a_chunk_makes_the_read_grow(segment: OneSegment, size: int) -> None:
    entries = [message(0), message(1, size), message(2), message(3, size), message(4)]
    end = segment.rolled(entries)
    assert [item.data for item in segment.reader(end, chunk_bytes=100).entries()] == entries


def test_memory_is_a_chunk_and_not_the_segment(segment: OneSegment) -> None:
    end = segment.rolled([message(n, 100_000) for n in range(300)])
    reader = segment.reader(end, chunk_bytes=1 << 20)
    tracemalloc.start()
    try:
        count = sum(1 for _ in reader.entries())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 300
    assert peak < 3 << 20


# An open segment


def test_of_an_open_segment_only_what_is_visible(segment: OneSegment) -> None:
    with segment.create(NEVER) as writer:
        for data in ENTRIES[:10]:
            writer.append(data)
        assert segment.visible() == ENTRIES[:10]
        reader = segment.reader()
        entries = reader.entries()
        next(entries)
        writer.append(ENTRIES[10])
        assert len(list(entries)) == 9  # as it was when it was asked
        assert len(list(reader.entries())) == 11


@pytest.mark.parametrize("damaged", [(10,), (74,), (10, 74), (0, 64)])
def test_damage_in_the_end_file_hides_nothing(
    segment: OneSegment, damaged: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    with segment.create() as writer:
        for data in ENTRIES:
            writer.append(data)
        for position in damaged:
            flip(segment.files.high_watermark, position)
        assert segment.visible() == ENTRIES
        counted = None if len(damaged) == 2 else writer.logical_bytes
        end = HighWatermark(writer.size, writer.size, len(ENTRIES), NEXT_OFFSET, counted)
        assert segment.reader().high_watermark() == end
        # Once, not at each read; if one copy is whole, it says it, and nothing is logged.
        assert caplog.text.count("is damaged; the frames of") == (1 if len(damaged) == 2 else 0)
        writer.append(message(0))
        caplog.clear()
        assert len(segment.visible()) == len(ENTRIES) + 1
        assert not caplog.text  # the writer has repaired it


def test_without_the_end_file_the_frames_say_what_can_be_read(segment: OneSegment) -> None:
    segment.rolled(ENTRIES)
    whole = segment.files.log.read_bytes()
    segment.files.high_watermark.unlink()
    segment.files.log.write_bytes(whole[:-1])
    assert segment.visible() == ENTRIES[:-1]  # what recovery leaves
    segment.files.log.write_bytes(whole[:HEADER_BYTES])
    assert segment.visible() == []


def test_damage_before_the_visible_end_is_told(segment: OneSegment) -> None:
    with segment.create() as writer:
        for data in ENTRIES[:3]:
            writer.append(data)
        flip(segment.files.log, HEADER_BYTES + FRAME_BYTES + len(ENTRIES[0]) + 20)
        with pytest.raises(ObjectDamaged, match=f"damaged at byte {HEADER_BYTES + FRAME_BYTES + len(ENTRIES[0])} "):
            segment.visible()


def test_an_end_that_is_taken_back_while_it_is_read_is_no_damage(
    segment: OneSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush failed under a policy that let it be seen before."""

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with segment.create() as writer:
        writer.append(ENTRIES[0])
    with segment.recover(FlushPolicy(None)) as writer:
        for data in ENTRIES[1:3]:
            writer.append(data)
        entries = segment.reader(chunk_bytes=64).entries()
        assert placed(next(entries)) == PLACES[0]
        monkeypatch.setattr(os, "fdatasync", fail)
        with pytest.raises(Unavailable):
            writer.finish()
        assert segment.files.log.stat().st_size == HEADER_BYTES + FRAME_BYTES + len(ENTRIES[0])
        assert list(entries) == []


# Damage


def test_every_byte_of_a_rolled_segment_that_changes_is_named(segment: OneSegment) -> None:
    entries = [message(0), batch(3), message(2, 10)]
    size = segment.rolled(entries)
    starts = [HEADER_BYTES]
    for data in entries:
        starts.append(starts[-1] + FRAME_BYTES + len(data))
    for position in range(size):
        flip(segment.files.log, position)
        frame = max((start for start in starts if start <= position), default=0)
        with pytest.raises(ObjectDamaged, match=f"{segment.files.log} is damaged at byte {frame}[ :]"):
            list(segment.reader(size).entries())
        flip(segment.files.log, position)
    assert [item.data for item in segment.reader(size).entries()] == entries


@pytest.mark.parametrize("missing", [1, 9, 30, 200])
def test_a_rolled_segment_that_is_too_short(segment: OneSegment, missing: int) -> None:
    size = segment.rolled(ENTRIES)
    os.truncate(segment.files.log, size - missing)
    with pytest.raises(ObjectDamaged, match=r"is damaged at byte \d+ .*: the file ends within a frame"):
        list(segment.reader(size).entries())
    with pytest.raises(ObjectDamaged):
        segment.reader(size).last_position()


def test_what_is_before_damage_is_handed_out(segment: OneSegment) -> None:
    size = segment.rolled(ENTRIES)
    flip(segment.files.log, size - 1)
    entries = segment.reader(size).entries()
    assert [placed(next(entries)) for _ in PLACES[:-1]] == PLACES[:-1]
    with pytest.raises(ObjectDamaged, match=r"\(entry 199, offset \d+\): the checksum of a frame is wrong: restore"):
        next(entries)


@pytest.mark.parametrize("missing", ["log", "end", "index"])
def test_a_file_that_is_missing(segment: OneSegment, missing: str) -> None:
    size = segment.rolled(ENTRIES, index_spacing=100)
    (segment.folder / f"{1000:020d}.{missing}").unlink()
    if missing == "log":
        with pytest.raises(ObjectMissing, match=r"00000000000000001000\.log, No such file"):
            list(segment.reader(size).entries())
    else:
        assert [placed(item) for item in segment.reader(size).entries(1100)][-1] == PLACES[-1]


def test_another_segment_under_this_name_is_told(segment: OneSegment) -> None:
    size = segment.rolled(ENTRIES)
    other = OneSegment(segment.folder, ledger_id=8)
    with pytest.raises(ObjectDamaged, match=r"is another one: ledger 7 from offset 1000 .* not ledger 8"):
        list(other.reader(size).entries())


def test_an_index_that_lies_is_not_believed(segment: OneSegment) -> None:
    """Its records are whole; the frames that they point to do not prove them."""
    size = segment.rolled(ENTRIES, index_spacing=100)
    lying = OneSegment(segment.folder / "lying")
    lying.rolled([batch(2, n, publish_time=PUBLISHED + 1) for n in range(300)], index_spacing=100)
    lying.files.index.replace(segment.files.index)
    reader = segment.reader(size)
    ends = [offset for _, offset, _ in PLACES[1:]] + [NEXT_OFFSET]
    for start in range(1000, NEXT_OFFSET, 7):
        expected = [place for place, end in zip(PLACES, ends, strict=True) if end > start]
        assert [placed(item) for item in reader.entries(start)] == expected


def test_a_disk_that_cannot_be_read_is_told(segment: OneSegment, monkeypatch: pytest.MonkeyPatch) -> None:
    size = segment.rolled(ENTRIES)

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(Unavailable, match=r"cannot read the segment .* Input/output error"):
        list(segment.reader(size).entries())


def test_a_length_beyond_all_limits_is_not_even_read(segment: OneSegment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a damaged one could cost as much memory as the segment has bytes."""
    size = segment.rolled([message(0, 10), message(1, 1000), message(2)])
    monkeypatch.setattr("storage.log.frame_reader.LARGEST_ENTRY", 500)
    with pytest.raises(ObjectDamaged, match=r"entry 1, .* is longer than the rest of the file, or than any"):
        list(segment.reader(size).entries())


def test_a_frame_that_holds_no_entry_is_told(segment: OneSegment) -> None:
    size = segment.rolled([message(0)])
    seed = segment.header.checksum
    with segment.files.log.open("ab") as file:
        file.write(encode_frame_head(seed, 1, 1001, b"no entry") + b"no entry")
    with pytest.raises(ObjectDamaged, match="checksum is right, but its entry is not valid: an entry cannot be taken"):
        list(segment.reader(size + FRAME_BYTES + 8).entries())


def test_an_end_beyond_the_file_is_damage(segment: OneSegment) -> None:
    segment.rolled(ENTRIES[:2])
    size = segment.files.log.stat().st_size
    with closing(HighWatermarkWriter(segment.files.high_watermark, segment.header.checksum)) as end:
        end.publish(HighWatermark(size + 100, size + 100, 3, 1003, 3))
    with pytest.raises(ObjectDamaged, match=f"at byte {size} "):
        segment.visible()


def test_a_segment_that_is_being_removed_is_missing_not_empty(
    segment: OneSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader then searches for the new place of its messages."""
    segment.rolled([message(0), message(1)])
    real = Path.unlink
    seen: list[int | None] = []

    def unlink(path: Path, missing_ok: bool = False) -> None:
        real(path, missing_ok)
        try:
            seen.append(len(segment.visible()))
        except ObjectMissing:
            seen.append(None)

    monkeypatch.setattr(Path, "unlink", unlink)
    segment.files.remove()
    assert seen == [None] * 3


def test_a_segment_that_is_removed_while_it_is_opened_is_missing_not_empty(
    segment: OneSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment.rolled([message(0), message(1)])
    monkeypatch.setattr(segment_reader, "check_header", lambda *_: segment.files.remove())
    with pytest.raises(ObjectMissing, match="cannot read the segment"):
        segment.visible()
