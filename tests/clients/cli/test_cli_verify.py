"""`compactor verify`: what scripts depend on. What it finds is in tests/faults/test_verify_seeded.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from api.cli.kit import exit_codes
from tests.clients.cli.conftest import Compactor

pytestmark = pytest.mark.usefixtures("in_process_engine")


def test_a_clean_topic(compactor_command: Compactor, history: str) -> None:
    compactor_command("compact-topic", "--topic", history).done()
    shown = compactor_command("verify", history).done()
    assert "No differences" in shown.stdout
    assert "6 raw rows" in shown.stdout
    report = json.loads(compactor_command("verify", history, "--output", "json").done().stdout)
    assert (report["total"], report["differences"], report["counts"], report["unchecked"]) == (0, [], {}, [])
    assert report["checked"]["keys"] == 4
    assert report["checked"]["part_rows_compared_with_raw"] == 2


def test_a_topic_that_was_never_compacted(compactor_command: Compactor, history: str) -> None:
    report = json.loads(compactor_command("verify", history, "--output", "json").done().stdout)
    assert report["compacted_ledger"] is None
    assert report["checked"]["raw_rows"] == 6
    assert "no compacted ledger" in compactor_command("verify", history).done().stdout


def test_an_unknown_topic(compactor_command: Compactor) -> None:
    compactor_command("verify", "nosuch").refused(exit_codes.NOT_FOUND, "persistent://public/default/nosuch")


def test_a_lost_object_is_named(compactor_command: Compactor, history: str, folder: Path) -> None:
    compactor_command("compact-topic", "--topic", history).done()
    (part,) = (folder.parent / "data" / "objects").glob("topics/*/runs/*/part-*")
    part.unlink()
    found = compactor_command("verify", history)
    assert found.exit_code == exit_codes.DATA_LOSS
    assert found.stderr.count("\n") == 1
    assert any(line.startswith("damaged: ") and part.name in line for line in found.stdout.splitlines())
