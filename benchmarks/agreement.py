"""Whether contenders wrote the same rows: DuckDB reads every output and adds up a hash of each row.

Sums do not depend on order. The hash covers the columns below, so payloads and ids too; `check` fails loudly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass
from pathlib import Path

import duckdb

_COLUMNS = ("offset", "ledger_id", "entry_id", "batch_index", "key", "payload", "publish_time", "event_time", "slot")


class Disagreement(Exception):
    """A contender's output differs; the numbers mean nothing until that is explained."""


@dataclass(frozen=True)
class Fingerprint:
    """What an output holds: rows, the sum of their offsets, and, unless None (not checked), distinct keys and the sum
    of a 64-bit hash of each row with its payload."""

    rows: int
    offset_sum: int
    keys: int | None = None
    row_hashes: int | None = None


def fingerprint(files: Iterable[str | Path], with_payloads: bool) -> Fingerprint:
    """Read an output; `with_payloads`: all that can be known of it, else what is quick."""
    listed = "[" + ", ".join(f"'{file}'" for file in files) + "]"
    columns = ", ".join(f'"{column}"' for column in _COLUMNS)
    more = f"count(DISTINCT key), sum(hash({columns})::hugeint)" if with_payloads else "NULL, NULL"
    with duckdb.connect() as connection:
        connection.execute("SET enable_progress_bar = false")
        found = connection.execute(
            f'SELECT count(*), sum("offset"::hugeint), {more} FROM read_parquet({listed})'
        ).fetchone()
    assert found is not None
    count, offset_sum, keys, hashes = (None if value is None else int(value) for value in found)
    return Fingerprint(count or 0, offset_sum or 0, keys, hashes)


def check(name: str, found: Fingerprint, expected: Fingerprint) -> None:
    """Raises Disagreement unless `found` holds what `expected` does, as far as both were checked."""
    pairs = zip(astuple(found), astuple(expected), strict=True)
    if any(one != other for one, other in pairs if one is not None and other is not None):
        raise Disagreement(f"{name} wrote {found}, this job wrote {expected}")
