"""Tables on terminals: as a table where they fit, else a block a row."""

from __future__ import annotations

import pytest

from api.cli.kit import tables

ROWS = [("persistent://public/default/a-topic-with-a-long-name", "12"), ("b", "7")]


def printed(width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(tables, "is_terminal", lambda _: True)
    monkeypatch.setenv("COLUMNS", str(width))
    tables.print_table(("topic", "messages"), ROWS)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_a_table_that_fits_is_one(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(100, capsys, monkeypatch)
    assert len(lines) == 3 + len(ROWS) + 1
    assert ROWS[0][0] in lines[3]


def test_one_that_does_not_is_a_block_a_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert printed(40, capsys, monkeypatch) == [
        f"topic     {ROWS[0][0]}",
        "messages  12",
        "",
        "topic     b",
        "messages  7",
    ]
