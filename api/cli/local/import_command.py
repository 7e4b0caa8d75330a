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
from api.formats.inputs import LOG_FORMATS, EmptyValues, InputFormat, read_messages
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
            help="Format of the files. [default: parquet for names that end in .parquet, else jsonl]",
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
            help="Of Kafka's records with a key and an empty value, which delete the key here: end with an error, or "
            "let them delete it. [default: refuse]"
        ),
    ] = None,
) -> None:
    """Append files to a topic.

    They become sealed ledgers, each file as a whole or not at all; a missing topic is created. JSON Lines
    may be compressed by gzip. Segments of Kafka and offloaded ledgers of Pulsar are read from a disk or from S3.
    """
    ledger_bytes = parse_bytes("--ledger-size", ledger_size, least=1)
    if empty_values is not None and input_format is not InputFormat.KAFKA_SEGMENTS:
        raise InvalidInput("--empty-values does not apply to this format", "leave it out")
    if input_format in LOG_FORMATS:
        _check_log_options(files, key_encoding, value_encoding)
    if input_format is InputFormat.KAFKA_SEGMENTS:
        import_kafka_segments(context.obj, topic, files, ledger_bytes, empty_values or EmptyValues.REFUSE)
    elif input_format is InputFormat.PULSAR_OFFLOAD:
        import_pulsar_ledgers(context.obj, topic, files)
    else:
        sources = [(file, read_messages(file, input_format, key_encoding, value_encoding)) for file in files]
        _import_messages(context.obj, topic, sources, ledger_bytes)


def _check_log_options(files: list[str], key_encoding: TextEncoding, value_encoding: TextEncoding) -> None:
    """Raise InvalidInput for arguments that files of logs cannot have."""
    if "-" in files:
        raise InvalidInput("files of a log cannot be read from standard input", "name files or folders")
    if TextEncoding.BASE64 in (key_encoding, value_encoding):
        raise InvalidInput("--key-encoding and --value-encoding do not apply to files of a log", "leave them out")


def _import_messages(
    settings: Settings, topic: TopicName, sources: list[tuple[str, Iterator[Table]]], ledger_bytes: int
) -> None:
    """Append files, each a name and its messages, in order."""
    with (
        open_for_writing(settings) as environment,
        AppendTarget(environment, topic) as target,
        target.writing(lambda opened: bulk_writer(opened, ledger_bytes)) as (writer, lease),
    ):
        for file, tables in sources:
            started = time.perf_counter()
            try:
                appended = writer.append_under(lease, tables)
            except InvalidRecord as error:
                raise InvalidRecord(with_file_name(error.message, file), error.remedy) from error
            seconds = time.perf_counter() - started
            say(
                f"{'standard input' if file == '-' else file}: {counted(appended.messages, 'message')}, "
                f"{size(appended.logical_bytes)} in {counted(len(appended.ledgers), 'ledger')} "
                f"({size(appended.stored_bytes)} stored) in {seconds:.2f} s"
            )
