"""SQL over a topic, by DuckDB in this process.

The table is a view, under the name `topic` and under the topic's own name. It has the newest value of each key: the
rows of the compacted ledger whose key no message of the tail has, and the last message of each key in the tail. Which
ones these are is decided first, in a temporary table of the tail's keys; in event-time order the key indexes
decide it. All reads are of one snapshot.

    compacted ledger ─► dataset ─┐ without the keys of the table
    tail ─► keys ─► a table ─────┼─► view: topic
    tail ─► dataset ─────────────┘ only the offsets of the table, one bit each, and messages without a key

DuckDB reads columns and rows as far as the query needs them, keeps at most `memory_bytes`, and spills to a folder of
its own in the system's folder for temporary files. It reads and writes nothing else, unless the caller allows it.

Errors: InvalidInput for the SQL; the errors of reading; Unavailable for too little memory; Misconfigured without
DuckDB.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, TypeVar

import pyarrow as pa

from api.broker.schema_columns import JSON, Column, SchemaColumns
from api.cli.local.topic_dataset import MESSAGE_COLUMNS, OffsetSet, ScanSource, TopicDataset
from api.formats.result_writers import ResultRows, mark_as_json
from storage.errors import InvalidInput, Misconfigured, Unavailable
from storage.reading.newest_offsets import NewestOffset
from storage.reading.newest_scan import NewestScan
from storage.reading.scan import ScanRange
from storage.topic import Topic

TABLE = "topic"
"""The name of the table, whatever the topic is called."""
_COMPACTED, _MESSAGES, _TAIL = '"/compacted"', '"/messages"', '"/tail"'
_NEWEST, _SEARCHED = '"/newest"', '"/searched"'
"""Names, in quotes, that no topic has."""
_BATCH_ROWS = 65_536
_KEYS = 10_000
"""The keys that are searched in the indexes at once."""
_NO_OFFSET = -1
OLDEST_DUCKDB = 2
"""The first major version whose relations stream; its Python interface differs from that of version 1."""
_OUT_OF_MEMORY, _NOT_PERMITTED = "Out of Memory Error", "Permission Error"
"""The begins of errors of DuckDB; in a stream they have no class of their own."""
_NO_JSON = "Malformed JSON"
Value = TypeVar("Value")


@dataclass(frozen=True)
class QueryLimits:
    """The limits of a query. `memory_bytes`: memory of DuckDB. `reads_files`: SQL may read and write files and
    addresses."""

    memory_bytes: int
    reads_files: bool = False


def _load_duckdb() -> ModuleType:
    try:
        import duckdb
    except ImportError as error:
        raise Misconfigured(
            f"queries need DuckDB, which cannot be loaded ({error})",
            "pip install duckdb, or install the extra [query] of ledger-compactor",
        ) from error
    if int(duckdb.__version__.partition(".")[0]) < OLDEST_DUCKDB:
        raise Misconfigured(
            f"queries need DuckDB {OLDEST_DUCKDB} or newer, and {duckdb.__version__} is installed",
            f"pip install 'duckdb>={OLDEST_DUCKDB}', in another environment than what needs the older one",
        )
    return duckdb


@contextmanager
def open_query(
    topics: Sequence[Topic], name: str, columns: SchemaColumns, limits: QueryLimits, *, raw: bool
) -> Iterator[TopicQuery]:
    """Open a topic, or the partitions of one, for SQL; it is closed at the end of the context.

    `name`: of the table, beside `topic`. `raw`: all raw messages, deletions among them, instead of the newest values.
    Raises InvalidInput, Unavailable, Misconfigured, and the errors of reads.
    """
    duckdb = _load_duckdb()
    with tempfile.TemporaryDirectory(prefix="compactor-query-") as folder:
        config = {
            "memory_limit": f"{max(1, limits.memory_bytes >> 10)}KiB",
            "temp_directory": folder,
            "python_enable_replacements": "false",
        }
        with closing(duckdb.connect(":memory:", config=config)) as connection, ThreadPoolExecutor(1) as thread:
            query = TopicQuery(duckdb, connection, thread, name, limits)
            connection.execute("SET TimeZone = 'UTC'")
            query.create_topic_views(topics, columns, raw=raw)
            if not limits.reads_files:
                connection.execute("SET enable_external_access = false")
            connection.execute("SET lock_configuration = true")
            yield query


class TopicQuery:
    """An in-memory DuckDB database with a topic as a view, which executes SQL."""

    def __init__(
        self, duckdb: ModuleType, connection: Any, thread: ThreadPoolExecutor, name: str, limits: QueryLimits
    ) -> None:
        self._duckdb, self._connection, self._thread, self._limits = duckdb, connection, thread, limits
        self._has_structures = False
        self._names = list(dict.fromkeys((TABLE, name))) if name.lower() != TABLE else [TABLE]
        self._datasets: list[TopicDataset] = []

    def execute(self, sql: str) -> ResultRows:
        """Execute SQL; return the rows of its last statement, the only one that may have rows.

        Raises InvalidInput, Unavailable, and the errors of reads, also from the iterator.
        """
        with self._convert_duckdb_errors():
            self._check_one_result(sql)
            relation = self._run_interruptibly(lambda: self._connection.sql(sql))
            if relation is None:
                return ResultRows(pa.schema([]), iter(()))
            reader = self._run_interruptibly(lambda: relation.to_arrow_reader(_BATCH_ROWS))
            fields = zip(reader.schema, relation.types, strict=True)
            return ResultRows(pa.schema([_mark_json_fields(*each) for each in fields]), self._stream_batches(reader))

    def _check_one_result(self, sql: str) -> None:
        """Raise InvalidInput if a statement before the last one is a query, whose rows would not be shown."""
        only_rows = [self._duckdb.ExpectedResultType.QUERY_RESULT]
        for statement in self._connection.extract_statements(sql)[:-1]:
            if statement.expected_result_type == only_rows:
                raise InvalidInput(
                    "the SQL has more than one query, and a command has one result",
                    "run a command for each, or make them one query, with WITH or UNION ALL",
                )

    def _stream_batches(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        with self._convert_duckdb_errors(
            pa.ArrowException, OSError
        ):  # which a stream of Arrow makes of an error of DuckDB
            while (batch := self._run_interruptibly(lambda: next(reader, None))) is not None:
                yield batch

    def _run_interruptibly(self, call: Callable[[], Value]) -> Value:
        """Run a long call in a thread, so that Ctrl-C ends the query, and return the result.

        DuckDB runs no handler of Python while it executes.
        """
        future = self._thread.submit(call)
        try:
            return future.result()
        except KeyboardInterrupt:
            self._connection.interrupt()
            raise

    def create_topic_views(self, topics: Sequence[Topic], columns: SchemaColumns, *, raw: bool) -> None:
        """Create the views that SQL reads: the newest value of each key, or with `raw` all messages."""
        self._has_structures = columns.key.structure is not None or columns.value.structure is not None
        with self._convert_duckdb_errors():
            if raw:
                pieces = [ScanSource(topic, topic.scan(ScanRange()), True) for topic in topics]
                self._register_dataset(_MESSAGES, pieces, columns)
                self._create_views([f"SELECT {_select_list(columns)} FROM {_MESSAGES}"])
                return
            scans = [(topic, topic.scan_newest()) for topic in topics]
            parts = [ScanSource(topic, scan.compacted, False) for topic, scan in scans if scan.compacted]
            tails = [ScanSource(topic, scan.tail, True) for topic, scan in scans if scan.tail]
            self._register_dataset(_COMPACTED, parts, columns)
            self._register_dataset(_MESSAGES, tails, columns)
            create = (
                f'CREATE TEMP TABLE {_NEWEST} AS SELECT partition, key_bytes, max("offset") AS "offset" '
                f"FROM {_MESSAGES} WHERE key_bytes IS NOT NULL GROUP BY partition, key_bytes"
            )
            self._run_interruptibly(lambda: self._connection.execute(create))
            self._replace_newest_by_event_time(scans)
            self._register_dataset(
                _TAIL, [replace(tail, newest=self._newest_offsets(tail.topic)) for tail in tails], columns
            )
            is_newest = f'EXISTS (FROM {_NEWEST} n WHERE n.partition = m.partition AND n."offset" = m."offset")'
            has_later = f"EXISTS (FROM {_NEWEST} n WHERE n.partition = m.partition AND n.key_bytes = m.key_bytes)"
            is_by_event = any(scan.newest_of is not None for _, scan in scans)
            condition = f"({is_newest} OR NOT {has_later})" if is_by_event else f"NOT {has_later}"
            visible = _select_list(columns)
            self._create_views(
                (
                    f"SELECT {visible} FROM {_COMPACTED} m WHERE NOT is_deletion AND {condition}",
                    f"SELECT {visible} FROM {_TAIL} WHERE NOT is_deletion",
                )
            )

    def _newest_offsets(self, topic: Topic) -> OffsetSet:
        """Return the offsets of the newest messages of a topic's keys, from the temporary table."""
        own = f'FROM {_NEWEST} WHERE partition = {topic.name.partition} AND "offset" <> {_NO_OFFSET}'
        ((first, last),) = self._connection.sql(f'SELECT min("offset"), max("offset") {own}').fetchall()
        if first is None:
            return OffsetSet(0, 0)
        offsets = OffsetSet(first, last + 1)
        for batch in self._connection.sql(f'SELECT "offset" {own}').to_arrow_reader(_BATCH_ROWS):
            offsets.add(batch.column(0).to_numpy())
        return offsets

    def _replace_newest_by_event_time(self, scans: Sequence[tuple[Topic, NewestScan]]) -> None:
        """Replace the newest offsets of topics in event-time order by those of the key indexes, since the last message
        of a key need not be its newest."""
        for topic, scan in scans:
            if scan.newest_of is None:
                continue
            own = f"FROM {_NEWEST} WHERE partition = {topic.name.partition}"
            keys = self._connection.sql(f"SELECT key_bytes {own}").to_arrow_table()
            self._connection.execute(f"DELETE {own}")
            for batch in keys.to_batches(_KEYS):
                offsets = scan.newest_of(batch.column(0).to_pylist())
                places = [_value_offset(newest) for newest in offsets.values()]
                table = pa.table({"key_bytes": pa.array(list(offsets), pa.binary()), "offset": places})
                self._connection.register(_unquote(_SEARCHED), table)
                self._connection.execute(
                    f'INSERT INTO {_NEWEST} SELECT {topic.name.partition}, key_bytes, "offset" FROM {_SEARCHED}'
                )
                self._connection.unregister(_unquote(_SEARCHED))

    def _register_dataset(self, name: str, sources: Sequence[ScanSource], columns: SchemaColumns) -> None:
        dataset = TopicDataset(sources, columns)
        self._datasets.append(dataset)
        self._connection.register(_unquote(name), dataset)

    def _create_views(self, selects: Iterable[str]) -> None:
        body = " UNION ALL ".join(selects)
        for name in self._names:
            self._connection.execute(f"CREATE TEMP VIEW {_quote_identifier(name)} AS {body}")

    @contextmanager
    def _convert_duckdb_errors(self, *other_kinds: type[Exception]) -> Iterator[None]:
        """Convert an error of DuckDB, or of `other_kinds`, to InvalidInput or Unavailable. A read's own error is raised
        instead."""
        try:
            yield
        except (self._duckdb.Error, *other_kinds) as error:
            for dataset in self._datasets:
                if dataset.error is not None:
                    raise dataset.error from error
            if str(error).startswith(_OUT_OF_MEMORY):
                raise Unavailable(
                    f"the query needs more than {self._limits.memory_bytes:,} bytes of memory, or more room in "
                    f"{tempfile.gettempdir()} ({_one_line_error(error)})",
                    "raise --memory-limit, or name another folder with TMPDIR",
                ) from error
            raise InvalidInput(
                f"the SQL failed: {_one_line_error(error)}", self._sql_error_remedy(str(error))
            ) from error

    def _sql_error_remedy(self, error: str) -> str:
        if _NO_JSON in error and self._has_structures:
            return (
                "a value that is no JSON cannot be read by the schema; choose --value-encoding base64, which decodes "
                "nothing and finds it: where not json_valid(decode(value))"
            )
        if error.startswith(_NOT_PERMITTED) and not self._limits.reads_files:
            return "choose --external-access, which lets the SQL read and write files and addresses"
        names = " and ".join(map(_quote_identifier, self._names))
        columns = ", ".join(_quote_identifier(name) if name == "offset" else name for name in MESSAGE_COLUMNS)
        return f"correct it; the table is {names}, with the columns {columns}"


