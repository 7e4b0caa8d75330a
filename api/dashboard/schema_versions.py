"""Versions of a topic's schema, each with its difference to the version before.

A page lists the newest versions, and reads no more of their definitions than `MOST_BYTES`. Definitions are compared as
JSON with a line for each value, so layout alone makes no difference; what is no JSON is compared as text. Comparing
costs up to the square of the lines, so long definitions are not compared.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from api.broker.avro_resolution import MalformedDefinition
from api.broker.schema_compatibility import SchemaType, split_parts
from api.broker.schemas import SchemaRegistry, type_name
from storage.metadata.schemas import SchemaRecord
from storage.model import TopicName

SHOWN = 10
"""The number of newest versions that have a definition on the page."""
MOST_BYTES = 256 << 10
"""The bytes of all definitions of a page."""
MOST_LINES = 600
"""The lines of a definition that is compared, or shown whole."""
_CONTEXT = 3


@dataclass(frozen=True)
class DiffLine:
    """A line of a difference between two schema versions. `kind`: added, removed, place (of the following lines) or
    same."""

    kind: str
    text: str


@dataclass(frozen=True)
class SchemaVersion:
    """A version of a topic's schema. `lines`: its definition, or its difference to `previous`; None: it is too long for
    a page."""

    version: int
    type: str
    created_at: int
    previous: int | None
    lines: Sequence[DiffLine] | None


@dataclass(frozen=True)
class SchemaHistory:
    """The newest versions of a topic's schema, the newest first. `total`: the number of all its versions."""

    versions: Sequence[SchemaVersion]
    total: int


def schema_history(registry: SchemaRegistry, topic: TopicName) -> SchemaHistory:
    """Return the newest versions of a topic's schema, each with its difference to the version before. Reads the
    database."""
    outlines = registry.outlines(topic)
    newest = outlines[-SHOWN - 1 :]
    short = [item for item in newest if item.size <= MOST_BYTES // len(newest)]
    records = registry.load_versions(topic, short) if short else []
    definitions = {record.version: definition_lines(record) for record in records}
    versions = []
    for before, outline in list(zip([None, *newest], newest, strict=False))[-SHOWN:]:
        previous = None if before is None else before.version
        lines = _definition_or_diff_lines(definitions, outline.version, previous)
        versions.append(SchemaVersion(outline.version, type_name(outline.type), outline.created_at, previous, lines))
    return SchemaHistory(versions[::-1], len(outlines))


def _definition_or_diff_lines(
    definitions: Mapping[int, list[str]], version: int, previous: int | None
) -> Sequence[DiffLine] | None:
    """Return the lines of a version, compared with the version `previous` if there is one; None: they are too many.

    `definitions`: those that are not too long, by version.
    """
    if version not in definitions or (previous is not None and previous not in definitions):
        return None
    lines = definitions[version]
    if previous is not None:
        return diff_lines(definitions[previous], lines)
    return [DiffLine("same", line) for line in lines] if len(lines) <= MOST_LINES else None


def definition_lines(schema: SchemaRecord) -> list[str]:
    """Return the type, the properties and the definition of a schema as lines; JSON with a line for each value."""
    lines = [f"type: {type_name(schema.type)}"]
    lines += [f"property {name}: {value}" for name, value in sorted(schema.properties.items())]
    if schema.type == SchemaType.KEY_VALUE:
        try:
            key, value = split_parts(schema.data)
        except MalformedDefinition:
            return lines + _formatted_lines(schema.data)
        return [*lines, "key:", *_formatted_lines(key), "value:", *_formatted_lines(value)]
    return lines + _formatted_lines(schema.data)


def diff_lines(old: Sequence[str], new: Sequence[str]) -> list[DiffLine] | None:
    """Return the lines that differ, and some lines around them; None: there are too many lines to compare."""
    if max(len(old), len(new)) > MOST_LINES:
        return None
    kinds = {"+": "added", "-": "removed", "@": "place"}
    unified = list(difflib.unified_diff(old, new, n=_CONTEXT, lineterm=""))[2:]
    return [DiffLine(kinds.get(line[0], "same"), line) for line in unified]


def _formatted_lines(data: bytes) -> list[str]:
    """Return the definition of a schema as lines of text; JSON is indented."""
    try:
        return json.dumps(json.loads(data), indent=2, ensure_ascii=False).splitlines()
    except (ValueError, RecursionError):
        return data.decode(errors="replace").splitlines()
