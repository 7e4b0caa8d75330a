"""Documents on stdout: as JSON for scripts, as tables and lines for people.

A document consists of plain values, as JSON has them: an HTTP answer, or a report of `api.reports`. Both programs show
documents with these functions, so a report is the same in both.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from api.cli.kit.shared_arguments import OutputFormat
from api.cli.kit.terminal import escape_controls, print_json, print_line

Cell: TypeAlias = Callable[[str, Any], str]
"""A field's name and value as text."""
_MILLISECONDS = 10**11
"""Smaller numbers are not times since 1970."""


def show(
    document: Any, output: OutputFormat = OutputFormat.TABLE, columns: Sequence[str] = (), cell: Cell | None = None
) -> None:
    """Print a document on stdout.

    A list of objects is a table of `columns` (all fields if empty). Any other list is one line per item. An object is
    one line per field, with dotted names for nested fields. None is `null` in JSON, and no line otherwise. `cell`:
    returns a field's text from its name and value; None: `as_text`.
    """
    if output is OutputFormat.JSON:
        # Python escapes a character that another encoding lacks, and its escapes are not JSON.
        is_utf8 = (sys.stdout.encoding or "").replace("-", "").lower() == "utf8"
        print_json(json.dumps(document, indent=2, ensure_ascii=not is_utf8))
    elif isinstance(document, Mapping):
        for name, value in flatten(document):
            print_line(f"{escape_controls(name):40} {escape_controls((cell or as_text)(name, value))}")
    elif isinstance(document, list) and (columns or (document and all(isinstance(row, Mapping) for row in document))):
        show_table(document, columns or list(dict.fromkeys(name for row in document for name in row)), cell)
    elif isinstance(document, list):
        for value in document:
            print_line(escape_controls(as_text("", value)))
    elif document is not None:
        print_line(escape_controls(as_text("", document)))


def show_table(rows: Iterable[Mapping[str, Any]], columns: Sequence[str], cell: Cell | None = None) -> None:
    """Print a table of `rows`: a header, and the fields `columns` of each row; a missing field is `-`."""
    from api.cli.kit.tables import print_table

    cells = ([(cell or as_text)(name, row.get(name)) for name in columns] for row in rows)
    print_table([name.replace("_", " ") for name in columns], cells)


def flatten(document: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Yield the fields of nested objects by dotted names. `prefix`: the name of the object itself."""
    for key, value in document.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, Mapping) and value:
            yield from flatten(value, name)
        elif isinstance(value, list) and value and all(isinstance(inner, Mapping) for inner in value):
            for position, inner in enumerate(value):
                yield from flatten(inner, f"{name}[{position}]")
        else:
            yield name, value


def as_text(name: str, value: Any) -> str:
    """Return a value as text for a person. A large number whose name ends in `_at` is a time in milliseconds since
    1970."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and name.endswith("_at") and value > _MILLISECONDS:
        from datetime import UTC, datetime

        return datetime.fromtimestamp(value / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False) if value else "-"
    return str(value)