def _value_offset(newest: NewestOffset | None) -> int:
    """Return the offset of a key's newest value; -1: it has none, or a tombstone."""
    return _NO_OFFSET if newest is None or newest.is_tombstone else newest.offset


def _select_list(columns: SchemaColumns) -> str:
    """Return the columns of the view, as the select list of a SQL query."""
    special = {"key": _column_expression("key", columns.key), "value": _column_expression("value", columns.value)}
    return ", ".join(special.get(name, f'"{name}"') for name in MESSAGE_COLUMNS)


def _column_expression(name: str, column: Column) -> str:
    text = f"nullif({name}, '')"  # of a message that deletes its key, which is no JSON
    if column.structure is None:
        return name
    if column.structure == JSON:
        return f"CAST({text} AS JSON) AS {name}"
    structure = json.dumps(column.structure).replace("'", "''")
    return f"from_json({text}, '{structure}') AS {name}"


def _mark_json_fields(field: pa.Field, kind: Any) -> pa.Field:
    """Return an Arrow field with JSON marked, also in nested fields. `kind`: its type in DuckDB."""
    if str(kind) == "JSON":
        return mark_as_json(field)
    match kind.id:
        case "struct":
            members = [
                _mark_json_fields(inner, of) for inner, (_, of) in zip(field.type.fields, kind.children, strict=True)
            ]
            return field.with_type(pa.struct(members))
        case "map":
            item = _mark_json_fields(field.type.item_field, kind.children[1][1])
            return field.with_type(pa.map_(field.type.key_field, item))
        case "list":
            return field.with_type(pa.list_(_mark_json_fields(field.type.value_field, kind.children[0][1])))
    return field


def _unquote(name: str) -> str:
    """Return a quoted SQL name without its quotes."""
    return name.strip('"')


def _quote_identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _one_line_error(error: Exception) -> str:
    """Return the first paragraph of an error of DuckDB, which says what is wrong, as one line."""
    text = str(error).partition("\n\n")[0]
    return re.sub(r"\s+", " ", text).strip()
