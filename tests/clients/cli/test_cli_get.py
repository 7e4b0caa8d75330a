"""`compactor get`: what it prints. Which message is the newest of a key is the unit tests' of key lookups."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.cli.conftest import BASE64, write_lines
from tests.program import Program

NO_VALUE = 8


@pytest.fixture
def users(program: Program, in_process_engine: None, folder: Path) -> str:
    """alice has a value, bob was deleted, "" is a key, one key is not text; compacted, then appended to."""
    lines = [
        {"key": "alice", "value": "0"},
        {"key": "bob", "value": "1"},
        {"key": "", "value": "empty"},
        {"key": "alice", "value": "2", "event_time": 5, "publish_time": 9, "properties": {"p": "q"}},
        {"key": "bob", "value": None},
    ]
    write_lines(folder / "a.jsonl", *lines)
    write_lines(folder / "b.jsonl", {"key": "/wAB", "value": "//4="})
    program("import", "users", "a.jsonl").done()
    program("import", "users", "b.jsonl", *BASE64).done()
    program("compact-topic", "--topic", "users").done()
    write_lines(folder / "c.jsonl", {"key": "carol", "value": "new"})
    program("import", "users", "c.jsonl").done()
    return "users"


def test_get_shows_the_message_that_read_shows(program: Program, users: str) -> None:
    shown = program("get", users, "alice").done()
    assert shown.stderr == ""
    lines = program("read", users, "--limit", "5").done().stdout.splitlines()
    (expected,) = (line for line in lines if '"value":"2"' in line)
    assert shown.stdout == expected + "\n"
    assert shown.messages[0]["properties"] == {"p": "q"}
    table = program("get", users, "alice", "--output", "table").done().stdout.splitlines()
    assert [cell.strip() for cell in table[3].strip("│").split("│")][2:] == ["alice", "2", "9", "5"]
    assert program("get", users, "").done().messages[0]["value"] == "empty"


def test_keys_and_values_that_are_no_text(program: Program, users: str) -> None:
    (message,) = program("get", users, "/wAB", *BASE64).done().messages
    assert (message["key"], message["value"]) == ("/wAB", "//4=")
    program("get", users, "/wAB", *BASE64[:2]).refused(2, "is not UTF-8 text", "--value-encoding base64")
    program("get", users, "not base64!", *BASE64).refused(2, "is not base64", "--key-encoding")


def test_no_value_is_an_exit_code_of_its_own(program: Program, users: str) -> None:
    for key in ("bob", "nobody"):
        refused = program("get", users, key)
        refused.refused(NO_VALUE, f"'{key}'", "persistent://public/default/users", "no value")
    program("get", "nosuch", "k").refused(3, "nosuch")
