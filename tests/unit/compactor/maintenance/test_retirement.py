"""When retired compacted ledgers may be collected, by what tables list."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from compactor.maintenance.retirement import due_times
from storage.ledger.manifest import TableSnapshot
from storage.metadata.records import CompactedLedgerRecord
from storage.model import LogPosition, MessageId, StoredObject

OBJECT = StoredObject("o", 1, 1)
GRACE, AGE = 5, 50


def ledgers(*created: int, retired_at: int | None = None) -> list[CompactedLedgerRecord]:
    """Compacted ledgers 0, 1, … of which each is retired by the next, and the last at `retired_at`."""
    ends = [*created[1:], retired_at]
    return [
        CompactedLedgerRecord(
            number, number, LogPosition(0, MessageId(0, 0)), OBJECT, 0, 0, 0, None, "a", since, end, OBJECT
        )
        for number, (since, end) in enumerate(zip(created, ends, strict=True))
    ]


def table(*snapshots: int) -> TableSnapshot:
    return TableSnapshot(snapshots[-1], 3, snapshots, OBJECT, OBJECT, (), ())


@pytest.mark.parametrize(
    ("rows", "tables", "due"),
    [
        (ledgers(100), [None], {}),
        (ledgers(100, 110, 120), [None] * 3, {0: 110 + GRACE, 1: 120 + GRACE}),
        (ledgers(100, 110), [table(0), table(0, 1)], {0: 110 + AGE}),
        (ledgers(100, 110, 120), [table(0), table(0, 1), table(2)], {0: 120 + GRACE, 1: 120 + GRACE}),
        (ledgers(*range(100, 150, 10)), [table(0), table(0, 1), *(table(n - 1, n) for n in (2, 3, 4))],
         {0: 120 + GRACE, 1: 130 + GRACE, 2: 140 + GRACE, 3: 140 + AGE}),
        (ledgers(100, 110, 120), [table(0), table(0), table(0)], {1: 120 + GRACE}),
        (ledgers(100, 110, 300), [table(0), table(0), table(0, 2)], {0: 300 + AGE, 1: 300 + GRACE}),
        (ledgers(100, 110, 120), [table(0), table(0, 1), None], {0: 120 + GRACE, 1: 120 + GRACE}),
        (ledgers(100, 110, retired_at=130), [table(0), table(0, 1)], {0: 130 + GRACE, 1: 130 + GRACE}),
    ],
    ids=["one", "no tables", "listed", "a shorter list", "the most snapshots", "table behind", "table follows again",
         "table ended", "nothing serves"],
)  # fmt: skip
def test_a_retired_compacted_ledger_stays_while_a_table_needs_it(
    rows: Sequence[CompactedLedgerRecord], tables: Sequence[TableSnapshot | None], due: dict[int, int]
) -> None:
    assert due_times(rows, dict(enumerate(tables)), GRACE, AGE) == due


def test_a_table_that_is_unknown_says_nothing() -> None:
    tables = {0: table(0), 2: table(0, 2), 3: table(3)}
    assert due_times(ledgers(100, 110, 120, 130), tables, GRACE, AGE) == {
        0: 130 + GRACE, 1: 120 + GRACE, 2: 130 + GRACE
    }  # fmt: skip
