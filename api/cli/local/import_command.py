"""`compactor import`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.kit.quantity_parsers import parse_bytes
from api.cli.kit.shared_arguments import KeyEncoding, Topic, ValueEncoding
from api.cli.kit.stderr import counted, say, size
from api.cli.local.append_target import AppendTarget, bulk_writer, with_file_name
from api.cli.local.log_import import import_kafka_segments, import_pulsar_ledgers
from api.components import open_for_writing
from api.formats.inputs import LOG_FORMATS, EmptyValues, InputFormat, InputOptions, check_options, read_messages
from api.formats.text_encoding import TextEncoding
from storage.errors import InvalidInput, InvalidRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyarrow import Table

    from api.settings.settings import Settings
    from storage.model import TopicName


def import_files(
    context: typer.Context,
    topic: Topic,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="Files to import, in order; - is standard input. For segments and ledgers also folders, and "
            "s3://bucket/prefix.",
        ),
    ],
    input_format: Annotated[
        InputFormat | None,
        typer.Option(
            "--input-format",
            "--format",
            help="Format of the files. [default: parquet and csv for names that end so, else jsonl]",
        ),
    ] = None,
    key_field: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Of JSON objects, CSV or Parquet that are no messages of ours: the field or column with the key; "
            "user.id is id inside of user.",
        ),
    ] = None,
    value_field: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The field or column with the value. [default: the whole object or row]"),
    ] = None,
    timestamp_field: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The field or column with the event time: milliseconds since 1970, or an ISO time."
        ),
    ] = None,
    separator: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="Between key and value, or the cells of CSV; \\t is a tab. [default: : and ,]"
        ),
    ] = None,
    ledger_size: Annotated[
        str, typer.Option(metavar="BYTES", help="Logical bytes per ledger; K, M and G are allowed.")
    ] = "128M",
    key_encoding: KeyEncoding = TextEncoding.UTF8,
    value_encoding: ValueEncoding = TextEncoding.UTF8,
    empty_values: Annotated[
        EmptyValues | None,
        typer.Option(
            help="An empty value deletes its key here: end with an error, or let it delete the key. [default: refuse; "
            "delete for messages in JSON Lines and Parquet]"
        ),
    ] = None,
) -> None:
    """Append files to a topic.

    They become sealed ledgers, each file as a whole or not at all; a missing topic is created. Text may be
    compressed by gzip. Segments of Kafka and offloaded ledgers of Pulsar are read from a disk or from S3.
    """
    ledger_bytes = parse_bytes("--ledger-size", ledger_size, least=1)
    options = InputOptions(
        key_field, value_field, timestamp_field, separator, empty_values, key_encoding, value_encoding
    )
    if input_format in LOG_FORMATS:
        check_options(input_format, options)
        if "-" in files:
            raise InvalidInput("files of a log cannot be read from standard input", "name files or folders")
    if input_format is InputFormat.KAFKA_SEGMENTS:
        import_kafka_segments(context.obj, topic, files, ledger_bytes, empty_values or EmptyValues.REFUSE)
    elif input_format is InputFormat.PULSAR_OFFLOAD:
        import_pulsar_ledgers(context.obj, topic, files)
    else:
        sources = [(file, read_messages(file, input_format, options)) for file in files]
        _import_messages(context.obj, topic, sources, ledger_bytes)


def _import_messages(
    settings: Settings, topic: TopicName, sources: list[tuple[str, Iterator[Table]]], ledger_bytes: int
) -> None:
    """Append the messages of files to a topic, in order, as sealed ledgers. `sources`: the name and the messages of
    each file."""
    with (
        open_for_writing(settings) as environment,
        AppendTarget(environment, topic, keeps_unused=False) as target,
        target.hold_writer(lambda opened: bulk_writer(opened, ledger_bytes)) as (writer, lease),
    ):
        for number, (file, tables) in enumerate(sources):
            started = time.perf_counter()
            try:
                appended = writer.append_under(lease, tables)
            except InvalidRecord as error:
                remedy = error.remedy
                if number:
                    last = sources[number - 1][0]
                    remedy += f"; the files before it, up to {last}, are imported: leave them out then"
                raise InvalidRecord(with_file_name(error.message, file), remedy) from error
            seconds = time.perf_counter() - started
            say(
                f"{'standard input' if file == '-' else file}: {counted(appended.messages, 'message')}, "
                f"{size(appended.logical_bytes)} in {counted(len(appended.ledgers), 'ledger')} "
                f"({size(appended.stored_bytes)} stored) in {seconds:.2f} s"
            )
