"""Keys and values of many messages as columns, by the schema of their topic.

    AVRO, JSON                  texts of JSON, and the structure by which a query makes structs of them
    BOOLEAN, INT8 to DOUBLE     booleans and numbers
    DATE to LOCAL_DATE_TIME     texts in ISO 8601
    KEY_VALUE                   of SEPARATED encoding both parts by their own types; of INLINE the pair as JSON
    all others, and no schema   texts, or bytes if the caller asks for bytes

Records of Avro are read by the version that the message names, and resolved to the newest one. A structure has the
names and types of the newest version: unions of several types, maps, and records inside of themselves stay JSON. In
JSON, bytes of Avro are base64, and its logical types are texts that SQL casts.

Definitions and payloads come from clients. fastavro bounds neither the depth of a value nor the length of a list whose
items take no bytes, so definitions that allow these are read by the slower `avro_values.py`, which does, without
logical types and without resolution.

Raises InvalidInput, which names the offset.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import fastavro
import msgspec
import pyarrow as pa
from fastavro.read import LOGICAL_READERS
from google.protobuf.message import DecodeError

from api.broker import avro_resolution, avro_values, schema_values
from api.broker.schema_compatibility import SchemaType, split_parts
from api.broker.schemas import type_name
from api.formats.text_encoding import TextEncoding
from storage.entries.pulsar_metadata_pb2 import MessageMetadata
from storage.errors import InvalidInput
from storage.metadata.schemas import SchemaRecord

JSON = "JSON"
"""A structure: JSON that is no struct."""
_VERSION_BYTES = 8
_NUMBERS: Mapping[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    **dict.fromkeys(("INT8", "INT16", "INT32", "INT64"), pa.int64()),
    **dict.fromkeys(("FLOAT", "DOUBLE"), pa.float64()),
}
_TIMES = ("DATE", "TIME", "TIMESTAMP", "INSTANT", "LOCAL_DATE", "LOCAL_TIME", "LOCAL_DATE_TIME")
_PRIMITIVES = {
    "boolean": "BOOLEAN",
    "int": "BIGINT",
    "long": "BIGINT",
    "float": "DOUBLE",
    "double": "DOUBLE",
    "string": "VARCHAR",
    "enum": "VARCHAR",
    "bytes": "VARCHAR",
    "fixed": "VARCHAR",
}
_LOGICAL = {
    "int-date": "DATE",
    "int-time-millis": "TIME",
    "long-time-micros": "TIME",
    "long-timestamp-millis": "TIMESTAMPTZ",
    "long-timestamp-micros": "TIMESTAMPTZ",
    "long-local-timestamp-millis": "TIMESTAMP",
    "long-local-timestamp-micros": "TIMESTAMP",
    "string-uuid": "UUID",
}
_MOST_DIGITS = 38
_MOST_MEMBERS = 10_000
"""The members of a structure; a short definition may repeat its types without end."""
_FEWEST_BYTES = {"null": 0, "float": 4, "double": 8}
"""The bytes that a value of a type takes at least, if not one."""


@dataclass(frozen=True)
class Cells:
    """The keys or the payloads of some messages, with their offsets. `metadata`: the fields of each message's Pulsar
    metadata that no column holds, encoded; None: unknown."""

    data: pa.Array
    offsets: pa.Array
    metadata: pa.Array | None = None


@dataclass(frozen=True)
class Column:
    """The conversion of keys or payloads to a column of a query. `type`: that of the values of `convert`.

    `structure`: the structure of JSON texts for DuckDB's `from_json`, or `JSON`; None: the values are not JSON.
    `needs_metadata`: the metadata of a message names the schema version that decodes it.
    """

    type: pa.DataType
    convert: Callable[[Cells], pa.Array]
    structure: Any = None
    needs_metadata: bool = False


@dataclass(frozen=True)
class SchemaColumns:
    """The conversions of the keys and of the values of a topic's messages to columns of a query."""

    key: Column
    value: Column


