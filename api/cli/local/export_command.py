"""`compactor export`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from api.cli.kit.shared_arguments import KeyEncoding, ReadCompacted, Topic, ValueEncoding
from api.cli.kit.stderr import counted, say, size
from api.cli.local.opening import open_topic
from api.components import open_for_reading
from api.formats.text_encoding import TextEncoding
from storage.errors import InvalidInput, OffsetOutOfRange, StateMayBeStale

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from api.formats.export_folder import ExportFolder, ExportManifest
    from storage.entries.chunk_assembler import ChunkAssembler
    from storage.positions import ContinuationToken
    from storage.reading.page_reader import PageReader
    from storage.topic import Topic as OpenTopic

FormatName = Literal["parquet", "jsonl", "csv"]
"""Names of output formats; `api.formats.export_writers.ExportFormat` has them (a test compares)."""
_AFTER_ENTRY = (
    "export what is after it into a folder of its own, with --since {next}; Pulsar clients and REST read the entry"
)


@dataclass(frozen=True)
class ExportChoices:
    """Format, encodings and kind of read, which all exports into a folder share."""

    format: FormatName
    read_compacted: bool
    key_encoding: TextEncoding
    value_encoding: TextEncoding


def export_topic(
    context: typer.Context,
    topic: Topic,
    to: Annotated[str, typer.Option("--to", metavar="DIR|s3://BUCKET/PREFIX", help="Folder that gets the files.")],
    output_format: Annotated[FormatName, typer.Option("--format", help="Format of the file.")] = "parquet",
    read_compacted: ReadCompacted = False,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="last|POSITION",
            help="Only what was appended since the last export in the folder, or since the position of a manifest.",
        ),
    ] = None,
    key_encoding: KeyEncoding = TextEncoding.UTF8,
    value_encoding: ValueEncoding = TextEncoding.UTF8,
) -> None:
    """Write a topic to a file in a folder or in S3, whole or what is new since the last export.

    The file appears whole, under a name of its own, and then a manifest with the position after it. Each file is an
    input of `compactor import`.
    """
    from api.formats.export_folder import LAST, ExportFolder, folder_url
    from storage.objects.interface import StoreLocation
    from storage.objects.registry import open_store

    choices = ExportChoices(output_format, read_compacted, key_encoding, value_encoding)
    url = folder_url(to)
    with open_for_reading(context.obj) as environment:
        source = open_topic(environment, topic)
        store = open_store(StoreLocation(url, context.obj.s3_endpoint or None))
        try:
            folder = ExportFolder(store, topic.topic, to)
            if since is not None and since != LAST:
                _check_position(since, source)
            last = folder.last_manifest()
            if last is None and since == LAST:
                raise InvalidInput(f"{to} has no export of {topic}", "begin with one without --since")
            if last is not None:
                _check_continues_last_export(last, source, choices, since, to)
            started = time.perf_counter()
            manifest = _write_export(source, folder, choices, since if last is None else last.position, last)
            seconds = time.perf_counter() - started
        finally:
            store.close()
    if manifest is None:
        say(f"{to}: nothing was appended since the last export")
    else:
        say(
            f"{to.rstrip('/')}/{manifest.file}: {counted(manifest.messages, 'message')}, {manifest.deletions:,} of "
            f"them deletions, {size(manifest.bytes)} in {seconds:.2f} s; position {manifest.position}"
        )


def _check_position(text: str, source: OpenTopic) -> None:
    """Raise InvalidInput for a position of another topic; InvalidInput or InvalidMessageId for a text that is no
    position."""
    from api.formats.export_folder import ExportPosition
    from api.formats.position_text import parse_start
    from storage.positions import ContinuationToken

    position = ExportPosition.parse(text)
    ContinuationToken.from_token(position.token, parse_start)
    if position.incarnation not in (None, str(source.record.uid)):
        raise InvalidInput(
            f"the position {text} is of another topic than {source.name}, or of that topic before it was deleted",
            "export the whole topic, without --since",
        )


def _check_continues_last_export(
    last: ExportManifest, source: OpenTopic, choices: ExportChoices, since: str | None, folder: str
) -> None:
    """Raise InvalidInput if an export does not continue the last export of its folder."""
    from api.formats.export_folder import LAST

    other = "or name another folder"
    if (last.topic, last.incarnation) != (str(source.name), str(source.record.uid)):
        raise InvalidInput(
            f"{folder} has exports of {last.topic} as it was before it was deleted, or of another topic of that name",
            "name another folder",
        )
    if since is None:
        raise InvalidInput(
            f"{folder} has exports of {source.name} up to number {last.number}", f"add --since last, {other}"
        )
    if since != LAST:
        raise InvalidInput(
            f"a position begins a folder, and {folder} has exports of {source.name} up to number {last.number}",
            f"write --since last instead of --since {since}, {other}",
        )
    for option, before, now in (
        ("--format", last.format, choices.format),
        ("--read-compacted", last.read_compacted, choices.read_compacted),
        ("--key-encoding", last.key_encoding, choices.key_encoding),
        ("--value-encoding", last.value_encoding, choices.value_encoding),
    ):
        if before != now:
            words = f"{option} {before}" if not isinstance(before, bool) else (option if before else f"no {option}")
            raise InvalidInput(f"the exports in {folder} have {words}", f"choose the same, {other}")


def _write_export(
    source: OpenTopic, folder: ExportFolder, choices: ExportChoices, since: str | None, last: ExportManifest | None
) -> ExportManifest | None:
    """Write a file of messages, publish its manifest, and return the manifest. None: nothing was appended after
    `since`."""
    from api.formats.export_folder import ExportManifest, ExportPosition
    from api.formats.export_writers import ExportFormat, open_writer
    from api.formats.message_tables import output_schema, refuse_undecodable_entries
    from api.formats.position_text import parse_start
    from storage.entries.chunk_assembler import ChunkAssembler
    from storage.model import EARLIEST
    from storage.positions import ContinuationToken, OffsetReset

    start = ContinuationToken(EARLIEST)
    if since is not None:
        start = ContinuationToken.from_token(ExportPosition.parse(since).token, parse_start)
    reader = source.reader(start, choices.read_compacted, OffsetReset.EARLIEST if since is None else OffsetReset.FAIL)
    number = 1 if last is None else last.number + 1
    name = folder.file_name(number, choices.format)
    folder.check_number_is_free(number)
    schema = output_schema(choices.key_encoding, choices.value_encoding)
    chunks, counts = ChunkAssembler(), _ExportCounts()
    try:
        rows = refuse_undecodable_entries(reader.stream_rows(), str(source.name), _AFTER_ENTRY)
        tables = counts.count_messages(_message_tables(rows, source.name.partition, schema, chunks, start.delivered))
        first = next(tables, None)
        if first is None and since is not None:
            return None
        with folder.create_file(name) as stream:
            writer = open_writer(ExportFormat(choices.format), stream, schema)  # type: ignore[arg-type]
            if first is not None:
                writer.write(first)
            for table in tables:
                writer.write(table)
            writer.write_end()
            written = stream.tell()
    except (OffsetOutOfRange, StateMayBeStale) as error:
        if since is None:
            raise
        raise type(error)(error.message, "export the whole topic into another folder, without --since") from error
    finally:
        reader.close()
    manifest = ExportManifest(
        number=number,
        topic=str(source.name),
        incarnation=str(source.record.uid),
        read_compacted=choices.read_compacted,
        format=choices.format,
        key_encoding=choices.key_encoding,
        value_encoding=choices.value_encoding,
        columns=schema.names,
        file=name,
        bytes=written,
        messages=counts.messages,
        deletions=counts.deletions,
        since=since,
        position=ExportPosition(
            _next_position(reader, chunks, counts.last_publish_time).to_token(), str(source.record.uid)
        ).text,
    )
    folder.publish_manifest(manifest)
    return manifest


@dataclass
class _ExportCounts:
    """Counts of exported messages. `deletions`: those with a key and without a value."""

    messages: int = 0
    deletions: int = 0
    last_publish_time: int = 0

    def count_messages(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """Yield the tables unchanged, and count their messages."""
        import pyarrow.compute as pc

        for table in tables:
            self.messages += len(table)
            size_of = pc.coalesce(pc.binary_length(table.column("value")), 0)
            is_deletion = pc.and_(pc.is_valid(table.column("key")), pc.equal(size_of, 0))
            self.deletions += pc.sum(is_deletion).as_py() or 0
            self.last_publish_time = table.column("publish_time")[-1].as_py()
            yield table


def _message_tables(
    rows: Iterator[pa.RecordBatch], partition: int, schema: pa.Schema, chunks: ChunkAssembler, delivered: int
) -> Iterator[pa.Table]:
    """Yield the messages after the offset `delivered` as tables. No table is empty."""
    import pyarrow.compute as pc

    from api.formats.message_tables import assemble_chunked_messages, output_table

    for batch in assemble_chunked_messages(rows, partition, chunks):
        later = batch.filter(pc.greater(batch.column("offset"), delivered)) if delivered >= 0 else batch
        if len(later):
            yield output_table(later, schema, partition)


def _next_position(reader: PageReader, chunks: ChunkAssembler, last_publish_time: int) -> ContinuationToken:
    """Return where the next export begins: at a chunked message that is not complete, else after the last message."""
    from dataclasses import replace

    from storage.positions import StartOffset
    from storage.reading.page_reader import CHUNK_EXPIRY_MS

    oldest = chunks.oldest_incomplete_since(last_publish_time - CHUNK_EXPIRY_MS)
    if oldest is None:
        return reader.next
    assert isinstance(reader.next.start, StartOffset)
    return replace(reader.next, start=StartOffset(oldest.offset), delivered=reader.next.start.offset - 1)
