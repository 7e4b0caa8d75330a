"""docs/cli.md and README.md against the program: nothing undocumented, nothing documented that is not there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any, get_args

import pytest
import typer

from api.cli.admin import maintenance_commands
from api.cli.kit.program import global_options
from api.cli.kit.shared_arguments import ResetName, StateName
from api.cli.local.produce_command import CompressionName
from api.cli.main import app
from api.settings.settings import CONFIG_VARIABLE, SETTINGS
from compactor.maintenance.grace import LEAST_GRACE_MS
from storage.ledger.rows import CompressionType
from storage.metadata.records import RunState
from storage.positions import OffsetReset
from tests.docs.commands import assert_exit_codes_are_documented, leaves, options

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")


PROGRAM: Any = typer.main.get_command(app)
COMMANDS = dict(leaves(PROGRAM))
GLOBAL_OPTIONS = global_options(PROGRAM).with_value


def section(title: str) -> str:
    """The text below a heading, up to the next one."""
    match = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert match, f"docs/cli.md has no section {title!r}"
    return match[1]


def examples(text: str) -> list[list[str]]:
    """The indented `compactor …` lines that are no synopsis, as words after `compactor`."""
    lines = re.findall(r"^ {4}(?:.*\| *|[A-Z_0-9]+=\S+ +)*(?:\S*/)?compactor +(.*)$", text, re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines if "[" not in line]


def command_of(words: list[str]) -> tuple[str, ...] | None:
    """The command that these words begin with."""
    return next((path for path in COMMANDS if tuple(words[: len(path)]) == path), None)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_and_option_is_documented(path: tuple[str, ...]) -> None:
    text = section(f"compactor {' '.join(path)}")
    documented = set(re.findall(r"--[a-z][a-z0-9-]+", text)) - set(GLOBAL_OPTIONS)
    assert documented == options(COMMANDS[path])
    synopsis = text.lstrip("\n").split("\n\n")[0]
    for option in options(COMMANDS[path]):
        assert re.search(rf"[\[ ]{option}\b", synopsis), f"{option} is not in the synopsis"
    assert any(command_of(words) == path for words in examples(text)), "there is no example"


def test_no_command_is_documented_that_is_not_there() -> None:
    titles = re.findall(r"^## compactor (.+)$", PAGE, re.MULTILINE)
    assert {tuple(title.split()) for title in titles} == set(COMMANDS)


@pytest.mark.parametrize("page", ["docs/cli.md", "README.md"])
def test_examples_are_commands_with_options_that_exist(page: str) -> None:
    known = options(PROGRAM)
    for words in examples((ROOT / page).read_text(encoding="utf-8")):
        path = command_of(words)
        if path is None:
            assert words[0] in known | {"--help"}, f"{page}: compactor {' '.join(words)}"
            continue
        used = {word.partition("=")[0] for word in words if word.startswith("--") and word != "--"}
        assert used <= known | options(COMMANDS[path]) | {"--help"}, f"{page}: compactor {' '.join(words)}"


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_choice_is_documented(path: tuple[str, ...]) -> None:
    text = section(f"compactor {' '.join(path)}")
    for choices in filter(None, (parameter.type_descriptor.choices for parameter in COMMANDS[path].params)):
        assert f"{'|'.join(choices)}]" in text


def test_every_global_option_is_a_setting_documented_with_its_variable_and_default() -> None:
    """The other settings have no flag: docs/settings.md has them all (test_settings_docs.py)."""
    text = section("Settings and global options")
    rows = {
        line.split("|")[1].split("`")[1].split()[0]: line.split("|") for line in text.splitlines() if "| `--" in line
    }
    helps = {parameter.opts[0]: parameter.help for parameter in PROGRAM.params}
    assert set(rows) - {"--help"} == options(PROGRAM) - {"--show-completion"}
    for option in GLOBAL_OPTIONS:
        setting = SETTINGS.get("compaction.engine" if option == "--engine" else option.removeprefix("--"))
        variable = setting.environment_variable if setting else CONFIG_VARIABLE
        assert rows[option][2].strip() == f"`{variable}`"
        assert f"[{variable}]" in helps[option]
        if setting and setting.default:
            assert f"`{setting.default}`" in rows[option][3]
    documented = set(re.findall(r"COMPACTOR_[A-Z0-9_]+", PAGE))
    assert documented <= {CONFIG_VARIABLE, *(setting.environment_variable for setting in SETTINGS.values())}


def test_every_exit_code_is_documented() -> None:
    assert_exit_codes_are_documented(section("Exit codes"))


def test_names_of_states_starts_and_compressions_are_those_of_what_knows_them() -> None:
    """The command line repeats them so that its help needs no Arrow."""
    assert get_args(StateName) == tuple(RunState)
    assert get_args(ResetName) == tuple(OffsetReset)
    assert [name.upper() for name in get_args(CompressionName)] == [codec.name for codec in CompressionType]


def test_both_programs_have_the_same_least_grace() -> None:
    assert maintenance_commands.LEAST_GRACE_MS == LEAST_GRACE_MS
