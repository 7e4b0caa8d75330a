"""Reports of errors to the user, in one line: the event, its object, and the remedy."""

from __future__ import annotations

import sys
import traceback
from typing import Any

import typer

from api.cli.kit.stderr import say
from api.formats.validation_text import problem_text
from api.observability.error_text import one_line


def report_error(error: Exception, about: str = "", program: str = "compactor") -> None:
    """Report an error on stderr, with `--debug` its traceback. `about`: the topic, added unless the error names it."""
    if "--debug" in sys.argv:
        say("".join(traceback.format_exception(error)).rstrip())
    line = describe_error(error, program)
    say(line if about in line else line.replace(f"{program}: ", f"{program}: {about}: ", 1))


def describe_error(error: Exception, program: str = "compactor") -> str:
    """Return an error as one line that begins with the program's name. Typer's help, which is an error too, keeps its
    lines."""
    return (
        _usage_error_line(error, program)
        if isinstance(error, typer.TyperException)
        else f"{program}: {one_line(error)}"
    )


def _usage_error_line(error: typer.TyperException, program: str) -> str:
    """Return an error of typer about the use of a command as one line, with a hint to its help."""
    cause: Any = error.__cause__
    if isinstance(error, typer.BadParameter) and hasattr(cause, "errors"):  # pydantic's, whose import takes a while
        error.message = problem_text(cause.errors()[0]) or error.message
    message = getattr(error, "format_message", error.__str__)()
    if "\n" in message:  # the help, which typer raises for a command without arguments
        return str(message)
    command = getattr(getattr(error, "ctx", None), "command_path", program)
    what = message.removesuffix(".").replace("Value error, ", "")
    return f"{program}: {what[:1].lower()}{what[1:]}: see `{command} --help`"
