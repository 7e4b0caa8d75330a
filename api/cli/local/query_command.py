"""`compactor query`."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from api.cli.kit.quantity_parsers import parse_bytes
from api.cli.kit.shared_arguments import KeyEncoding, Topic, ValueEncoding
from api.cli.kit.stderr import counted, say
from api.cli.kit.terminal import escape_controls, is_terminal, json_lines_stdout
from api.components import open_for_reading
from api.formats.text_encoding import TextEncoding
from storage.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable

    from api.broker.schema_columns import SchemaColumns
    from api.formats.result_writers import ResultRows
    from storage.environment import Environment
    from storage.model import TopicName

ResultFormat = Literal["table", "jsonl", "csv", "parquet"]
STDOUT = "-"
_LEAST_MEMORY = 64 << 20


def query_topic(
    context: typer.Context,
    topic: Topic,
    sql: Annotated[
        str, typer.Argument(metavar="SQL", help="A query in DuckDB's SQL, of the table `topic`; - is standard input.")
    ],
    raw: Annotated[
        bool, typer.Option("--raw", help="All raw messages, deletions among them, instead of the newest values.")
    ] = False,
    output_format: Annotated[ResultFormat, typer.Option("--format", help="Format of the result.")] = "table",
    to: Annotated[
        str, typer.Option("--to", metavar="FILE", help="File that gets the result; - is standard output.")
    ] = STDOUT,
    key_encoding: KeyEncoding = TextEncoding.UTF8,
    value_encoding: ValueEncoding = TextEncoding.UTF8,
    memory_limit: Annotated[
        str,
        typer.Option(metavar="BYTES", help="Memory of DuckDB, which then spills to TMPDIR; K, M and G are allowed."),
    ] = "1G",
    external_access: Annotated[
        bool, typer.Option("--external-access", help="Let the SQL read and write files and addresses.")
    ] = False,
) -> None:
    """Query a topic with SQL: the newest value of each key, compacted or not.

    The table is `topic`, and has the topic's own name, too. Its columns are message_id, "offset", key, value,
    publish_time, event_time and properties. A topic with a schema of JSON or Avro has structs as values:
    value.name. The SQL is one query; statements before it may prepare it. DuckDB must be installed.
    """
    limit = parse_bytes("--memory-limit", memory_limit, least=_LEAST_MEMORY)
    if output_format == "table" and to != STDOUT:
        raise InvalidInput("a table is for people and goes to standard output", "choose --format jsonl, csv or parquet")
    if output_format == "parquet" and to == STDOUT and is_terminal(sys.stdout):
        raise InvalidInput("Parquet is not for a terminal", "name a file with --to, or send standard output to one")
    text = sys.stdin.read() if sql == "-" else sql
    if not text.strip():
        raise InvalidInput("the SQL is empty", "write a query: select * from topic limit 10")
    from api.broker import names
    from api.cli.local.query_engine import QueryLimits, open_query
    from storage.topic import Topic as OpenTopic

    with open_for_reading(context.obj) as environment:
        topics = [OpenTopic(environment, record) for record in names.topics(environment, topic)]
        columns = _schema_columns(environment, topic, key_encoding, value_encoding)
        with open_query(topics, topic.topic, columns, QueryLimits(limit, external_access), raw=raw) as query:
            _write_result(query.execute(text), output_format, to)


def _schema_columns(
    environment: Environment, topic: TopicName, key_encoding: TextEncoding, value_encoding: TextEncoding
) -> SchemaColumns:
    """Return the columns of keys and values, by the topic's schema if it has one."""
    from api.broker.schema_columns import schema_columns
    from api.broker.schemas import is_schema_type

    schemas = environment.metadata.schemas
    known = [outline.version for outline in schemas.outlines(topic) if is_schema_type(outline.type)]
    return schema_columns(schemas.versions(topic, known), key_encoding, value_encoding)


def _write_result(result: ResultRows, output_format: ResultFormat, to: str) -> None:
    from api.formats.result_writers import write_csv, write_json_lines, write_parquet_rows

    if output_format == "table":
        _print_table(result)
        return
    from api.formats.output_file import atomic_output_file

    is_shown = to == STDOUT and is_terminal(sys.stdout)
    write_text = write_json_lines if output_format == "jsonl" else partial(write_csv, display=_text_escaper(is_shown))
    with atomic_output_file(to) as target:
        if output_format == "parquet":
            count = write_parquet_rows(target, result)
        elif isinstance(target, str):
            with open(target, "wb") as stream:
                count = write_text(stream, result)
        else:
            stdout = json_lines_stdout() if output_format == "jsonl" else target
            count = write_text(stdout, result)
            stdout.flush()
    if to != STDOUT:
        say(f"{to}: {counted(count, 'row')}")


def _text_escaper(is_shown: bool) -> Callable[[str], str]:
    """Return the function that escapes a text: `escape_controls` for a terminal, else one that changes nothing."""
    return escape_controls if is_shown else str


def _print_table(result: ResultRows) -> None:
    from api.cli.kit.tables import print_table
    from api.formats.result_writers import cell_text, json_compatible_rows

    rows = [["null" if text is None else text for text in map(cell_text, row)] for row in json_compatible_rows(result)]
    if result.schema.names:
        print_table(result.schema.names, rows)
