"""The visible end: two slots, each on its own, and nothing from another life of the file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from storage.log.visible_end import (
    VisibleEnd,
    VisibleEndWriter,
    WritingProcess,
    read_visible_end,
    read_writing_process,
)

SEED = 5
ONE, TWO, THREE = (VisibleEnd(100 * n, 110 * n, n, 1000 + n) for n in (1, 2, 3))


def test_the_newest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "end"
    with VisibleEndWriter(path, SEED) as writer:
        for end in (ONE, TWO, THREE, ONE):
            writer.publish(end)
            assert read_visible_end(path, SEED) == end
    with VisibleEndWriter(path, SEED) as writer:
        assert read_visible_end(path, SEED) == ONE  # until there is something to say
        writer.publish(TWO)
        assert read_visible_end(path, SEED) == TWO


def test_the_file_byte_by_byte(tmp_path: Path) -> None:
    path = tmp_path / "end"
    with VisibleEndWriter(path, SEED) as writer:
        writer.publish(ONE)
        writer.publish(VisibleEnd(100, 256, 2, 1003))
    data = path.read_bytes()
    assert len(data) == 256
    numbers = [int.from_bytes(data[at : at + 8], "big") for at in range(0, 40, 8)]
    assert numbers == [2, 100, 256, 2, 1003]
    assert int.from_bytes(data[64:72], "big") == 1
    assert data[128:132] == os.getpid().to_bytes(4, "big")


@pytest.mark.parametrize("position", range(44))
def test_a_torn_slot_leaves_the_one_before(tmp_path: Path, position: int) -> None:
    path = tmp_path / "end"
    with VisibleEndWriter(path, SEED) as writer:
        for end in (ONE, TWO, THREE):
            writer.publish(end)
    data = bytearray(path.read_bytes())
    data[64 + position] ^= 0x80  # the third is in the odd slot
    path.write_bytes(data)
    assert read_visible_end(path, SEED) == TWO


def test_a_reader_that_is_overtaken_twice_in_one_read_reads_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would take the segment for empty."""
    path = tmp_path / "end"
    with VisibleEndWriter(path, SEED) as writer:
        for end in (ONE, TWO, THREE):
            writer.publish(end)
    whole = path.read_bytes()
    torn = bytearray(whole)
    for at in (20, 84):
        torn[at] ^= 0x80
    reads = iter([bytes(torn), bytes(torn), whole])
    monkeypatch.setattr(Path, "read_bytes", lambda _: next(reads))
    assert read_visible_end(path, SEED) == THREE
    monkeypatch.undo()
    path.write_bytes(torn)
    assert read_visible_end(path, SEED) is None


def test_the_end_of_another_life_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "end"
    with VisibleEndWriter(path, SEED + 1) as writer:
        writer.publish(ONE)
    assert read_visible_end(path, SEED) is None


@pytest.mark.parametrize("data", [b"", bytes(256), b"\xff" * 256, b"short"])
def test_nonsense_says_nothing_and_is_written_over(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "end"
    path.write_bytes(data)
    assert read_visible_end(path, SEED) is None
    assert read_writing_process(path) is None
    with VisibleEndWriter(path, SEED) as writer:
        writer.publish(ONE)
    assert read_visible_end(path, SEED) == ONE


def test_who_writes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_writing_process(tmp_path / "end") is None
    assert read_visible_end(tmp_path / "end", SEED) is None
    monkeypatch.setattr("socket.gethostname", lambda: "a-host-" + "x" * 300)
    VisibleEndWriter(tmp_path / "end", SEED).close()
    assert read_writing_process(tmp_path / "end") == WritingProcess(os.getpid(), ("a-host-" + "x" * 300)[:119])