def schema_columns(
    versions: Sequence[SchemaRecord], key_encoding: TextEncoding, value_encoding: TextEncoding
) -> SchemaColumns:
    """Return the conversion of a topic's keys and values to query columns, by its schema.

    `versions`: those of the schema, oldest first. Base64 as encoding: keys or values stay bytes, whatever the schema.
    """
    key, value = _plain_column("key", key_encoding), _plain_column("value", value_encoding)
    if not versions:
        return SchemaColumns(key, value)
    newest = versions[-1]
    if type_name(newest.type) == "KEY_VALUE":
        if newest.properties.get("kv.encoding.type") != "SEPARATED":
            return SchemaColumns(
                key, value if value_encoding is TextEncoding.BASE64 else _row_decode_column("value", newest, JSON)
            )
        pairs = [_key_and_value_schemas(version) for version in versions if version.type == newest.type]
        if key_encoding is TextEncoding.UTF8:
            key = _column_by_newest_schema("key", [key for key, _ in pairs]) or key
        if value_encoding is TextEncoding.UTF8:
            value = _column_by_newest_schema("value", [value for _, value in pairs]) or value
        return SchemaColumns(key, value)
    if value_encoding is TextEncoding.UTF8:
        value = _column_by_newest_schema("value", versions) or value
    return SchemaColumns(key, value)


def _key_and_value_schemas(pair: SchemaRecord) -> tuple[SchemaRecord, SchemaRecord]:
    """Return the schemas of key and value of a KEY_VALUE schema."""
    records = []
    for name, data in zip(("key", "value"), split_parts(pair.data), strict=True):
        kind = pair.properties.get(f"{name}.schema.type") or "BYTES"
        number = SchemaType[kind] if kind in SchemaType.__members__ else SchemaType.NONE
        records.append(SchemaRecord(pair.version, int(number), name, data))
    return records[0], records[1]


def _column_by_newest_schema(name: str, versions: Sequence[SchemaRecord]) -> Column | None:
    """Return a column of the type that the newest version of a schema has; None: that type does not describe the bytes.

    Older versions serve to decode the Avro records that were written by them.
    """
    newest = versions[-1]
    kind = type_name(newest.type)
    if kind in _NUMBERS or kind in _TIMES:
        return _row_decode_column(name, newest)
    if kind not in ("AVRO", "JSON"):
        return None
    try:
        _parse_avro(newest.data)
    except (avro_resolution.MalformedDefinition, avro_resolution.TooComplex, RecursionError):
        return None  # older clients describe JSON by another kind of definition
    if kind == "JSON":
        plain = _plain_column(name, TextEncoding.UTF8)
        return Column(plain.type, plain.convert, _DuckdbStructure({}, "JSON").structure_of(json.loads(newest.data)))
    records = _AvroRecordConverter(name, versions)
    return Column(pa.string(), records.convert, records.structure, needs_metadata=True)


def _plain_column(name: str, encoding: TextEncoding) -> Column:
    """Return a column of UTF-8 texts, or of bytes, without decoding by a schema."""
    kind = pa.string() if encoding is TextEncoding.UTF8 else pa.binary()

    def convert(cells: Cells) -> pa.Array:
        try:
            return cells.data.cast(kind)
        except pa.ArrowInvalid as error:
            for offset, data in zip(cells.offsets.to_pylist(), cells.data.to_pylist(), strict=True):
                try:
                    (data or b"").decode()
                except UnicodeDecodeError as reason:
                    text = f"the {name} at offset {offset} is not UTF-8 text ({reason.reason})"
                    raise InvalidInput(text, f"choose --{name}-encoding base64") from error
            raise

    return Column(kind, convert)


def _row_decode_column(name: str, schema: SchemaRecord, structure: Any = None) -> Column:
    """Return a column whose values are decoded by a schema one by one. `structure` JSON: the values become JSON."""
    kind = pa.string() if structure == JSON else _NUMBERS.get(type_name(schema.type), pa.string())

    def convert(cells: Cells) -> pa.Array:
        values = []
        for offset, data in zip(cells.offsets.to_pylist(), cells.data.to_pylist(), strict=True):
            try:
                value = schema_values.decode_to_value(schema, data, None) if data else None
            except schema_values.NotDecoded as error:
                raise _undecodable_error(name, offset, schema, error) from error
            values.append(json.dumps(value) if structure == JSON and value is not None else value)
        return pa.array(values, kind)

    return Column(kind, convert, structure)


def _undecodable_error(name: str, offset: int, schema: SchemaRecord, error: Exception) -> InvalidInput:
    """Return the error for a key or value that a schema version cannot decode."""
    reader = f"as {type_name(schema.type)} by version {schema.version} of the schema"
    reason = str(error)[:200] or type(error).__name__
    return InvalidInput(
        f"the {name} at offset {offset} cannot be decoded {reader} ({reason})",
        f"choose --{name}-encoding base64, which decodes nothing",
    )


