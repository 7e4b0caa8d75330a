"""Comparison of the rows that contenders wrote: DuckDB reads every output and adds up a hash of each row.

Sums do not depend on the order. The hash covers the columns below, with payloads and ids.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass
from pathlib import Path

import duckdb

_COLUMNS = ("offset", "ledger_id", "entry_id", "batch_index", "key", "payload", "publish_time", "event_time", "slot")


class Disagreement(Exception):
    """A contender's output differs, so its times are not comparable."""


@dataclass(frozen=True)
class Fingerprint:
    """Content of an output: number of rows, sum of their offsets, number of distinct keys, and sum of a 64-bit hash of
    each row with its payload. None: not checked."""

    rows: int
    offset_sum: int
    keys: int | None = None
    row_hashes: int | None = None


def fingerprint(files: Iterable[str | Path], with_payloads: bool) -> Fingerprint:
    """Return the fingerprint of an output. Without `with_payloads` it has only the quick figures."""
    listed = "[" + ", ".join(f"'{file}'" for file in files) + "]"
    columns = ", ".join(f'"{column}"' for column in _COLUMNS)
    more = f"count(DISTINCT key), sum(hash({columns})::hugeint)" if with_payloads else "NULL, NULL"
    with duckdb.connect() as connection:
        connection.execute("SET enable_progress_bar = false")
        row = connection.execute(
            f'SELECT count(*), sum("offset"::hugeint), {more} FROM read_parquet({listed})'
        ).fetchone()
    assert row is not None
    count, offset_sum, keys, hashes = (None if value is None else int(value) for value in row)
    return Fingerprint(count or 0, offset_sum or 0, keys, hashes)


def check(name: str, actual: Fingerprint, expected: Fingerprint) -> None:
    """Raise Disagreement if a figure that both have differs."""
    pairs = zip(astuple(actual), astuple(expected), strict=True)
    if any(left != right for left, right in pairs if left is not None and right is not None):
        raise Disagreement(f"{name} wrote {actual}, this job wrote {expected}")
