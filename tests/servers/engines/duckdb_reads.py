"""Reads Iceberg tables by DuckDB, in an environment of its own; started by tests/servers/table_engines.py.

Standard input: a JSON list of orders. An order is SQL to execute before, and a query. Standard output: a JSON list of
the rows of each query, with bytes as hexadecimal digits.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import duckdb
from duckdb_extensions import import_extension


def cell(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes | bytearray) else value


def main() -> None:
    connection = duckdb.connect()
    for extension in ("avro", "httpfs", "iceberg"):
        import_extension(extension, con=connection)
        connection.execute(f"LOAD {extension}")
    answers = []
    for order in json.load(sys.stdin):
        for statement in order["before"]:
            connection.execute(statement)
        rows = connection.execute(order["query"]).fetchall()
        answers.append([[cell(value) for value in row] for row in rows])
    json.dump(answers, sys.stdout)


main()