class _AvroRecordConverter:
    """Converter of Avro records to JSON texts, by all versions of a topic's schema. `structure`: as in `Column`."""

    def __init__(self, name: str, versions: Sequence[SchemaRecord]) -> None:
        self._name = name
        self._newest = versions[-1]
        self._versions = {version.version: version for version in versions}
        self._readers: dict[int, Callable[[bytes], Any]] = {}
        definition = json.loads(self._newest.data)
        self._target = _fastavro_schema(definition)
        logical = _LOGICAL if self._target is not None else {}
        self.structure = _DuckdbStructure(logical, "AVRO" if self._target is not None else "").structure_of(definition)

    def convert(self, cells: Cells) -> pa.Array:
        """Return the JSON text of each Avro record; null for an empty one. Raises InvalidInput."""
        encode = msgspec.json.Encoder(enc_hook=str).encode
        texts: list[bytes | None] = []
        named = self._message_versions(cells)
        for offset, version, data in zip(cells.offsets.to_pylist(), named, cells.data.to_pylist(), strict=True):
            if not data:
                texts.append(None)
                continue
            record = self._versions.get(version)
            if record is None:
                raise InvalidInput(
                    f"the {self._name} at offset {offset} names version {version} of the schema, which the topic does "
                    "not have",
                    f"choose --{self._name}-encoding base64, which decodes nothing",
                )
            try:
                texts.append(encode(self._cached_decoder(record)(data)))
            except Exception as error:  # fastavro raises EOFError, IndexError, SchemaResolutionError and others
                raise _undecodable_error(self._name, offset, record, error) from error
        return pa.array(texts, pa.binary()).cast(pa.string())

    def _message_versions(self, cells: Cells) -> list[int]:
        """Return the schema version of each message: the one that its metadata names, or the newest."""
        newest = self._newest.version
        if cells.metadata is None or cells.metadata.null_count == len(cells.metadata):
            return [newest] * len(cells.data)
        distinct = cells.metadata.dictionary_encode()
        versions = [_schema_version_in(data) for data in distinct.dictionary.to_pylist()]
        indices = distinct.indices.to_pylist()
        named = [None if index is None else versions[index] for index in indices]
        return [newest if version is None else version for version in named]

    def _cached_decoder(self, record: SchemaRecord) -> Callable[[bytes], Any]:
        """Return the function that decodes records of a schema version. Raises ValueError for another schema type."""
        reader = self._readers.get(record.version)
        if reader is None:
            if type_name(record.type) != "AVRO":
                raise ValueError(f"the newest version is of type {type_name(self._newest.type)}")
            reader = self._readers[record.version] = self._new_decoder(record)
        return reader

    def _new_decoder(self, record: SchemaRecord) -> Callable[[bytes], Any]:
        parsed = _parse_avro(record.data)
        written = _fastavro_schema(json.loads(record.data))
        if written is None or self._target is None:
            return lambda data: avro_values.decode(parsed, data)
        target = None if record.version == self._newest.version else self._target

        def read(data: bytes) -> Any:
            stream = BytesIO(data)
            value = fastavro.schemaless_reader(stream, written, target)
            if stream.tell() != len(data):
                raise ValueError(f"{len(data) - stream.tell()} bytes follow the value")
            return value

        return read


def _parse_avro(definition: bytes) -> Any:
    """Parse an Avro definition as `avro_resolution.parse` does, without warnings about unknown logical types."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return avro_resolution.parse(definition)


def _schema_version_in(metadata: bytes) -> int | None:
    """Return the schema version in a message's metadata; None: it has none; -1: it has the wrong length."""
    parsed = MessageMetadata()
    try:
        parsed.MergeFromString(metadata)
    except DecodeError:
        return None
    if not parsed.HasField("schema_version"):
        return None
    sent = parsed.schema_version
    return int.from_bytes(sent, "big", signed=True) if len(sent) == _VERSION_BYTES else -1


def _fastavro_schema(definition: Any) -> Any:
    """Parse an Avro definition for fastavro; None: fastavro cannot parse it, or its values have no bounded size."""
    try:
        _MinimumSize().minimum_bytes(definition)
        return fastavro.parse_schema(definition)
    except (_UnboundedValues, fastavro.schema.SchemaParseException, fastavro.schema.UnknownType, ValueError, TypeError):
        return None


class _UnboundedValues(Exception):
    """An Avro definition allows values that are nested without end, or lists whose items have no bytes."""


class _NamedTypes:
    """The named types of an Avro definition, collected during a walk through it."""

    def __init__(self) -> None:
        self._definitions: dict[str, Any] = {}
        self._open: list[int] = []

    def enter(self, node: Mapping[str, Any]) -> None:
        """Store a named type (record, enum or fixed), and mark it as the current one until `leave`."""
        name = str(node.get("name", ""))
        self._definitions[name.rpartition(".")[2]] = node
        self._open.append(id(node))

    def leave(self) -> None:
        """End the current named type."""
        self._open.pop()

    def definition(self, name: str) -> Any:
        """Return the definition of a named type; None: it is unknown, or recursive: the walk is inside of it."""
        node = self._definitions.get(name.rpartition(".")[2])
        return None if node is None or id(node) in self._open else node


