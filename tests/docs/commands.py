"""The commands, options and exit codes of both programs, with which their documentation is compared."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from api.cli.kit import exit_codes


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each command that does something and is shown, by its words."""
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name, inner in command.commands.items():
        if not inner.hidden:
            yield from leaves(inner, (*path, name))


def options(command: Any) -> set[str]:
    """The options of a command, but help; where Pulsar has a name in camel case, too, the other one."""
    names = {name for parameter in command.params for name in parameter.opts if name.startswith("-")}
    return {name for name in names if name == name.lower()} - {"--help", "-h"}


def assert_exit_codes_are_documented(section: str) -> None:
    """The table of a page, and the help of both programs, have each code once."""
    codes = {value for name, value in vars(exit_codes).items() if name.isupper() and isinstance(value, int)}
    assert [int(row) for row in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)] == sorted(codes)
    assert {int(code) for code in re.findall(r"(?:^|; |: )(\d+) ", exit_codes.HELP)} == codes
