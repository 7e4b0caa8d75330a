"""`compactor read` and `compactor get`: messages, for people and for programs."""

from __future__ import annotations

import sys
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from api.cli.kit import exit_codes
from api.cli.kit.output import show_table
from api.cli.kit.shared_arguments import (
    START_HELP,
    START_PLACES,
    KeyEncoding,
    ReadCompacted,
    Reset,
    SealedOnly,
    Topic,
    ValueEncoding,
)
from api.cli.kit.stderr import counted, say
from api.cli.kit.terminal import is_terminal, json_lines_stdout
from api.cli.local.opening import open_topic
from api.components import open_for_reading
from api.formats.position_text import parse_start
from api.formats.text_encoding import TextEncoding, parse_key
from storage.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from storage.model import Message
    from storage.reading.page_reader import PageReader

_PAGE_BYTES = 8 << 20
_POLL_MS = 10_000


def read_topic(
    context: typer.Context,
    topic: Topic,
    file: Annotated[
        str | None, typer.Argument(metavar="FILE", help="File for --output parquet; - is standard output.")
    ] = None,
    read_compacted: ReadCompacted = False,
    start: Annotated[str, typer.Option("--from", metavar=START_PLACES, help=START_HELP)] = "earliest",
    follow: Annotated[bool, typer.Option("--follow", help="Continue with new messages as they arrive.")] = False,
    reset: Reset = "earliest",
    limit: Annotated[int | None, typer.Option(metavar="N", min=0, help="At most this many messages.")] = None,
    output: Annotated[Literal["jsonl", "table", "parquet"], typer.Option(help="Format of the messages.")] = "jsonl",
    key_encoding: KeyEncoding = TextEncoding.UTF8,
    value_encoding: ValueEncoding = TextEncoding.UTF8,
) -> None:
    """Read a topic, raw or compacted, to standard output or a Parquet file."""
    first = parse_start(start)
    if (output == "parquet") != (file is not None):
        raise InvalidInput(
            "--output parquet and a FILE belong together", "compactor read TOPIC --output parquet out.parquet"
        )

    if file == "-" and is_terminal(sys.stdout):
        raise InvalidInput("Parquet is not for a terminal", "name a FILE, or send standard output to a file or program")
    if follow and output != "jsonl":
        raise InvalidInput(f"--follow cannot be shown as {output}", "leave --output out: one JSON line a message")
    encodings = key_encoding, value_encoding
    from api.broker.positions import check_not_after_end
    from storage.positions import OffsetReset

    with open_for_reading(context.obj) as environment:
        source = open_topic(environment, topic)
        check_not_after_end(source, first)
        if follow:
            _follow_messages(
                source.reader(first, read_compacted, OffsetReset(reset)), limit, topic.partition, *encodings
            )
            return
        if file is not None:
            from api.formats.parquet import write_parquet

            with closing(source.read(first, read_compacted, reset=OffsetReset(reset))) as batches:
                count = write_parquet(file, batches, topic.partition, *encodings, limit)
            say(f"{'standard output' if file == '-' else file}: {counted(count, 'message')}")
            return
        messages = source.messages(first, read_compacted, limit, OffsetReset(reset))
        if output == "table":
            _print_table(messages, *encodings)
        else:
            _print_json_lines(messages, *encodings)


def get_value(
    context: typer.Context,
    topic: Topic,
    key: Annotated[str, typer.Argument(metavar="KEY", help='The key; "" is a key like any other.')],
    output: Annotated[Literal["jsonl", "table"], typer.Option(help="Format of the message.")] = "jsonl",
    key_encoding: KeyEncoding = TextEncoding.UTF8,
    value_encoding: ValueEncoding = TextEncoding.UTF8,
    sealed_only: SealedOnly = False,
) -> None:
    """Show the newest value of one key.

    The key indexes of the compacted ledger and of later ledgers locate it: a few small reads for a topic of any size.
    Exit code 8 if the key has no value: it was never written, or it was deleted.
    """
    encoded = parse_key(key, key_encoding)
    with open_for_reading(context.obj) as environment:
        message = open_topic(environment, topic).newest_value(encoded, sealed_only=sealed_only)
    if message is None:
        say(f"compactor: the key {key!r} of {topic} has no value")
        raise typer.Exit(exit_codes.NO_VALUE)
    (_print_table if output == "table" else _print_json_lines)([message], key_encoding, value_encoding)


def _follow_messages(
    reader: PageReader, limit: int | None, partition: int, key_encoding: TextEncoding, value_encoding: TextEncoding
) -> None:
    """Print messages as they arrive, up to `limit`, or until the process ends."""
    from storage.entries.chunk_assembler import assemble_messages
    from storage.reading.page_reader import ReadLimits

    stdout = json_lines_stdout()

    def pages() -> Iterator[pa.RecordBatch]:
        while True:
            stdout.flush()
            yield from reader.poll(ReadLimits(bytes=_PAGE_BYTES), _POLL_MS)

    try:
        _print_json_lines(islice(assemble_messages(pages(), partition), limit), key_encoding, value_encoding)
    finally:
        reader.close()
        stdout.flush()


def _print_json_lines(messages: Iterable[Message], key_encoding: TextEncoding, value_encoding: TextEncoding) -> None:
    from api.formats.jsonl import JsonLinesWriter

    stdout = json_lines_stdout()
    lines = JsonLinesWriter(stdout, key_encoding, value_encoding)
    for message in messages:
        lines.write(message)
    stdout.flush()


def _print_table(messages: Iterable[Message], key_encoding: TextEncoding, value_encoding: TextEncoding) -> None:
    from api.formats.jsonl import field_text

    rows = (
        {
            "message_id": message.message_id,
            "offset": message.offset,
            "key": field_text(message.key, key_encoding, message, "key"),
            "value": field_text(message.payload, value_encoding, message, "value"),
            "publish_time": message.publish_time,
            "event_time": message.event_time,
        }
        for message in messages
    )
    columns = ("message_id", "offset", "key", "value", "publish_time", "event_time")
    show_table(rows, columns, lambda _, value: "null" if value is None else str(value))
