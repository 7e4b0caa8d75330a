"""tools/prose.py and tools/commit_subjects.py see what they are for."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


def tool(name: str) -> ModuleType:
    """Return a tool as a module: tools/ is a folder of scripts, not a package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    assert violations(monkeypatch, tmp_path, f"Found {chr(97)}t hand.\n", "page.md") == [("words", "at hand")]


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
