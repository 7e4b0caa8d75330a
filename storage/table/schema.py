"""The schema of the table, and the name mapping by which readers find columns in parts without field ids.

Columns have the names and field ids of rows objects. Some readers know no name mapping, and read a column of another
name as null. Keys and payloads are `binary`: parts do not mark them as STRING, and readers that expect texts fail, or
return other bytes. Times are `long`: parts have milliseconds, Iceberg's times have microseconds.

The table shows the columns of a message; the others are for readers of the topic. The name mapping has every column of
a part, shown or not: with some of them only, DuckDB reads nulls and pyiceberg reads no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from storage.ledger import rows

SHOWN: Mapping[str, str] = MappingProxyType(
    {
        "offset": "long",
        "ledger_id": "long",
        "entry_id": "long",
        "batch_index": "int",
        "key": "binary",
        "payload": "binary",
        "publish_time": "long",
        "event_time": "long",
        "producer": "string",
        "sequence_id": "long",
        "properties": "map",
    }
)
"""Iceberg's type of each column of the table, by name."""
NUMBERS = MappingProxyType({name: kind for name, kind in SHOWN.items() if kind in ("int", "long")})
"""The columns with bounds in manifests."""
SCHEMA_ID = 0
LAST_COLUMN_ID = max(rows.FIELD_IDS.values())
"""The ids of columns that are not shown are taken, too."""


def _iceberg_type(name: str, kind: str) -> Any:
    if kind != "map":
        return kind
    key, value = (rows.FIELD_IDS[f"{name}.{leaf}"] for leaf in ("key", "value"))
    return {
        "type": "map",
        "key-id": key,
        "key": "string",
        "value-id": value,
        "value-required": False,
        "value": "string",
    }


SCHEMA: Mapping[str, Any] = MappingProxyType(
    {
        "type": "struct",
        "schema-id": SCHEMA_ID,
        "identifier-field-ids": [rows.FIELD_IDS["offset"]],
        "fields": [
            {
                "id": rows.FIELD_IDS[name],
                "name": name,
                "required": not rows.SCHEMA.field(name).nullable,
                "type": _iceberg_type(name, kind),
            }
            for name, kind in SHOWN.items()
        ],
    }
)
"""The schema as table metadata has it. Offsets identify rows; keys cannot, as a key may be null."""


def _name_mapping_of(name: str) -> dict[str, Any]:
    column: dict[str, Any] = {"field-id": rows.FIELD_IDS[name], "names": [name]}
    if SHOWN.get(name) == "map":
        column["fields"] = [
            {"field-id": rows.FIELD_IDS[f"{name}.{leaf}"], "names": [leaf]} for leaf in ("key", "value")
        ]
    return column


NAME_MAPPING = [_name_mapping_of(name) for name in rows.SCHEMA.names]
"""The name mapping as the table's property `schema.name-mapping.default` has it."""
