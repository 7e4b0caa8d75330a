"""Verify finds what is seeded: a missing, an extra, an altered, a revived key, in every kind of object.

The topic has parts of several runs, one with a bitmap, an index of several levels, retained tombstones and rows without
a key. Seeds are forged so that every checksum, count and sum is right again (tests/forgery.py); bit flips are not.
Each must be found, under the kind and for the key that were seeded; the clean topic must have nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pyarrow.compute as pc
import pytest
from sqlalchemy import delete, select, update

from compactor.run.plan import RunPolicies, Sizing
from compactor.verify.findings import DifferenceKind
from compactor.verify.verify import Report, Verifier
from storage.metadata.tables import compacted_ledgers, ledgers
from tests.faults.seeds import RECORDS, SEEDS, place
from tests.forgery import Forger, with_value, without
from tests.workbench import Workbench, content, hashing_alike

SIZING = Sizing(parallelism=2, range_records=30, small_range_records=1, part_bytes=1 << 20, small_part_bytes=1)
POLICIES = RunPolicies(retain_null_key=True, tombstone_retention_ms=1000)
SHARES = (0.02, 0.4, 0.97)
"""Shares of an object's bytes before the one whose bit is flipped."""


def verify(bench: Workbench, forger: Forger) -> Report:
    return Verifier(bench, bench.engine, sizing=SIZING).verify(forger.topic.name)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the topic that all seeds begin with.

    Keys `key00` to `key39`, some with newer values in later runs; `early` and `gone` were deleted and their tombstones
    are gone too, that of `kept` is retained. No part ever had the value of `early`.
    """
    folder = tmp_path_factory.mktemp("template")
    bench = Workbench.embedded(folder, sizing=SIZING)
    clock = bench.clock
    with hashing_alike():  # a seed falls into a hash range that its level has
        topic = bench.topic()
    random = Random(1)  # payloads that do not compress: else no part is large beside its neighbours

    def step(later: int, *messages: tuple[bytes | None, bytes | None]) -> None:
        clock.advance(later)
        bench.append(topic, [content(*messages)], 8000)
        bench.compactor().compact(topic.name, POLICIES)

    first = [(b"key%02d" % number, random.randbytes(1000)) for number in range(40)]
    step(0, (b"early", b"1"), (b"early", None), (b"gone", b"1"), *first, (None, b"without"), (b"kept", b"1"))
    step(10, (b"gone", b""), (b"key20", b"second"), (b"key21", b"second"), (None, b"without too"))
    step(2000, (b"key00", b"newest"), (b"key01", b"newest"), (b"kept", None), (b"key20", b"third"), (b"twice", b"1"))
    bench.append(topic, [content((b"key02", b"tail"))])
    bench.metadata.close()
    return folder


@pytest.fixture
def bench(template: Path, tmp_path: Path) -> Iterator[Workbench]:
    shutil.copytree(template, tmp_path / "copy")
    bench = Workbench.embedded(tmp_path / "copy", sizing=SIZING)
    yield bench
    bench.metadata.close()


@pytest.fixture
def forger(bench: Workbench) -> Forger:
    return Forger(bench, bench.topic())


def test_the_clean_topic_has_no_difference(bench: Workbench, forger: Forger) -> None:
    manifest = forger.manifest
    assert len(manifest.parts) >= 2
    assert len(manifest.index) >= 2
    assert any(part.deleted for part in manifest.parts)
    assert (manifest.tombstones, manifest.keys) == (1, 41)
    report = verify(bench, forger)
    assert report.differences == ()
    assert report.unchecked == ()
    assert report.checked["keys"] == 44
    assert report.checked["part rows compared with raw"] == forger.manifest.messages


@pytest.mark.parametrize(("seed", "kind", "key"), SEEDS, ids=lambda item: getattr(item, "__name__", ""))
def test_a_seed_is_found(
    bench: Workbench, forger: Forger, seed: Callable[[Forger], None], kind: DifferenceKind, key: bytes | None
) -> None:
    seed(forger)
    differences = verify(bench, forger).differences
    assert any(item.kind is kind and (key is None or item.key == key) for item in differences), differences


@pytest.mark.parametrize("what", RECORDS)
def test_rows_and_manifests_that_disagree_are_found(bench: Workbench, forger: Forger, what: str) -> None:
    RECORDS[what](forger)
    report = verify(bench, forger)
    assert report.counts.get(DifferenceKind.INCONSISTENT), report


def test_a_pointer_to_an_older_generation_is_found(bench: Workbench, forger: Forger) -> None:
    """Pulsar #26631: a stale pointer would show an older key set."""
    with bench.metadata.database.read() as connection:
        older = connection.execute(
            select(compacted_ledgers).where(compacted_ledgers.c.retired_at.is_not(None))
        ).mappings().first()  # fmt: skip
    assert older is not None
    names = ("manifest_name", "manifest_size", "manifest_crc32c", "messages", "logical_bytes", "stored_bytes")
    with bench.metadata.database.write() as connection:
        serving = update(compacted_ledgers).where(compacted_ledgers.c.retired_at.is_(None))
        connection.execute(serving.values(**{name: older[name] for name in names}))
    report = verify(bench, forger)
    assert report.counts.get(DifferenceKind.INCONSISTENT)


