"""What a program of ours does around its commands: options in both places, errors in one line, exit codes, signals.

Both programs are run by `run`. Data goes to stdout, talk to stderr; a reader of stdout who has enough is no error.
"""

from __future__ import annotations

import io
import logging
import os
import select
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

import typer

from api.cli.kit import exit_codes
from api.cli.kit.failures import tell
from api.cli.kit.stderr import abandon_output, say
from storage.errors import InvalidInput


def run(app: typer.Typer, name: str, options: Sequence[str], flags: Sequence[str], interrupted: str) -> NoReturn:
    """The program `name`. Exits with a code of `exit_codes`.

    `options` and `flags`: those that may also stand after the command, with and without a value. `interrupted`: what
    Ctrl-C and SIGTERM leave behind.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that is not UTF-8 must not end a listing
    signal.signal(signal.SIGTERM, _terminate)
    logging.getLogger().addHandler(logging.NullHandler())  # or Py4J tells of a Ctrl-C with a traceback
    try:
        if f"_{name}_complete".replace("-", "_").upper() in os.environ:
            app(prog_name=name)  # a shell asks how a command line may go on
        # Not `app()`: that takes a broken pipe for an error.
        command = typer.main.get_command(app)
        with command.make_context(name, hoist(sys.argv[1:], name, options, flags)) as context:
            command.invoke(context)
        sys.stdout.flush()
    except typer.Exit as end:
        sys.exit(end.exit_code)
    except KeyboardInterrupt:
        say(f"{name}: interrupted: {interrupted}")
        sys.exit(exit_codes.INTERRUPTED)
    except Exception as error:
        enough = isinstance(error, BrokenPipeError) and _nobody_reads_output()
        if isinstance(error, OSError):
            abandon_output()
        if enough:
            sys.exit(exit_codes.OK)
        tell(error, program=name)
        sys.exit(exit_codes.of(error))
    sys.exit(exit_codes.OK)


def hoist(arguments: Sequence[str], name: str, options: Sequence[str], flags: Sequence[str]) -> list[str]:
    """Move global options that stand after the command before it, so that both places work."""
    front: list[str] = []
    rest: list[str] = []
    position = 0
    while position < len(arguments):
        one = arguments[position]
        if one == "--":
            rest += arguments[position:]
            break
        if one in flags or one.startswith(tuple(f"{option}=" for option in options)):
            front.append(one)
        elif one in options:
            if position + 1 == len(arguments):
                raise InvalidInput(f"the option {one} needs a value", f"see `{name} --help`")
            front += arguments[position : position + 2]
            position += 1
        else:
            rest.append(one)
        position += 1
    return front + rest


def _terminate(*_: object) -> None:
    """End as after Ctrl-C: leases are given back and a run is recorded as failed, not left to its heartbeat's end."""
    raise KeyboardInterrupt("ended by SIGTERM")


def _nobody_reads_output() -> bool:
    """Whether the broken pipe is our standard output (`compactor read … | head`), and not some other connection."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return bool(poll.poll(0))
    except (OSError, ValueError):
        return False
