"""Errors as a user sees them, in one line: what happened, to what, and what to do."""

from __future__ import annotations

import errno
import sys
import traceback

import typer

from api.cli.kit.stderr import say
from storage.errors import CompactorError, WrongStore

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def report(error: Exception, about: str = "", program: str = "compactor") -> None:
    """Report an error on stderr, with `--debug` its traceback. `about`: the topic, added unless the error names it."""
    if "--debug" in sys.argv:
        say("".join(traceback.format_exception(error)).rstrip())
    line = describe(error, program)
    say(line if about in line else line.replace(f"{program}: ", f"{program}: {about}: ", 1))


def describe(error: Exception, program: str = "compactor") -> str:
    """Return an error in one line: what happened, to what, what to do. A help text keeps its lines."""
    if isinstance(error, WrongStore):
        adopt = "`compactor store adopt` shows which store and database belong together, and binds them"
        return f"{program}: {' '.join(error.message.split())}: check the URLs of store and database; {adopt}"
    if isinstance(error, CompactorError):
        return f"{program}: {' '.join(str(error).split())}"
    if isinstance(error, typer.TyperException):
        return _usage(error, program)
    if isinstance(error, OSError) and error.strerror:
        what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        remedy = "free some space" if error.errno in _FULL else "check the disk and permissions"
        return f"{program}: {what}: {remedy}, then try again"
    text = " ".join(str(error).split())[:300]
    return f"{program}: unexpected {type(error).__name__}: {text}: try again with --debug and report it"


def _usage(error: typer.TyperException, program: str) -> str:
    """Return the line of an error that typer reported."""
    message = getattr(error, "format_message", error.__str__)()
    if "\n" in message:  # the help of a command without arguments
        return str(message)
    command = getattr(getattr(error, "ctx", None), "command_path", program)
    what = message.removesuffix(".").replace("Value error, ", "")
    return f"{program}: {what[:1].lower()}{what[1:]}: see `{command} --help`"
