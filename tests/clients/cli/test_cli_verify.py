"""`compactor verify`: what scripts depend on. What it finds is in tests/faults/test_verify_seeded.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.cli.kit import exit_codes
from tests.program import Program

pytestmark = pytest.mark.usefixtures("in_process_engine")


def test_a_clean_topic(program: Program, history: str) -> None:
    program("compact-topic", "--topic", history).done()
    result = program("verify", history).done()
    assert "No differences" in result.stdout
    assert "6 raw rows" in result.stdout
    report = program.json("verify", history)
    assert (report["total"], report["differences"], report["counts"], report["unchecked"]) == (0, [], {}, [])
    assert report["checked"]["keys"] == 4
    assert report["checked"]["part_rows_compared_with_raw"] == 2


def test_a_topic_that_was_never_compacted(program: Program, history: str) -> None:
    report = program.json("verify", history)
    assert report["compacted_ledger"] is None
    assert report["checked"]["raw_rows"] == 6
    assert "no compacted ledger" in program("verify", history).done().stdout


def test_a_lost_object_is_named(program: Program, history: str, folder: Path) -> None:
    program("compact-topic", "--topic", history).done()
    (part,) = (folder.parent / "data" / "objects").glob("topics/*/runs/*/part-*")
    part.unlink()
    result = program("verify", history)
    assert result.exit_code == exit_codes.DATA_LOSS
    assert result.stderr.count("\n") == 1
    assert any(line.startswith("damaged: ") and part.name in line for line in result.stdout.splitlines())
    assert "without one, `compactor cursor delete persistent://public/default/t __compaction`" in result.stderr


@pytest.mark.parametrize("suffix", [".parquet", ".index"])
def test_where_raw_is_lost_the_compacted_ledger_is_kept(
    program: Program, history: str, folder: Path, suffix: str
) -> None:
    """R8: it may have the only copy."""
    (lost,) = (folder.parent / "data" / "objects").glob(f"topics/*/ledgers/*{suffix}")
    program("compact-topic", "--topic", history).done()
    whole = lost.read_bytes()
    for left in (None, whole[:-1], whole[:-1] + b"?"):
        lost.unlink()
        if left is not None:
            lost.write_bytes(left)
        result = program("verify", history)
        assert result.exit_code == exit_codes.DATA_LOSS
        assert "cursor delete" not in result.stderr
        assert "restore the objects from a backup; keep the cursor __compaction" in result.stderr
        lost.write_bytes(whole)


def test_without_a_compacted_ledger_no_cursor_is_advised(program: Program, history: str, folder: Path) -> None:
    (lost,) = (folder.parent / "data" / "objects").glob("topics/*/ledgers/*.parquet")
    lost.unlink()
    assert program("verify", history).stderr.endswith("restore the objects from a backup\n")
