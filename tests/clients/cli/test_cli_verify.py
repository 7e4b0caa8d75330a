"""`compactor verify`: what scripts depend on. What it finds is in tests/faults/test_verify_seeded.py."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from api.cli.kit import exit_codes
from api.reports import verify_document as document
from compactor.verify.findings import Difference, DifferenceKind
from compactor.verify.report import Report
from storage.model import TopicName
from tests.clients.cli.conftest import Compactor

pytestmark = pytest.mark.usefixtures("in_process_engine")


def damage(folder: Path, pattern: str) -> str:
    """Lose an object of the embedded store; its name."""
    (found,) = (folder.parent / "data" / "objects").glob(pattern)
    found.unlink()
    return found.name


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


@pytest.mark.parametrize("pattern", ["topics/*/runs/*/part-*", "topics/*/compacted/*", "topics/*/ledgers/*.index"])
def test_a_lost_object_is_named(compactor_command: Compactor, history: str, folder: Path, pattern: str) -> None:
    compactor_command("compact-topic", "--topic", history).done()
    lost = damage(folder, pattern)
    found = compactor_command("verify", history)
    assert found.exit_code == exit_codes.DATA_LOSS
    assert found.stderr.count("\n") == 1
    assert any(line.startswith("damaged: ") and lost in line for line in found.stdout.splitlines())


def test_a_key_that_is_not_text_is_shown_as_bytes_too() -> None:
    one = Difference(DifferenceKind.MISSING, "an object", "it is not there", 7, b"\xff", "0" * 32)
    shown = document(Report(TopicName.parse("t"), 3, 1, {"raw rows": 1}, (), (one,), {DifferenceKind.MISSING: 1}))
    (difference,) = shown["differences"]
    assert base64.b64decode(difference["key_base64"]) == b"\xff"
    assert (difference["kind"], difference["offset"], difference["key"]) == ("missing", 7, "\N{REPLACEMENT CHARACTER}")
    assert shown["checked"] == {"raw_rows": 1}
