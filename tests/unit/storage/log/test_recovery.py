"""Recovery: a segment that a dead writer left is cut at its last whole frame, and never before what was flushed."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from storage.errors import ObjectDamaged, ObjectMissing
from storage.log.frames import FRAME_BYTES, HEADER_BYTES, LARGEST_ENTRY, encode_frame_head
from storage.log.high_watermark import HighWatermark, HighWatermarkWriter, read_high_watermark
from storage.log.segment import FlushPolicy
from storage.model import LogPosition, MessageId
from tests.segments import NEVER, PARTITION, OneSegment, batch, flip, message, placed, places

ENTRIES = [message(0), batch(3), message(2, 30), batch(2), message(4)]
NEXT_OFFSET = 1008


def left_open(segment: OneSegment, entries: list[bytes] = ENTRIES, flushed: int | None = None) -> bytes:
    """The file of a writer that died after these; `flushed`: that many entries were, all if None."""
    with segment.create() as closed:
        for data in entries[:flushed]:
            closed.append(data)
    with segment.recover(NEVER) as writer:
        for data in entries[len(entries[:flushed]) :]:
            writer.append(data)
        writer.abandon()
    return segment.files.log.read_bytes()


def torn(entry_id: int, offset: int, data: bytes, keep: int) -> Callable[[OneSegment], bytes]:
    def frame(segment: OneSegment) -> bytes:
        return (encode_frame_head(segment.header.checksum, entry_id, offset, data) + data)[:keep]

    return frame


TAILS: dict[str, Callable[[OneSegment], bytes]] = {
    "nothing": lambda _: b"",
    "one zero": lambda _: b"\x00",
    "zeros": lambda _: bytes(5000),
    "nonsense": lambda _: bytes(n * 151 % 256 for n in range(3000)),
    "a length beyond all limits": lambda _: b"\xff\xff\xff\xff\x01" + bytes(20),
    "a torn head": torn(5, NEXT_OFFSET, message(5), 8),
    "a head alone": torn(5, NEXT_OFFSET, message(5), FRAME_BYTES),
    "all but one byte": torn(5, NEXT_OFFSET, message(5), FRAME_BYTES + len(message(5)) - 1),
    "a frame of another entry id": torn(6, NEXT_OFFSET, message(5), 1000),
    "a frame of another offset": torn(5, NEXT_OFFSET + 1, message(5), 1000),
    "a frame of another segment": lambda segment: torn(5, NEXT_OFFSET, message(5), 1000)(
        OneSegment(segment.folder, ledger_id=8)
    ),
    "the same frames again": lambda segment: segment.files.log.read_bytes()[HEADER_BYTES:],
}


@pytest.mark.parametrize("tail", TAILS)
def test_a_bad_tail_is_cut(segment: OneSegment, tail: str) -> None:
    whole = left_open(segment)
    bad = TAILS[tail](segment)
    segment.files.log.write_bytes(whole + bad)
    with segment.recover() as writer:
        assert segment.files.log.read_bytes() == whole
        assert [placed(entry) for entry in segment.reader().entries()] == places(ENTRIES)
        assert writer.append(message(5)).first == LogPosition(NEXT_OFFSET, MessageId(7, 5, PARTITION))
    assert [placed(entry) for entry in segment.reader().entries()] == places([*ENTRIES, message(5)])


@pytest.mark.parametrize("end_file", ["flushed", "nothing flushed", "missing", "torn"])
def test_cut_at_any_byte(segment: OneSegment, end_file: str) -> None:
    """Flushed entries are never cut off in silence; others are kept as far as they are whole."""
    whole = left_open(segment, flushed=3)
    flushed = HEADER_BYTES + sum(FRAME_BYTES + len(data) for data in ENTRIES[:3])
    for length in range(HEADER_BYTES, len(whole) + 1, 1 if end_file == "flushed" else 3):
        segment.files.log.write_bytes(whole[:length])
        segment.files.high_watermark.unlink(missing_ok=True)
        if end_file != "missing":
            with closing(HighWatermarkWriter(segment.files.high_watermark, segment.header.checksum)) as end:
                if end_file == "flushed":
                    end.publish(HighWatermark(flushed, len(whole), 5, NEXT_OFFSET, 0))
                elif end_file == "nothing flushed":
                    end.publish(HighWatermark(HEADER_BYTES, len(whole), 5, NEXT_OFFSET, 0))
        if end_file == "torn":
            os.truncate(segment.files.high_watermark, 50)
        if end_file == "flushed" and length < flushed:
            with pytest.raises(ObjectDamaged, match=f"{segment.files.log} is damaged at byte .* up to {flushed}, "):
                segment.recover()
            assert segment.files.log.read_bytes() == whole[:length]  # nothing was touched
            continue
        with segment.recover():
            entries = segment.visible()
        assert entries == ENTRIES[: len(entries)]
        kept = HEADER_BYTES + sum(FRAME_BYTES + len(data) for data in entries)
        assert kept <= length
        assert len(entries) == 5 or length < kept + FRAME_BYTES + len(ENTRIES[len(entries)])
        assert segment.files.log.read_bytes() == whole[:kept]


def test_damage_in_what_was_flushed_is_named_and_nothing_is_cut(segment: OneSegment) -> None:
    whole = left_open(segment)
    second = HEADER_BYTES + FRAME_BYTES + len(ENTRIES[0])
    for position in range(second, second + FRAME_BYTES + len(ENTRIES[1])):
        segment.files.log.write_bytes(whole)
        flip(segment.files.log, position)
        with pytest.raises(
            ObjectDamaged,
            match=rf"{segment.files.log} is damaged at byte {second}: .*; bytes up to {len(whole)}, 5 entries, were "
            "flushed, and only 1 entries can be read: restore the file from a backup, or accept the loss",
        ):
            segment.recover()
        assert segment.files.log.stat().st_size == len(whole)
        content = segment.damaged()
        assert content is not None, "it held all that was flushed, whatever can be read of it"
        assert (content.entries, content.last_offset, content.size) == (5, NEXT_OFFSET - 1, len(whole))
        assert content.last_message_id == MessageId(7, 4, PARTITION)
        assert content.messages == NEXT_OFFSET - 1000


def test_what_a_damaged_segment_held_is_what_can_be_read_where_nothing_says_more(segment: OneSegment) -> None:
    whole = left_open(segment)
    flip(segment.files.log, len(whole) - 1)
    segment.files.high_watermark.unlink()
    content = segment.damaged()
    assert content is not None
    assert content.entries == 4
    segment.files.log.write_bytes(whole[: HEADER_BYTES + 3])
    assert segment.damaged() is None


def test_the_files_that_help_are_durable_after_a_cut(segment: OneSegment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older ones may come back after a power cut, and speak of bytes that are gone."""
    whole = left_open(segment, flushed=4)
    with segment.files.log.open("r+b") as file:
        file.truncate(len(whole) - 1)
    durable: dict[str, bytes] = {}
    real = os.fsync

    def record(descriptor: int) -> None:
        real(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        durable[path.suffix] = path.read_bytes()

    monkeypatch.setattr(os, "fsync", record)
    segment.recover().close()
    assert set(durable) >= {".log", ".end", ".index"}
    segment.files.log.write_bytes(durable[".log"])
    segment.files.high_watermark.write_bytes(durable[".end"])
    segment.files.index.write_bytes(durable[".index"])
    with segment.recover() as writer:
        assert writer.entries == 4


def test_what_an_old_end_does_not_know_is_kept(segment: OneSegment) -> None:
    """It is never flushed, so after a power cut it may be older than the file."""
    left_open(segment, flushed=1)
    with segment.recover() as writer:
        assert writer.entries == 5
        end = read_high_watermark(segment.files.high_watermark, segment.header.checksum)
        assert end == HighWatermark(writer.size, writer.size, 5, NEXT_OFFSET, writer.logical_bytes)


def test_the_end_of_an_earlier_life_is_not_believed(segment: OneSegment) -> None:
    left_open(OneSegment(segment.folder, ledger_id=6), ENTRIES * 3)
    old = segment.files.high_watermark.read_bytes()
    left_open(segment)
    segment.files.high_watermark.write_bytes(old)
    assert segment.visible() == ENTRIES
    with segment.recover() as writer:
        assert writer.entries == 5


def test_the_index_is_made_anew(segment: OneSegment) -> None:
    entries = [message(n) for n in range(100)]
    left_open(segment, entries)
    with segment.recover(index_spacing=200) as writer:
        index = segment.files.index.read_bytes()
        assert len(index) > 28 * 10
        for n in range(100, 200):
            writer.append(message(n))
    whole = segment.files.index.read_bytes()
    assert whole.startswith(index)
    segment.files.index.write_bytes(b"nonsense" * 1000)
    segment.recover(index_spacing=200).close()
    assert segment.files.index.read_bytes() == whole
    with segment.files.log.open("r+b") as file:
        file.truncate(5000)
    segment.files.high_watermark.unlink()
    with segment.recover(index_spacing=200) as cut:
        assert whole.startswith(segment.files.index.read_bytes())
        assert segment.files.index.stat().st_size < len(whole)
        assert segment.reader().last_position() == LogPosition(
            cut.next_offset - 1, MessageId(7, cut.entries - 1, PARTITION)
        )


@pytest.mark.parametrize("position", [0, 9, 20, 30, 40, 45, 60])
def test_a_damaged_header_is_named(segment: OneSegment, position: int) -> None:
    left_open(segment)
    flip(segment.files.log, position)
    with pytest.raises(ObjectDamaged, match=f"{segment.files.log} is damaged at byte 0: "):
        segment.recover()


def test_another_segment_is_not_recovered(segment: OneSegment) -> None:
    left_open(segment)
    with pytest.raises(ObjectDamaged, match="is another one: ledger 7 "):
        OneSegment(segment.folder, ledger_id=8).recover()


def test_a_file_that_is_gone_is_missing_and_not_made(segment: OneSegment) -> None:
    with pytest.raises(ObjectMissing, match="cannot recover the segment"):
        segment.recover()
    assert not segment.files.log.exists()


def test_a_lost_lock_leaves_nothing_open(segment: OneSegment) -> None:
    left_open(segment)
    before = len(os.listdir("/proc/self/fd"))
    flip(segment.files.log, HEADER_BYTES)
    with pytest.raises(ObjectDamaged):
        segment.recover()
    assert len(os.listdir("/proc/self/fd")) == before


def test_recovered_again_and_again(segment: OneSegment) -> None:
    segment.create().close()
    for n in range(10):
        size = segment.files.log.stat().st_size
        with segment.files.log.open("ab") as file:
            file.write(b"torn" * n)
        with segment.recover(FlushPolicy(1 + n % 3)) as writer:
            assert segment.files.log.stat().st_size == size
            writer.append(batch(2, n))
    assert [placed(entry) for entry in segment.reader().entries()] == places([batch(2, n) for n in range(10)])


def test_an_entry_larger_than_the_limit_of_now_is_kept(segment: OneSegment) -> None:
    """The limit is for what comes; what was acknowledged under another one stays."""
    left_open(segment, [message(0, 10_000)])
    with segment.recover(max_entry_bytes=100) as writer:
        assert writer.entries == 1
    assert LARGEST_ENTRY > 10_000
