"""Object names: built and parsed by the same module, unlike for every attempt, and foreign ones are known as such."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from storage.ledger import names
from storage.ledger.names import ObjectKind, ParsedName
from storage.objects.interface import check_object_name

IDS = st.text("0123456789abcdef", min_size=32, max_size=32)
NUMBERS = st.integers(0, 2**63 - 1)
BUILDERS: dict[ObjectKind, Callable[[str, str, int], str]] = {
    ObjectKind.LEDGER_ROWS: lambda uid, attempt, number: names.ledger_rows(uid, number, attempt),
    ObjectKind.LEDGER_INDEX: lambda uid, attempt, number: names.ledger_index(uid, number, attempt),
    ObjectKind.MANIFEST: lambda uid, attempt, number: names.manifest(uid, number, attempt),
    ObjectKind.PART: names.part,
    ObjectKind.INDEX: names.compacted_index,
    ObjectKind.ROW_SETS: names.row_sets,
    ObjectKind.BITMAPS: names.bitmaps,
    ObjectKind.CHUNKS: names.chunks,
    ObjectKind.TABLE_DELETES: lambda uid, attempt, number: names.table_deletes(uid, attempt, number, "parquet"),
    ObjectKind.TABLE_MANIFEST: lambda uid, attempt, number: names.table_manifest(uid, attempt, "deletes", number),
    ObjectKind.TABLE_SNAPSHOT: names.table_snapshot,
    ObjectKind.TABLE_METADATA: names.table_metadata,
}
UID, ATTEMPT = "0a" * 16, "f9" * 16


def test_every_kind_of_object_has_a_name() -> None:
    assert set(BUILDERS) == set(ObjectKind)


@pytest.mark.parametrize("kind", ObjectKind)
@given(uid=IDS, attempt=IDS, number=NUMBERS)
def test_a_name_is_read_back_whole(kind: ObjectKind, uid: str, attempt: str, number: int) -> None:
    name = BUILDERS[kind](uid, attempt, number)
    assert names.parse(name) == ParsedName(uid, kind, number, attempt)
    assert name.startswith(names.topic_prefix(uid))
    assert check_object_name(name) == name


@pytest.mark.parametrize("kind", [ObjectKind.PART, ObjectKind.INDEX, ObjectKind.ROW_SETS])
def test_what_a_task_writes_stands_below_its_run_and_never_twice_under_one_name(kind: ObjectKind) -> None:
    first, second = (BUILDERS[kind](UID, ATTEMPT, 3) for _ in range(2))
    assert first.startswith(names.run_prefix(UID, ATTEMPT))
    assert first != second


@given(uid=IDS, attempt=IDS, number=NUMBERS)
def test_a_ledger_of_a_task_is_below_its_attempt(uid: str, attempt: str, number: int) -> None:
    nonces = [names.new_nonce(), names.new_nonce()]
    assert nonces[0] != nonces[1]
    for kind, build in (
        (ObjectKind.LEDGER_ROWS, names.task_ledger_rows),
        (ObjectKind.LEDGER_INDEX, names.task_ledger_index),
    ):
        name = build(uid, attempt, number, nonces[0])
        assert names.parse(name) == ParsedName(uid, kind, number, attempt, is_of_task=True)
        assert name.startswith(names.task_ledgers_prefix(uid, attempt))
        assert name.startswith(names.ledgers_prefix(uid))
        assert check_object_name(name) == name


@given(st.lists(NUMBERS, min_size=2, max_size=8))
def test_names_sort_as_numbers_do(numbers: list[int]) -> None:
    built = [names.ledger_rows(UID, number, ATTEMPT) for number in numbers]
    parsed = [names.parse(name) for name in sorted(built)]
    assert [item.number for item in parsed if item] == sorted(numbers)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "topics",
        f"topics/{UID}/",
        f"topics/{UID}/ledgers/7-{ATTEMPT}.parquet",
        f"topics/{UID}/ledgers/{7:020d}-{ATTEMPT}.parquet.tmp",
        f"topics/{UID}/ledgers/{7:020d}-{ATTEMPT}.parquet\n",
        f"topics/{UID}/ledgers/{7:020d}-{ATTEMPT.upper()}.parquet",
        f"topics/{UID}/ledgers/{7:020d}-{ATTEMPT[:-1]}.parquet",
        f"topics/{UID}/ledgers/{7:020d}-{ATTEMPT}xparquet",
        f"topics/{UID[:-1]}/ledgers/{7:020d}-{ATTEMPT}.parquet",
        f"x/topics/{UID}/ledgers/{7:020d}-{ATTEMPT}.parquet",
        f"topics/{UID}/runs/{ATTEMPT}/part-{7:020d}.parquet",
        f"topics/{UID}/runs/{ATTEMPT}/part-{7:020d}-0123456.parquet",
        f"topics/{UID}/compacted/{7:020d}-{ATTEMPT}.index",
        "probe/0a",
    ],
)
def test_foreign_names_tell_nothing(name: str) -> None:
    assert names.parse(name) is None
