"""The high watermark: two copies, each on its own, and nothing from another segment of the same name."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from storage.log.high_watermark import (
    HighWatermark,
    HighWatermarkWriter,
    WritingProcess,
    read_high_watermark,
    read_writing_process,
)
from tests.segments import flip, write_version_2

SEED = 5
ONE, TWO, THREE = (HighWatermark(100 * n, 110 * n, n, 1000 + n, 90 * n) for n in (1, 2, 3))


def test_the_newest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "end"
    with closing(HighWatermarkWriter(path, SEED)) as writer:
        for end in (ONE, TWO, THREE, ONE):
            writer.publish(end)
            assert read_high_watermark(path, SEED) == end
    with closing(HighWatermarkWriter(path, SEED)) as writer:
        assert read_high_watermark(path, SEED) == ONE  # until there is something to say
        writer.publish(TWO)
        assert read_high_watermark(path, SEED) == TWO


def test_the_file_byte_by_byte(tmp_path: Path) -> None:
    path = tmp_path / "end"
    with closing(HighWatermarkWriter(path, SEED)) as writer:
        writer.publish(ONE)
        writer.publish(HighWatermark(100, 256, 2, 1003, 180))
    data = path.read_bytes()
    assert len(data) == 256
    numbers = [int.from_bytes(data[at : at + 8], "big") for at in range(0, 48, 8)]
    assert numbers == [2, 100, 256, 2, 1003, 180]
    assert data[48] == 3
    assert data[:53] == data[64:117]
    assert data[128:132] == os.getpid().to_bytes(4, "big")


@pytest.mark.parametrize("position", [*range(53), *range(64, 117)])
def test_a_flipped_bit_takes_nothing_back(tmp_path: Path, position: int) -> None:
    path = tmp_path / "end"
    with closing(HighWatermarkWriter(path, SEED)) as writer:
        for end in (ONE, TWO, THREE):
            writer.publish(end)
    flip(path, position, 0x80)
    assert read_high_watermark(path, SEED) == THREE


@pytest.mark.parametrize("position", range(53))
def test_a_writer_that_is_killed_in_a_copy_leaves_what_was_before(tmp_path: Path, position: int) -> None:
    path = tmp_path / "end"
    with closing(HighWatermarkWriter(path, SEED)) as writer:
        writer.publish(TWO)
        before = path.read_bytes()
        writer.publish(THREE)
    after = path.read_bytes()
    path.write_bytes(after[:position] + before[position:])  # in the first copy
    assert read_high_watermark(path, SEED) == TWO
    path.write_bytes(after[: 64 + position] + before[64 + position :])  # in the second
    assert read_high_watermark(path, SEED) == THREE


def test_a_file_of_version_2_is_read_and_written_over(tmp_path: Path) -> None:
    path = tmp_path / "end"
    write_version_2(path, SEED, TWO)
    flip(path, 64)
    assert read_high_watermark(path, SEED) == replace(TWO, logical_bytes=None)
    with closing(HighWatermarkWriter(path, SEED)) as writer:
        writer.publish(ONE)
    assert read_high_watermark(path, SEED) == ONE
    flip(path, 64)
    assert read_high_watermark(path, SEED) == ONE


def test_a_reader_that_is_overtaken_twice_in_one_read_reads_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would take the segment for empty."""
    path = tmp_path / "end"
    with closing(HighWatermarkWriter(path, SEED)) as writer:
        for end in (ONE, TWO, THREE):
            writer.publish(end)
    whole = path.read_bytes()
    torn = bytearray(whole)
    for at in (20, 84):
        torn[at] ^= 0x80
    reads = iter([bytes(torn), bytes(torn), whole])
    monkeypatch.setattr(Path, "read_bytes", lambda _: next(reads))
    assert read_high_watermark(path, SEED) == THREE
    monkeypatch.undo()
    path.write_bytes(torn)
    assert read_high_watermark(path, SEED) is None


def test_the_end_of_another_life_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "end"
    with closing(HighWatermarkWriter(path, SEED + 1)) as writer:
        writer.publish(ONE)
    assert read_high_watermark(path, SEED) is None


@pytest.mark.parametrize("data", [b"", bytes(256), b"\xff" * 256, b"short"])
def test_nonsense_says_nothing_and_is_written_over(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "end"
    path.write_bytes(data)
    assert read_high_watermark(path, SEED) is None
    assert read_writing_process(path) is None
    with closing(HighWatermarkWriter(path, SEED)) as writer:
        writer.publish(ONE)
    assert read_high_watermark(path, SEED) == ONE


def test_who_writes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_writing_process(tmp_path / "end") is None
    assert read_high_watermark(tmp_path / "end", SEED) is None
    monkeypatch.setattr("socket.gethostname", lambda: "a-host-" + "x" * 300)
    HighWatermarkWriter(tmp_path / "end", SEED).close()
    assert read_writing_process(tmp_path / "end") == WritingProcess(os.getpid(), ("a-host-" + "x" * 300)[:119])
