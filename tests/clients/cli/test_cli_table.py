"""`compactor topics table`: where the Iceberg table of a topic is, and why there is none."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from storage.errors import Unavailable
from tests.program import Program
from tests.tables import by_pyiceberg


def test_the_table_of_a_topic_is_printed_and_read(program: Program, folder: Path) -> None:
    (folder / "lines.jsonl").write_text('{"key": "a", "value": "1"}\n{"key": "b", "value": "2"}\n')
    program("import", "users", "lines.jsonl").done()
    program("topics", "table", "users").refused(3, "table.enabled is false")
    program("topics", "policies", "users", "--set", "table.enabled=true").done()
    program("topics", "table", "users").refused(3, "it was never compacted")
    program("compact-topic", "--topic", "users").done()
    reported = program("topics", "table", "users").done()
    (uri,) = reported.lines
    assert "2 rows, up to offset 1" in reported.stderr
    assert [row[4:6] for row in by_pyiceberg(uri)] == [(b"a", b"1"), (b"b", b"2")]
    document = program("topics", "table", "users", "--output", "json").done().json
    ledger_id = document.pop("snapshot")
    assert document == {
        "topic": "persistent://public/default/users",
        "metadata": uri,
        "format_version": 3,
        "snapshots": [ledger_id],
        "generation": 1,
        "horizon_offset": 1,
        "rows": 2,
        "current": True,
        "table_error": None,
    }


@pytest.mark.slow
def test_a_table_that_stays_behind_says_why(program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "lines.jsonl").write_text('{"key": "a", "value": "1"}\n')
    program("import", "users", "lines.jsonl").done()
    program("topics", "policies", "users", "--set", "table.enabled=true").done()
    program("compact-topic", "--topic", "users").done()
    monkeypatch.setattr("storage.table.table_writer.write_table", mock.Mock(side_effect=Unavailable("down", "wait")))
    program("import", "users", "lines.jsonl").done()
    assert "its Iceberg table stays as it was" in program("compact-topic", "--topic", "users").done().stderr
    reported = program("topics", "table", "users").done()
    assert "down" in reported.stderr
    assert program("topics", "table", "users", "--output", "json").done().json["current"] is False
