"""`compactor read`."""

from __future__ import annotations

from contextlib import closing
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.kit.names import EncodingName, ResetName, Topic
from api.cli.kit.stderr import counted, say
from api.cli.kit.terminal import data_stream
from api.components import open_environment, open_topic
from storage.errors import InvalidInput
from storage.model import TopicName
from storage.reading.positions import check_begins, parse_start

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from api.formats.text_encoding import TextEncoding
    from storage.model import Message
    from storage.reading.page_reader import PageReader

_PAGE_BYTES = 8 << 20
_POLL_MS = 10_000


class OutputName(StrEnum):
    """Output formats."""

    JSONL = "jsonl"
    TABLE = "table"
    PARQUET = "parquet"


def read_topic(
    context: typer.Context,
    topic: Topic,
    file: Annotated[str | None, typer.Argument(metavar="FILE", help="Where --output parquet goes.")] = None,
    read_compacted: Annotated[
        bool, typer.Option("--read-compacted", help="The compacted ledger first, then raw after its horizon.")
    ] = False,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="earliest|latest|MESSAGE_ID|OFFSET|@TIME",
            help="Where to begin, inclusive; @TIME: milliseconds or an ISO time of publishing.",
        ),
    ] = "earliest",
    follow: Annotated[bool, typer.Option("--follow", help="Go on with new messages as they come.")] = False,
    reset: Annotated[
        ResetName, typer.Option(help="Where a raw read begins instead if its start was trimmed.")
    ] = ResetName.EARLIEST,
    limit: Annotated[int | None, typer.Option(metavar="N", min=0, help="At most this many messages.")] = None,
    output: Annotated[OutputName, typer.Option(help="How messages are shown.")] = OutputName.JSONL,
    key_encoding: Annotated[EncodingName, typer.Option(help="How keys are shown.")] = EncodingName.UTF8,
    value_encoding: Annotated[EncodingName, typer.Option(help="How values are shown.")] = EncodingName.UTF8,
) -> None:
    """Read a topic, raw or compacted, to standard output or a Parquet file."""
    name = TopicName.parse(topic)
    first = parse_start(start)
    if (output is OutputName.PARQUET) != (file is not None):
        raise InvalidInput(
            "--output parquet and a FILE belong together", "compactor read TOPIC --output parquet out.parquet"
        )
    from api.formats.text_encoding import TextEncoding

    if follow and output is not OutputName.JSONL:
        raise InvalidInput(f"--follow cannot be shown as {output.value}", "leave --output out: one JSON line a message")
    encodings = TextEncoding(key_encoding.value), TextEncoding(value_encoding.value)
    from storage.ledger.seek import Reset

    with open_environment(context.obj) as environment:
        source = open_topic(environment, name)
        check_begins(source, first)
        if follow:
            _follow(source.reader(first, read_compacted, Reset(reset.value)), limit, name.partition, *encodings)
            return
        if file is not None:
            from api.formats.parquet import write_parquet

            with closing(source.read(first, read_compacted, reset=Reset(reset.value))) as batches:
                count = write_parquet(file, batches, name.partition, *encodings, limit)
            say(f"{file}: {counted(count, 'message')}")
            return
        found = source.messages(first, read_compacted, limit, Reset(reset.value))
        if output is OutputName.TABLE:
            print_messages(found, *encodings)
        else:
            _print_lines(found, *encodings)


def _follow(
    reader: PageReader, limit: int | None, partition: int, key_encoding: TextEncoding, value_encoding: TextEncoding
) -> None:
    """Print messages as they come, up to `limit`, or until the process is ended."""
    from api.formats.jsonl import JsonLines
    from storage.reading.limits import ReadLimits
    from storage.reading.snapshot_reader import messages

    stdout = data_stream()

    def pages() -> Iterator[pa.RecordBatch]:
        while True:
            stdout.flush()
            yield from reader.poll(ReadLimits(bytes=_PAGE_BYTES), _POLL_MS)

    lines = JsonLines(stdout, key_encoding, value_encoding)
    try:
        for message in islice(messages(pages(), partition), limit):
            lines.write(message)
    finally:
        reader.close()
        stdout.flush()


def _print_lines(found: Iterable[Message], key_encoding: TextEncoding, value_encoding: TextEncoding) -> None:
    from api.formats.jsonl import JsonLines

    stdout = data_stream()
    lines = JsonLines(stdout, key_encoding, value_encoding)
    for message in found:
        lines.write(message)
    stdout.flush()


def print_messages(shown_ones: Iterable[Message], key_encoding: TextEncoding, value_encoding: TextEncoding) -> None:
    """A table of messages."""
    from api.cli.kit.tables import print_table
    from api.formats.jsonl import shown

    def cell(value: object) -> str:
        return "null" if value is None else str(value)

    rows = (
        (
            str(message.message_id),
            str(message.offset),
            cell(shown(message.key, key_encoding, message, "key")),
            cell(shown(message.payload, value_encoding, message, "value")),
            str(message.publish_time),
            cell(message.event_time),
        )
        for message in shown_ones
    )
    print_table(("message id", "offset", "key", "value", "publish time", "event time"), rows)
