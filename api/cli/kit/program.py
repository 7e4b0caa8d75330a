"""Frame of both programs around their commands: global options, errors, exit codes, signals.

Global options may precede or follow the command. Data goes to stdout, messages to stderr. An error is one line. A
stdout that its reader has closed is no error.
"""

from __future__ import annotations

import io
import logging
import os
import select
import signal
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import typer

from api.cli.kit import exit_codes
from api.cli.kit.failures import report_error
from api.cli.kit.stderr import discard_output, say
from storage.errors import InvalidInput


class GlobalOptions(NamedTuple):
    """The names of a program's global options: those with a value, and flags without one."""

    with_value: list[str]
    flags: list[str]


def create_program(name: str, about: str, exit_codes_help: str) -> typer.Typer:
    """Create a typer program without commands. `about`, `exit_codes_help`: the begin and the end of its help."""
    return typer.Typer(
        name=name,
        help=about,
        epilog=exit_codes_help,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def add_group(app: typer.Typer, name: str, about: str) -> typer.Typer:
    """Add a group of commands to a program, and return it."""
    commands = typer.Typer(help=about, no_args_is_help=True, rich_markup_mode=None)
    app.add_typer(commands, name=name)
    return commands


def run_program(app: typer.Typer, name: str, interrupt_message: str) -> NoReturn:
    """Run the program `name`. Exits with a code of `exit_codes`.

    `interrupt_message`: a text for the user about the state after Ctrl-C or SIGTERM.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that is not UTF-8 must not end a listing
    signal.signal(signal.SIGTERM, _raise_interrupt)
    logging.getLogger().addHandler(logging.NullHandler())  # else Py4J logs a traceback at Ctrl-C
    try:
        if f"_{name}_complete".replace("-", "_").upper() in os.environ:
            app(prog_name=name)  # a shell asks for completions of a command line
        # Not `app()`: it reports a broken pipe as an error.
        command = typer.main.get_command(app)
        with command.make_context(name, hoist_global_options(sys.argv[1:], name, global_options(command))) as context:
            command.invoke(context)
        sys.stdout.flush()
    except typer.Exit as end:
        sys.exit(end.exit_code)
    except KeyboardInterrupt:
        say(f"{name}: interrupted: {interrupt_message}")
        sys.exit(exit_codes.INTERRUPTED)
    except Exception as error:
        closed = isinstance(error, BrokenPipeError) and _is_stdout_closed()
        if isinstance(error, OSError):
            discard_output()
        if closed:
            sys.exit(exit_codes.OK)
        refusal = _non_utf8_argument_error(error) or error
        report_error(refusal, program=name)
        sys.exit(exit_codes.exit_code_of(refusal))
    sys.exit(exit_codes.OK)


def global_options(command: Any) -> GlobalOptions:
    """Return the names of a program's global options. `command`: the click command of the program."""
    options = GlobalOptions([], [])
    for parameter in command.params:
        options[getattr(parameter, "is_flag", False)].extend(parameter.opts)
    return options


def hoist_global_options(arguments: Sequence[str], program: str, options: GlobalOptions) -> list[str]:
    """Return the arguments with the global options that follow the command moved to the front, so that both places
    work. Raises InvalidInput."""
    front: list[str] = []
    remaining: list[str] = []
    following = iter(arguments)
    for argument in following:
        if argument == "--":
            remaining += [argument, *following]
        elif argument in options.flags or argument.startswith(tuple(f"{option}=" for option in options.with_value)):
            front.append(argument)
        elif argument in options.with_value:
            value = next(following, None)
            if value is None:
                raise InvalidInput(f"the option {argument} needs a value", f"see `{program} --help`")
            front += [argument, value]
        else:
            remaining.append(argument)
    return front + remaining


def reject_yes_with_dry_run(yes: bool, dry_run: bool) -> None:
    """Raise InvalidInput if both flags are given. A command that deletes is a dry run unless `--yes` is given."""
    if yes and dry_run:
        raise InvalidInput("--yes and --dry-run do not go together", "leave one of them out")


def _non_utf8_argument_error(error: Exception) -> InvalidInput | None:
    """Return InvalidInput for an encoding error that a command-line argument caused; None for any other error.

    The argument cannot be refused before the command runs: the name of a file may have any bytes.
    """
    if not isinstance(error, UnicodeEncodeError):
        return None
    for argument in sys.argv[1:]:
        if any("\ud800" <= character <= "\udfff" for character in argument):
            refusal = InvalidInput(f"the argument {argument!r} is not UTF-8", "encode it in UTF-8")
            refusal.__cause__ = error
            return refusal
    return None


def _raise_interrupt(*_: object) -> None:
    """Raise KeyboardInterrupt at SIGTERM, so that leases are released and an active run is recorded as failed."""
    raise KeyboardInterrupt("ended by SIGTERM")


def _is_stdout_closed() -> bool:
    """Return whether the reader of standard output has closed it, as in `compactor read … | head`."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return bool(poll.poll(0))
    except (OSError, ValueError):
        return False
