"""Tables on terminals: as a table where they fit, else a few lines a row."""

from __future__ import annotations

import pytest

from api.cli.kit import tables

ROWS: list[tuple[str, ...]] = [("persistent://public/default/a-topic-with-a-long-name", "12"), ("b", "7")]


def printed(
    width: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    columns: tuple[str, ...] = ("topic", "messages"),
    rows: list[tuple[str, ...]] = ROWS,
) -> list[str]:
    monkeypatch.setattr(tables, "is_terminal", lambda _: True)
    monkeypatch.setenv("COLUMNS", str(width))
    tables.print_table(columns, rows)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_a_table_that_fits_is_one(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(100, capsys, monkeypatch)
    assert len(lines) == 3 + len(ROWS) + 1
    assert ROWS[0][0] in lines[3]


def test_a_list_of_topics_is_a_line_a_topic_on_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """N18: seven lines a topic."""
    columns = ("topic", "messages", "unsealed", "size", "compacted")
    rows = [("persistent://public/default/orders", "1,234,567", "24,000", "123.4 MiB", "1234567")]
    lines = printed(80, capsys, monkeypatch, columns, rows)
    assert [line.split() for line in lines[:1]] == [list(columns)]
    assert len(lines) == 2


def test_one_that_does_not_fit_is_its_first_field_and_a_line_or_more_of_the_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    columns, others = ("topic", "messages", "unsealed", "error"), ("12", "7", "no space is left on the device")
    rows = [(ROWS[0][0], *others), ("b", *others)]
    assert printed(40, capsys, monkeypatch, columns, rows) == [
        line
        for name, *_ in rows
        for line in (name, "  messages 12  unsealed 7", "  error no space is left on the device")
    ]
