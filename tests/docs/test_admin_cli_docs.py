"""docs/admin-cli.md against the program: nothing undocumented, nothing documented that is not there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from api.cli.admin.client_config import CLIENT_CONF, CONFIG_VARIABLE, DEFAULT_URL, VARIABLES
from api.cli.admin.main import app
from api.cli.main import app as main_app
from tests.docs.commands import assert_exit_codes_are_documented, leaves, options

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "admin-cli.md").read_text(encoding="utf-8")


PROGRAM: Any = typer.main.get_command(app)
COMMANDS = dict(leaves(PROGRAM))
ROWS = dict(re.findall(r"^\| `([a-z]+ [^`]*|gc[^`]*)` \| (.+) \|$", PAGE, re.MULTILINE))


def command_of(words: list[str]) -> tuple[str, ...]:
    return next((path for path in COMMANDS if tuple(words[: len(path)]) == path), ())


def test_every_command_has_a_row_and_every_row_is_a_command() -> None:
    rows = [command_of(row.split()) for row in ROWS]
    assert sorted(rows) == sorted(COMMANDS)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_a_row_has_the_arguments_and_options_of_its_command(path: tuple[str, ...]) -> None:
    [row] = [row for row in ROWS if command_of(row.split()) == path]
    assert set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", row)) == options(COMMANDS[path])
    for parameter in COMMANDS[path].params:
        if not parameter.opts[0].startswith("-"):
            assert parameter.metavar in row
    assert COMMANDS[path].help.split("\n\n")[0].split() == ROWS[row].split()


def test_examples_are_commands_with_options_that_exist() -> None:
    lines = re.findall(r"^ {4,6}compactor-admin (.+)$", PAGE, re.MULTILINE)
    assert len(lines) > 8
    for words in map(shlex.split, lines):
        path = command_of(words)
        assert path, words
        used = {word.partition("=")[0] for word in words if word.startswith("-")}
        assert used <= options(COMMANDS[path]) | options(PROGRAM), words


def test_global_options_and_settings_are_documented() -> None:
    completion = {"--install-completion", "--show-completion"}
    for option in options(PROGRAM) - completion:
        assert f"| `{option}" in PAGE
    for name, variable in VARIABLES.items():
        assert re.search(rf"^\| `--{name} .*\| `{variable}` \| `{name}` \|", PAGE, re.MULTILINE)
    assert f"`{CONFIG_VARIABLE}`" in PAGE
    assert f"`{DEFAULT_URL}`" in PAGE
    assert all(f"`{key}`" in PAGE for key in CLIENT_CONF)


def test_every_exit_code_is_documented_as_for_the_other_program() -> None:
    section = PAGE.partition("\n## Exit codes\n")[2]
    assert_exit_codes_are_documented(section)
    assert section in (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert PROGRAM.epilog == main_app.info.epilog
