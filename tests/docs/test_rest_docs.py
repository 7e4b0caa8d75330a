"""docs/rest.md against the application: every route, no other, and examples that call something.

Calls that are not offered have a page of their own, docs/rest-not-offered.md. When it fails, it says which calls a page
should have, or has too many.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from api.app import ROUTERS
from api.rest.brokers.unsupported_features import ROWS, AnswerWithoutValue, UnsupportedRoute

NOT_OFFERED = (Path(__file__).resolve().parents[2] / "docs" / "rest-not-offered.md").read_text(encoding="utf-8")
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "rest.md").read_text(encoding="utf-8")
_HIDDEN = re.compile(r"^/(docs|openapi|redoc)")
SECTIONS = re.findall(r"^## (?!Where)(.+)$", PAGE, re.MULTILINE)


def routes() -> list[str]:
    """Verb and path of every route."""
    return [
        f"{verb} {path}"
        for router in ROUTERS
        for route in router.routes
        if route.include_in_schema and not _HIDDEN.match(path := route.path)  # type: ignore[attr-defined]
        for verb in sorted(route.methods - {"HEAD"})  # type: ignore[attr-defined]
    ]


def test_the_page_has_every_route_once_and_no_other() -> None:
    answer = re.findall(r"^\| `([A-Z]+ /[^`]*)` \|", PAGE.split("## Where the answers differ")[0], re.MULTILINE)
    known = [route.replace("{rest:path}", "{rest}").replace(":path}", "}") for route in routes()]
    assert sorted(answer) == sorted(known)


@pytest.mark.parametrize("section", SECTIONS)
def test_every_group_has_an_example_that_calls_one_of_its_routes(section: str) -> None:
    text = PAGE.split(f"## {section}\n", 1)[1].split("\n## ", 1)[0]
    patterns = [
        re.compile(f"{verb} " + re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path)))
        for verb, path in re.findall(r"^\| `([A-Z]+) (/[^`]*)` \|", text, re.MULTILINE)
    ]
    calls = re.findall(r"^curl (?:-N )?(?:-X ([A-Z]+) )?\"?\$URL(/[^\s\"?]*)", text, re.MULTILINE)
    assert calls
    for verb, path in calls:
        assert any(pattern.fullmatch(f"{verb or 'GET'} {path}") for pattern in patterns), f"{verb} {path}"


def line(row: UnsupportedRoute) -> str:
    """A row as the page of calls that are not offered has it."""
    by_answer: dict[str, list[str]] = {}
    for verb, answer in row.answers.items():
        message = answer.value if isinstance(answer, AnswerWithoutValue) else f"`{json.dumps(answer)}`"
        by_answer.setdefault(message, []).append(verb)
    answers = "; ".join(f"{', '.join(verbs)}: {message}" for message, verbs in by_answer.items())
    return f"| `{row.path}` | {answers} | {row.feature} |"


def test_the_page_of_calls_that_are_not_offered_is_their_table() -> None:
    assert [item for item in NOT_OFFERED.splitlines() if item.startswith("| `/")] == [line(row) for row in ROWS]
