"""docs/rest.md against the application: every route, no other, and examples that call something.

When it fails, it says which calls the page should have, or has too many.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from api.app import ROUTERS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "rest.md").read_text(encoding="utf-8")
_HIDDEN = re.compile(r"^/(docs|openapi|redoc)")
SECTIONS = re.findall(r"^## (?!Where)(.+)$", PAGE, re.MULTILINE)


def routes() -> list[str]:
    """Verb and path of every route."""
    return [
        f"{verb} {path}"
        for router in ROUTERS
        for route in router.routes
        if not _HIDDEN.match(path := route.path)  # type: ignore[attr-defined]
        for verb in sorted(route.methods - {"HEAD"})  # type: ignore[attr-defined]
    ]


def test_the_page_has_every_route_once_and_no_other() -> None:
    told = re.findall(r"^\| `([A-Z]+ /[^`]*)` \|", PAGE.split("## Where the answers differ")[0], re.MULTILINE)
    known = [one.replace("{rest:path}", "{rest}").replace(":path}", "}") for one in routes()]
    assert sorted(told) == sorted(known)


@pytest.mark.parametrize("section", SECTIONS)
def test_every_group_has_an_example_that_calls_one_of_its_routes(section: str) -> None:
    text = PAGE.split(f"## {section}\n", 1)[1].split("\n## ", 1)[0]
    patterns = [
        re.compile(f"{verb} " + re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path)))
        for verb, path in re.findall(r"^\| `([A-Z]+) (/[^`]*)` \|", text, re.MULTILINE)
    ]
    calls = re.findall(r"^curl (?:-N )?(?:-X ([A-Z]+) )?\"?\$C(/[^\s\"?]*)", text, re.MULTILINE)
    assert calls
    for verb, path in calls:
        assert any(pattern.fullmatch(f"{verb or 'GET'} {path}") for pattern in patterns), f"{verb} {path}"
