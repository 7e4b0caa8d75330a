"""docs/architecture.md: its tree is the real one, and every file that it names exists."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def modules_of_the_page() -> dict[str, list[str]]:
    """Return the modules that the page's tree names, by folder."""
    (tree,) = re.findall(r"```\n(storage/.*?)```", PAGE, re.DOTALL)
    by_folder, folder = defaultdict[str, list[str]](list), ""
    for line in tree.splitlines():
        if line.startswith(" "):
            by_folder[folder] += line.split()
        else:
            folder = line.split()[0].rstrip("/")
    return dict(by_folder)


def real() -> dict[str, set[str]]:
    by_folder = defaultdict[str, set[str]](set)
    for package in ("storage", "compactor", "api"):
        for file in (ROOT / package).rglob("*.py"):
            if file.stem != "__init__":
                by_folder[file.parent.relative_to(ROOT).as_posix()].add(file.stem)
    return dict(by_folder)


def test_the_tree_is_the_real_one() -> None:
    assert {folder: sorted(names) for folder, names in modules_of_the_page().items()} == {
        folder: sorted(names) for folder, names in real().items()
    }


def test_what_the_page_names_is_there() -> None:
    named = set(re.findall(r"\b(?:api|compactor|storage|tests)/[a-z_/]+\.py\b", PAGE))
    assert len(named) > 20
    assert sorted(name for name in named if not (ROOT / name).is_file()) == []