class _MinimumSize:
    """Computation of the minimum size of an Avro value by its definition. Raises _UnboundedValues."""

    def __init__(self) -> None:
        self._names = _NamedTypes()
        self._known: dict[int, int] = {}

    def minimum_bytes(self, node: Any) -> int:
        """Return the minimum number of bytes of a value of a definition. Raises _UnboundedValues."""
        if isinstance(node, dict):
            if id(node) not in self._known:
                self._known[id(node)] = self._object_bytes(node)
            return self._known[id(node)]
        if isinstance(node, list):
            for branch in node:
                self.minimum_bytes(branch)
            return 1
        if isinstance(node, str):
            if node in _PRIMITIVES or node == "null":
                return _FEWEST_BYTES.get(node, 1)
            definition = self._names.definition(node)
            if definition is None:
                raise _UnboundedValues
            return self.minimum_bytes(definition)
        raise _UnboundedValues

    def _object_bytes(self, node: Mapping[str, Any]) -> int:
        kind = node["type"]
        match kind:
            case "array":
                if not self.minimum_bytes(node["items"]):
                    raise _UnboundedValues
                return 1
            case "map":
                self.minimum_bytes(node["values"])
                return 1
            case "fixed" | "enum":
                self._names.enter(node)
                self._names.leave()
                return int(node["size"]) if kind == "fixed" else 1
            case "record" | "error":
                self._names.enter(node)
                fewest = sum(self.minimum_bytes(field["type"]) for field in node["fields"])
                self._names.leave()
                return fewest
        return self.minimum_bytes(kind)


class _DuckdbStructure:
    """Conversion of an Avro definition to a structure for DuckDB's `from_json`.

    `logical`: types of SQL for Avro's logical types. `encoding`: AVRO, JSON, or empty: logical types are not decoded.
    """

    def __init__(self, logical: Mapping[str, str], encoding: str) -> None:
        self._logical, self._encoding = logical, encoding
        self._names = _NamedTypes()
        self._members = 0

    def structure_of(self, node: Any) -> Any:
        """Return DuckDB's structure for a part of the definition: a type name, list or mapping; `JSON`: any value."""
        self._members += 1
        if self._members > _MOST_MEMBERS:
            return JSON
        if isinstance(node, list):
            branches = [branch for branch in node if branch != "null"]
            structures = [self.structure_of(branch) for branch in branches]
            return structures[0] if len(structures) == 1 else JSON
        if isinstance(node, str):
            if node in _PRIMITIVES:
                return _PRIMITIVES[node]
            definition = self._names.definition(node)
            return JSON if definition is None else self.structure_of(definition)
        kind = node["type"]
        match kind:
            case "array":
                return [self.structure_of(node["items"])]
            case "map":
                self.structure_of(node["values"])  # it may define types
                return JSON
            case "record" | "error":
                return self._record_structure(node)
            case "fixed" | "enum":
                self._names.enter(node)
                self._names.leave()
        return (
            self.structure_of(kind)
            if not isinstance(kind, str) or kind not in _PRIMITIVES
            else self._primitive_structure(kind, node)
        )

    def _record_structure(self, node: Mapping[str, Any]) -> Any:
        self._names.enter(node)
        members = {str(field["name"]): self.structure_of(field["type"]) for field in node["fields"]}
        self._names.leave()
        is_distinct = len({name.lower() for name in members}) == len(members) == len(node["fields"])
        return members if members and is_distinct else JSON

    def _primitive_structure(self, kind: str, node: Mapping[str, Any]) -> Any:
        logical = node.get("logicalType")
        if not isinstance(logical, str) or not self._encoding:
            return _PRIMITIVES[kind]
        if self._encoding == "JSON":  # a number or a text, as the producer's library writes it
            return JSON
        name = f"{kind}-{logical}"
        if name not in LOGICAL_READERS:
            return _PRIMITIVES[kind]
        precision, scale = node.get("precision"), node.get("scale", 0)
        if logical == "decimal" and isinstance(precision, int) and isinstance(scale, int):
            return f"DECIMAL({precision},{scale})" if 0 <= scale <= precision <= _MOST_DIGITS else "VARCHAR"
        return self._logical.get(name, JSON)
