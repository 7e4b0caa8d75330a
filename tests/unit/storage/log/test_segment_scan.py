"""The scan of a segment's file: it shows all that is there, however damaged the file is."""

from __future__ import annotations

import os

import pytest

from storage.errors import ObjectMissing
from storage.log.frames import FRAME_BYTES, HEADER_BYTES
from storage.log.segment_dump import FrameState, ScannedFrame, SegmentScan
from tests.segments import ENTRIES, PLACES, OneSegment, flip, message


def scanned(segment: OneSegment) -> list[ScannedFrame]:
    with SegmentScan(segment.files.log) as scan:
        frames = list(scan.frames())
        position = HEADER_BYTES
        for frame in frames:  # without gaps, whatever the file is
            assert frame.position == position
            position += frame.length + (0 if frame.state is FrameState.DAMAGED else FRAME_BYTES)
        assert position == max(scan.size, HEADER_BYTES)
        return frames


def summary(frames: list[ScannedFrame]) -> list[tuple[FrameState, int | None, int | None]]:
    return [(frame.state, frame.entry_id, frame.offset) for frame in frames]


VALID = [(FrameState.VALID, entry_id, offset) for entry_id, offset, _ in PLACES]
DAMAGED = (FrameState.DAMAGED, None, None)


def test_a_scan_of_a_good_segment(segment: OneSegment) -> None:
    segment.rolled(ENTRIES)
    frames = scanned(segment)
    assert summary(frames) == VALID
    assert [frame.data for frame in frames] == ENTRIES
    assert all(frame.header is not None and frame.problem is None for frame in frames)
    with SegmentScan(segment.files.log) as scan:
        assert (scan.header, scan.problem) == (segment.header, None)


def frame_positions(entries: list[bytes]) -> list[int]:
    positions = [HEADER_BYTES]
    for data in entries:
        positions.append(positions[-1] + FRAME_BYTES + len(data))
    return positions


def test_a_scan_goes_on_behind_a_damaged_entry(segment: OneSegment) -> None:
    segment.rolled(ENTRIES)
    at = frame_positions(ENTRIES)
    flip(segment.files.log, at[51] - 1)
    frames = scanned(segment)
    assert summary(frames) == [*VALID[:50], DAMAGED, *VALID[51:]]
    assert frames[50].problem == "the checksum of a frame is wrong"


def test_a_scan_shows_an_entry_whose_frame_alone_is_damaged(segment: OneSegment) -> None:
    segment.rolled(ENTRIES)
    flip(segment.files.log, frame_positions(ENTRIES)[50] + 6)
    expected = (FrameState.ENTRY_VALID, *PLACES[50][:2])
    assert summary(scanned(segment)) == [*VALID[:50], expected, *VALID[51:]]


@pytest.mark.parametrize("index_spacing", [100, 1 << 20])
@pytest.mark.parametrize("damage", ["length", "version", "two frames", "zeros"])
def test_a_scan_finds_the_next_entry(segment: OneSegment, index_spacing: int, damage: str) -> None:
    """The index tells where it is in the topic; without it only the entry's own checksum is left."""
    segment.rolled(ENTRIES, index_spacing=index_spacing)
    at = frame_positions(ENTRIES)
    lost = 1
    if damage == "length":
        flip(segment.files.log, at[50] + 2)
    elif damage == "version":
        flip(segment.files.log, at[50] + 4)
    else:
        lost = 2
        with segment.files.log.open("r+b") as file:
            file.seek(at[50])
            length = at[52] - at[50]
            file.write(bytes(length) if damage == "zeros" else bytes(n * 7 % 256 for n in range(length)))
    frames = scanned(segment)
    assert summary(frames)[:51] == [*VALID[:50], DAMAGED]
    assert [frame.data for frame in frames[51:]] == ENTRIES[50 + lost :]
    assert frames[-1].state is (FrameState.VALID if index_spacing == 100 else FrameState.UNPLACED)
    if index_spacing == 100:
        assert summary(frames)[-140:] == VALID[-140:]
    else:
        assert {frame.state for frame in frames[51:]} == {FrameState.UNPLACED}


@pytest.mark.parametrize("tail", [b"\x00" * 5000, b"\xff" * 3, os.urandom(3000), b"\x0e\x01" * 2000, message(5)[:-3]])
def test_a_scan_shows_a_torn_end(segment: OneSegment, tail: bytes) -> None:
    segment.rolled(ENTRIES)
    with segment.files.log.open("ab") as file:
        file.write(tail)
    frames = scanned(segment)
    assert summary(frames) == [*VALID, DAMAGED]
    assert frames[-1].length == len(tail)


@pytest.mark.parametrize("position", range(0, HEADER_BYTES, 5))
@pytest.mark.parametrize("name", ["00000000000000001000.log", "lost.found"])
def test_a_scan_without_a_header_shows_the_entries(segment: OneSegment, position: int, name: str) -> None:
    """Their place is known if the header's checksum and the file's name are left."""
    segment.rolled(ENTRIES)
    flip(segment.files.log, position)
    path = segment.files.log.rename(segment.folder / name)
    with SegmentScan(path) as scan:
        assert scan.header is None
        assert scan.problem
        frames = list(scan.frames())
    assert [frame.data for frame in frames] == ENTRIES
    if name == "lost.found" or 44 <= position < 48:
        assert {frame.state for frame in frames} == {FrameState.UNPLACED}
    else:
        assert summary(frames) == VALID


@pytest.mark.parametrize("data", [b"", b"x", bytes(64), os.urandom(5000), bytes(5000)])
def test_a_scan_of_what_is_no_segment(segment: OneSegment, data: bytes) -> None:
    segment.files.log.write_bytes(data)
    with SegmentScan(segment.files.log) as scan:
        assert scan.header is None
        assert [frame.state for frame in scan.frames()] == ([FrameState.DAMAGED] if len(data) > 64 else [])


def test_a_scan_of_no_file(segment: OneSegment) -> None:
    with pytest.raises(ObjectMissing):
        SegmentScan(segment.files.log)
