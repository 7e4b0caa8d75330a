"""`compactor`: the commands, their help and their exit codes.

Data goes to stdout, talk to stderr. Heavy libraries (Spark, boto3, SQLAlchemy, Arrow) are imported inside the command
that uses them: `compactor --help` needs none. An error is one line that says what happened, to what, and what to do;
`--debug` shows where it came from.
"""

from __future__ import annotations

import io
import logging
import os
import select
import signal
import sys
from contextlib import suppress
from typing import Annotated

import typer

from api.cli import exit_codes
from api.cli.compact_command import compact_topic
from api.cli.compactions_commands import cancel_compaction, list_compactions, show_compaction
from api.cli.cursor_commands import delete_cursor
from api.cli.failures import tell
from api.cli.gc_command import collect_garbage
from api.cli.get_command import get_value
from api.cli.import_command import import_files
from api.cli.read_command import read_topic
from api.cli.service_commands import check_store, upgrade_database
from api.cli.talk import say
from api.cli.topics_commands import list_topics, show_stats
from api.cli.verify_command import verify_topic
from api.settings import Settings
from storage.errors import InvalidInput

GLOBAL_OPTIONS = ("--data", "--store", "--s3-endpoint", "--database", "--spark-master")
GLOBAL_FLAGS = ("--debug",)

app = typer.Typer(
    name="compactor",
    help="Two-phase compaction of keyed logs: import, compact, read raw or compacted.",
    epilog=exit_codes.HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
topics = typer.Typer(help="List topics and look at one.", no_args_is_help=True, rich_markup_mode=None)
store = typer.Typer(help="The object store.", no_args_is_help=True, rich_markup_mode=None)
compactions = typer.Typer(help="Runs of compactions.", no_args_is_help=True, rich_markup_mode=None)
cursor = typer.Typer(help="Cursors of a topic.", no_args_is_help=True, rich_markup_mode=None)
db = typer.Typer(help="The metadata database.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(topics, name="topics")
app.add_typer(compactions, name="compactions")
app.add_typer(store, name="store")
app.add_typer(cursor, name="cursor")
app.add_typer(db, name="db")

app.command("import")(import_files)
app.command("compact-topic")(compact_topic)
app.command("read")(read_topic)
app.command("get")(get_value)
app.command("gc")(collect_garbage)
app.command("verify")(verify_topic)
topics.command("list")(list_topics)
topics.command("stats")(show_stats)
compactions.command("list")(list_compactions)
compactions.command("show")(show_compaction)
compactions.command("cancel")(cancel_compaction)
store.command("check")(check_store)
cursor.command("delete")(delete_cursor)
db.command("upgrade")(upgrade_database)


@app.callback()
def options(
    context: typer.Context,
    data: Annotated[
        str | None, typer.Option(help="Directory of the embedded store and database [COMPACTOR_DATA]")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(help="Object store: file:///… or s3://bucket/prefix [COMPACTOR_STORE]"),
    ] = None,
    s3_endpoint: Annotated[
        str | None,
        typer.Option(help="Endpoint URL of an S3 server other than AWS [COMPACTOR_S3_ENDPOINT]"),
    ] = None,
    database: Annotated[str | None, typer.Option(help="Database URL [COMPACTOR_DATABASE]")] = None,
    spark_master: Annotated[str | None, typer.Option(help="Spark master [COMPACTOR_SPARK_MASTER]")] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    context.obj = Settings.load(
        data=data, store=store, s3_endpoint=s3_endpoint, database=database, spark_master=spark_master
    )


def hoist_global_options(arguments: list[str]) -> list[str]:
    """Move global options that stand after the command before it, so that both places work."""
    front: list[str] = []
    rest: list[str] = []
    position = 0
    while position < len(arguments):
        one = arguments[position]
        if one == "--":
            rest += arguments[position:]
            break
        if one in GLOBAL_FLAGS or one.startswith(tuple(f"{option}=" for option in GLOBAL_OPTIONS)):
            front.append(one)
        elif one in GLOBAL_OPTIONS:
            if position + 1 == len(arguments):
                raise InvalidInput(f"the option {one} needs a value", "see `compactor --help`")
            front += arguments[position : position + 2]
            position += 1
        else:
            rest.append(one)
        position += 1
    return front + rest


def main() -> None:
    """The program. Exits with a code of `exit_codes`."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that is not UTF-8 must not end a listing
    signal.signal(signal.SIGTERM, _terminate)
    logging.getLogger().addHandler(logging.NullHandler())  # or Py4J tells of a Ctrl-C with a traceback
    try:
        # Not `app()`: that takes a broken pipe for an error.
        command = typer.main.get_command(app)
        with command.make_context("compactor", hoist_global_options(sys.argv[1:])) as context:
            command.invoke(context)
        sys.stdout.flush()
    except typer.Exit as end:
        sys.exit(end.exit_code)
    except KeyboardInterrupt:
        say("compactor: interrupted: what was reported is done, nothing half done is visible")
        sys.exit(exit_codes.INTERRUPTED)
    except Exception as error:
        enough = isinstance(error, BrokenPipeError) and _nobody_reads_output()
        if isinstance(error, OSError):
            _abandon_output()
        if enough:
            sys.exit(exit_codes.OK)
        tell(error)
        sys.exit(exit_codes.of(error))
    sys.exit(exit_codes.OK)


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


def _abandon_output() -> None:
    """Let the interpreter's last flush go nowhere: it would fail again, and say so."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
