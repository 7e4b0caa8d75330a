"""`compactor import`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.kit.quantity_parsers import parse_bytes
from api.cli.kit.shared_arguments import Topic
from api.cli.kit.stderr import counted, say, say_created, size
from api.components import ensure_topic, open_for_writing
from api.formats.inputs import InputFormat, read_messages
from api.formats.text_encoding import TextEncoding
from storage.errors import InvalidRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from storage.environment import Environment
    from storage.errors import LeaseHeld
    from storage.metadata.records import TopicRecord


WAIT_SECONDS = 30
"""The longest wait for another writer, in seconds."""


def name_file(message: str, file: str) -> str:
    """Return the message, prefixed by the file's name unless it has the name. Errors after the reader lack it."""
    name = "standard input" if file == "-" else file
    return message if name in message else f"{name}: {message}"


def check_quota(environment: Environment, topic: TopicRecord) -> None:
    """Raise Unavailable or Conflict if the topic's backlog exceeds a quota that refuses producers."""
    from compactor.maintenance.backlog_limits import BacklogLimits

    BacklogLimits(environment).check(topic)


def report_wait(seconds: int) -> Callable[[LeaseHeld], object]:
    """Return a callback that reports that another writer has the topic."""
    return lambda held: say(f"compactor: {held.message}: waiting for it to end, for {seconds} s at most")


def import_files(
    context: typer.Context,
    topic: Topic,
    files: Annotated[list[str], typer.Argument(metavar="FILE", help="Files to import, in order; - is standard input.")],
    input_format: Annotated[
        InputFormat | None,
        typer.Option(help="How the files are read. [default: parquet for names that end so, else jsonl]"),
    ] = None,
    ledger_size: Annotated[
        str, typer.Option(metavar="BYTES", help="Logical bytes a ledger; K, M and G are allowed.")
    ] = "128M",
    key_encoding: Annotated[TextEncoding, typer.Option(help="How keys stand in JSON Lines.")] = TextEncoding.UTF8,
    value_encoding: Annotated[TextEncoding, typer.Option(help="How values stand in JSON Lines.")] = TextEncoding.UTF8,
) -> None:
    """Append files to a topic.

    They become sealed ledgers, each file as a whole or not at all; a missing topic is created. JSON Lines
    may be compressed by gzip.
    """
    ledger_bytes = parse_bytes("--ledger-size", ledger_size, least=1)
    with open_for_writing(context.obj) as environment:
        sources = [(file, read_messages(file, input_format, key_encoding, value_encoding)) for file in files]
        created: list[object] = []
        opened = ensure_topic(environment, topic, created.append)
        check_quota(environment, opened.record)
        writer = opened.bulk_append(
            ledger_bytes=ledger_bytes, wait_ms=WAIT_SECONDS * 1000, on_held=report_wait(WAIT_SECONDS)
        )
        for file, tables in sources:
            started = time.perf_counter()
            try:
                appended = writer.append(tables)
            except InvalidRecord as error:
                raise InvalidRecord(name_file(error.message, file), error.remedy) from error
            seconds = time.perf_counter() - started
            say(
                f"{'standard input' if file == '-' else file}: {counted(appended.messages, 'message')}, "
                f"{size(appended.logical_bytes)} in {counted(len(appended.ledgers), 'ledger')} "
                f"({size(appended.stored_bytes)} stored) in {seconds:.2f} s"
            )
        say_created(created)
