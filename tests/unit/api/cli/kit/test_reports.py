"""Reports for people, from documents."""

from __future__ import annotations

import base64
import io
import json
import sys

import pytest

from api.cli.kit.output import show
from api.cli.kit.reports import run_summary, show_runs, trim_lines, verify_lines
from api.cli.kit.shared_arguments import OutputFormat
from api.reports import verify_document
from compactor.verify.findings import Difference, DifferenceKind, Report
from storage.model import TopicName

TRIM = {
    "topic": "persistent://public/default/t",
    "dry_run": False,
    "start_offset": 0,
    "first_offset": 12,
    "ledgers": [{"ledger": 1, "logical_bytes": 2048}],
    "held": None,
    "tail_left": None,
}
HELD = {"cursor": "slow", "mark_delete": "1:11:-1", "mark_delete_offset": 11, "ledgers": [{}], "start_offset": 30}
RUN = {
    "run": 7,
    "topic": "t",
    "state": "RUNNING",
    "phase": "phase two",
    "tasks_done": 3,
    "tasks_total": 8,
    "started_at": 1_900_000_000_000,
    "heartbeat_at": 1_900_000_000_000,
    "heartbeat_expired": True,
    "finished_at": None,
    "compacted_ledger": None,
    "error": None,
    "statistics": {},
}


def test_a_trim_and_what_holds_the_rest() -> None:
    begins = "of persistent://public/default/t; its raw messages begin at offset 12"
    assert trim_lines(TRIM) == [f"Trimmed 1 ledger, 2.0 KiB, {begins}"]
    assert trim_lines(TRIM | {"dry_run": True})[0].startswith("Would trim 1 ledger, ")
    hold = trim_lines(TRIM | {"held": HELD})[1]
    assert hold.startswith("The cursor slow, at 1:11:-1 (offset 11), holds 1 more ledger back: let its reader")
    never: dict[str, object] = {
        "cursor": "__compaction",
        "mark_delete": None,
        "mark_delete_offset": None,
        "ledgers": [],
    }
    hold = trim_lines(TRIM | {"held": HELD | never})[1]
    assert hold == (
        "The cursor __compaction, which has acknowledged nothing, holds the messages up to offset 29 back: "
        "compact the topic first, or give --force"
    )
    remaining = "What is not sealed yet was left: the log is elsewhere"
    assert trim_lines(TRIM | {"tail_left": "the log is elsewhere"})[1] == remaining


def test_a_verification_with_differences_of_keys_that_are_no_text() -> None:
    finding = (
        Difference(DifferenceKind.MISSING, "an object", "it is not there", 7, b"\xff", "0" * 32),
        Difference(DifferenceKind.EXTRA, "a part", "a part has too many rows", None, None, "1" * 32),
    )
    counts = {DifferenceKind.MISSING: 1, DifferenceKind.EXTRA: 5}
    document = verify_document(
        Report(TopicName.parse("t"), 3, 1, {"raw rows": 1_000}, ("raw is trimmed",), finding, counts)
    )
    assert base64.b64decode(document["differences"][0]["key_base64"]) == b"\xff"
    assert document["differences"][0]["key"] == "\N{REPLACEMENT CHARACTER}"
    assert verify_lines(document) == [
        "Topic persistent://public/default/t",
        "Compacted ledger 3, generation 1",
        "Checked: 1,000 raw rows",
        "Not checked: raw is trimmed",
        "missing: key b'\\xff', offset 7, it is not there (an object)",
        f"extra: a key of hash {'1' * 32}, a part has too many rows",
        "… and 4 more",
        "6 differences: 5 extra, 1 missing",
    ]


def test_a_run_in_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    show_runs([RUN, RUN | {"state": "SUCCESS", "tasks_total": None, "statistics": {"tasks": 9}}], OutputFormat.TABLE)
    header, running, result = (line for line in capsys.readouterr().out.splitlines() if line.startswith(("┃", "│")))
    assert [cell.strip() for cell in header.split("┃")[1:7]] == [
        "run",
        "topic",
        "state",
        "phase",
        "tasks",
        "started at",
    ]
    assert "3/8" in running
    assert "2030-03-17T17:46:40Z, expired" in running
    assert "│ 9 " in result


def test_json_where_the_terminal_is_not_utf8(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, "ascii", errors="backslashreplace", write_through=True))
    show(["🎉"], OutputFormat.JSON)
    assert json.loads(out.getvalue()) == ["🎉"]


def test_documents_for_people_and_for_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    document = {"a": {"b": None, "c": True}, "d": [{"e": 1}], "f": [], "at": 5, "x_at": 1_900_000_000_000}
    show(document)
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines == {"a.b": "-", "a.c": "true", "d[0].e": "1", "f": "-", "at": "5", "x_at": "2030-03-17T17:46:40Z"}
    show([], columns=("topic",))
    assert "topic" in capsys.readouterr().out, "the header alone"
    show(["x", "y"])
    show(None)
    assert capsys.readouterr().out == "x\ny\n"
    show(None, OutputFormat.JSON)
    show(["ü"], OutputFormat.JSON)
    assert capsys.readouterr().out == 'null\n[\n  "ü"\n]\n'


@pytest.mark.parametrize(
    ("took", "words"), [(0, "0 ms"), (45, "45 ms"), (999, "999 ms"), (1_000, "1.0 s"), (61_500, "61.5 s")]
)
def test_a_run_of_less_than_a_second_took_milliseconds(took: int, words: str) -> None:
    run = {
        "run": 7, "topic": "t", "state": "SUCCESS", "started_at": 5_000, "finished_at": 5_000 + took,
        "statistics": {}, "compacted_ledger": None,
    }  # fmt: skip
    assert run_summary(run) == f"run 7 of t: SUCCESS in {words}"
