"""Real input with an exact oracle: 33,098 changes of the files of a large repository, and the tree that they end in.

It is not part of the repository: ../shared/data is beside the clone in CI. A test that needs it is skipped elsewhere.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.budgets import IN_CI

_DATA = Path(__file__).parents[1].parent / "shared" / "data"
CHANGES = _DATA / "bookkeeper.changes.jsonl.gz"


@dataclass(frozen=True)
class RealInput:
    """Changes, each an object with key, value, event time and properties, and the values of the keys at their end."""

    changes: list[dict[str, object]]
    tree: dict[bytes, bytes | None]

    @property
    def messages(self) -> list[tuple[str, bytes | None]]:
        """Key and value of each change; None deletes the key."""
        return [(str(change["key"]), _encoded(change["value"])) for change in self.changes]


def _encoded(value: object) -> bytes | None:
    return None if value is None else str(value).encode()


@cache
def real_input() -> RealInput:
    """Return the input, or skip the test; in CI its absence is a failure."""
    if not CHANGES.exists():
        if IN_CI:
            pytest.fail(f"{CHANGES.name} is missing: CI needs ../shared beside the clone")
        pytest.skip(f"{CHANGES.name} is not beside this clone (../shared/data)")
    with gzip.open(CHANGES, "rt", encoding="utf-8") as lines:
        changes = [json.loads(line) for line in lines]
    with gzip.open(_DATA / "bookkeeper.tree.tsv.gz", "rb") as rows:
        tree = dict(row.rstrip(b"\n").split(b"\t") for row in rows)
    return RealInput(changes, dict(tree))
