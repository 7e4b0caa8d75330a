"""The scripts of tools/ that `make check` runs: each reports the violations of its rule."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from tests.tool_scripts import tool


def violations(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str, name: str = "module.py") -> list[Any]:
    prose = tool("prose")
    monkeypatch.setattr(prose, "ROOT", folder)
    (folder / name).write_text(text)
    return [(place.kind, place.text) for place in prose.places(folder / name)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"""Whether it works."""\n', [("starts", "Whether")]),
        ('class A:\n    """Who calls."""\n', [("starts", "Who")]),
        ('async def a():\n    """By what name."""\n', [("starts", "By")]),
        ('def a(given): """Return it."""\n', [("names", "given")]),
        ("for one in (): pass\n", [("names", "one")]),
        ("class A:\n    there: int\n", [("names", "there")]),
        ("self.said = 1\n", [("names", "said")]),
        ("match x:\n    case [*gone]: pass\n", [("names", "gone")]),
        (f'"""A lease is {"given"}\nup."""\n', [("words", "given\nup")]),
        ('"""Return the record that was found, and one more."""\nfound.append(one)\n', []),
    ],
)
def test_a_violation_is_counted_by_kind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, expected: list[tuple[str, str]]
) -> None:
    assert violations(monkeypatch, tmp_path, text) == expected


def test_phrases_of_pages_are_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert violations(monkeypatch, tmp_path, f"Found {chr(97)}t hand.\n", "page.md") == [("words", f"{chr(97)}t hand")]


@pytest.mark.parametrize(
    ("subject", "count"),
    [
        ("gateway: split Session from Connection", 0),
        ("api/broker, docs: name the layers", 0),
        ("split Session from Connection", 1),
        ("gateway: split Session.", 1),
        ("gateway: " + "x" * 64, 1),
        ("fixup! gateway: split", 1),
    ],
)
def test_subjects_have_an_area_and_a_length(subject: str, count: int) -> None:
    assert len(tool("commit_subjects").faults(subject)) == count


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("log._writer.flush()", ["_writer"]),
        ("from storage.log import _frame", ["_frame"]),
        ('monkeypatch.setattr(log, "_writer", None)', ["_writer"]),
        ('mock.patch("storage.log.Log._writer")', ["_writer"]),
        ("self._writer = super()._writer", []),
        ("from attrs import _frame", []),
        ('log.__exit__(None); print("_writer")', []),
    ],
)
def test_uses_of_private_names_are_reported(text: str, names: list[str]) -> None:
    private_members = tool("private_members")
    assert [name for _, name in private_members.used(ast.parse(text))] == names
    assert bool(names) <= bool(private_members.USE.search(text))


def test_the_private_names_of_the_product_are_its_own() -> None:
    text = "def _frame(): ...\nself._writer = session._java\nif _DAYS: ...\nclass _Log: ...\n_rest: int = 3"
    assert tool("private_members").BOUND.findall(text) == ["_frame", "_writer", "_DAYS", "_Log", "_rest"]