def test_a_lost_row_of_a_ledger_behind_the_horizon_is_found(bench: Workbench, forger: Forger) -> None:
    last = forger.topic.snapshot().ledgers[-1]
    with bench.metadata.database.write() as connection:
        connection.execute(delete(ledgers).where(ledgers.c.ledger_id == last.ledger_id))
    assert verify(bench, forger).counts.get(DifferenceKind.MISSING)


def objects(forger: Forger) -> dict[str, str]:
    """Every object that counts, under a name for a person."""
    manifest, snapshot = forger.manifest, forger.topic.snapshot()
    names = {"manifest": forger.record.manifest.name}
    names |= {f"part {number}": part.rows.stored.name for number, part in enumerate(manifest.parts)}
    names |= {f"bitmaps {number}": part.deleted.name for number, part in enumerate(manifest.parts) if part.deleted}
    names |= {f"rows {number}": ledger.rows.name for number, ledger in enumerate(snapshot.ledgers)}
    names |= {f"index {number}": ledger.index.name for number, ledger in enumerate(snapshot.ledgers)}
    locations = [location for level in manifest.index for location in level]
    return names | {f"level index {number}": location.name for number, location in enumerate(locations)}


@pytest.mark.slow
def test_every_object_that_is_lost_is_named(bench: Workbench, forger: Forger) -> None:
    for what, name in objects(forger).items():
        kept = bench.store.get(name)
        bench.store.delete(name)
        report = verify(bench, forger)
        assert any(
            difference.kind is DifferenceKind.DAMAGED and name in str(difference) for difference in report.differences
        ), what
        bench.store.put(name, kept)
    assert verify(bench, forger).total == 0


@pytest.mark.slow
@pytest.mark.parametrize("turn", [0, *(pytest.param(turn, marks=pytest.mark.soak) for turn in (1, 2))])
def test_every_object_with_a_flipped_bit_is_named(bench: Workbench, forger: Forger, turn: int) -> None:
    """Early, in the middle, late: at one of them in CI, at each in the three turns of `make soak`.

    The first four bytes of a Parquet object mean nothing to anybody.
    """
    for number, (what, name) in enumerate(objects(forger).items(), turn):
        kept = bench.store.get(name)
        flipped = bytearray(kept)
        flipped[max(4, int(len(kept) * SHARES[number % len(SHARES)]))] ^= 0x10
        bench.store.delete(name)
        bench.store.put(name, bytes(flipped))
        report = verify(bench, forger)
        assert any(
            difference.kind is DifferenceKind.DAMAGED and name in str(difference) for difference in report.differences
        ), what
        bench.store.delete(name)
        bench.store.put(name, kept)


def test_without_raw_only_what_the_compacted_ledger_says_of_itself_is_found(bench: Workbench, forger: Forger) -> None:
    """A part that forgot a key is found: its index has it. An altered value is not, and that is said."""
    number, offset = place(forger, b"key05")
    below = [ledger for ledger in forger.topic.snapshot().ledgers if ledger.last_offset <= forger.record.horizon.offset]
    with bench.metadata.database.write() as connection:
        connection.execute(delete(ledgers).where(ledgers.c.ledger_id.in_([item.ledger_id for item in below])))
    clean = verify(bench, forger)
    assert clean.total == 0
    assert clean.checked["part rows compared with raw"] == 0
    assert any("raw is trimmed" in item for item in clean.unchecked)
    forger.part(number, with_value(offset, "payload", b"another"))
    assert verify(bench, forger).total == 0
    forger.part(number, without(offset))
    report = verify(bench, forger)
    assert any(
        difference.kind is DifferenceKind.MISSING and difference.offset == offset for difference in report.differences
    )


def test_many_differences_are_counted_and_some_are_named(bench: Workbench, forger: Forger) -> None:
    number, offset = place(forger, b"key39")
    forger.part(number, lambda table: table.filter(pc.equal(table.column("offset"), offset)))
    verifier = Verifier(bench, bench.engine, sizing=SIZING, limit=2)
    report = verifier.verify(forger.topic.name)
    assert sum(difference.kind is DifferenceKind.MISSING for difference in report.differences) == 2
    assert report.counts[DifferenceKind.MISSING] > 10
