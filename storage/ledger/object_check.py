"""Check that the store has the objects of a compacted ledger, or of raw ledgers, at their full lengths (R8).

Names and sizes come from listings, because a ledger may have thousands of objects; no object is read, so a checksum
that does not match is not noticed. Errors: ObjectMissing, ObjectDamaged, and those of the store.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

from storage.advice import missing_object_advice, truncated_object_advice
from storage.ahead import run_ahead
from storage.errors import DataLoss, ObjectDamaged, ObjectMissing
from storage.ledger import names
from storage.ledger.manifest import Manifest
from storage.model import LedgerRecord
from storage.objects.interface import ObjectStore

LISTINGS = 64
"""Maximum number of runs whose objects are listed run by run. Beyond it, one listing covers all runs of the topic."""


def check_compacted_objects(store: ObjectStore, manifest: Manifest) -> None:
    """Raise ObjectMissing or ObjectDamaged unless the store has each object of the manifest at its full length."""
    needed: dict[str, int] = {}
    for part in manifest.parts:
        needed[part.rows.stored.name] = part.rows.stored.size
        if part.deleted:
            needed[part.deleted.name] = max(needed.get(part.deleted.name, 0), part.deleted.offset + part.deleted.length)
    for level in manifest.index:
        for location in level:
            needed[location.name] = max(needed.get(location.name, 0), location.offset + location.length)
    needed |= {table.name: table.length for table in manifest.chunks}
    sizes = _list_sizes(store, _run_prefixes(manifest.topic_uid, needed), needed)
    for name, size in needed.items():
        _check_size(store, name, size, sizes, "the compacted ledger")


def first_damaged_ledger(
    store: ObjectStore, topic_uid: str, ledgers: Sequence[LedgerRecord]
) -> tuple[LedgerRecord, DataLoss] | None:
    """Return the first raw ledger of which the store lacks an object, or has too few bytes, with the error; else None.

    `ledgers`: of the topic with this uid.
    """
    needed = {
        ledger.ledger_id: {
            ledger.rows.name: ledger.rows.size,
            ledger.index.name: ledger.index.offset + ledger.index.length,
        }
        for ledger in ledgers
    }
    sizes = _list_sizes(store, [names.ledgers_prefix(topic_uid)], {name for each in needed.values() for name in each})
    for ledger in ledgers:
        try:
            for name, size in needed[ledger.ledger_id].items():
                _check_size(store, name, size, sizes, f"the raw ledger {ledger.ledger_id}")
        except DataLoss as error:
            return ledger, error
    return None


def _list_sizes(store: ObjectStore, prefixes: Iterable[str], needed: Collection[str]) -> dict[str, int]:
    """Return the sizes of the needed objects that are under the prefixes, by name."""
    sizes: dict[str, int] = {}
    listings = (partial(_list_sizes_under, store, prefix, needed) for prefix in prefixes)
    for listed in run_ahead(listings, store.concurrent_requests):
        sizes |= listed
    return sizes


def _list_sizes_under(store: ObjectStore, prefix: str, needed: Collection[str]) -> dict[str, int]:
    return {stored.name: stored.size for stored in store.list(prefix) if stored.name in needed}


def _check_size(store: ObjectStore, name: str, size: int, sizes: Mapping[str, int], owner: str) -> None:
    """Raise ObjectMissing or ObjectDamaged unless `sizes` has the object with at least `size` bytes."""
    if name not in sizes:
        raise ObjectMissing(
            f"the object {name} of {owner} is not in the store",
            missing_object_advice(name, store.url),
            is_public=True,
        )
    if sizes[name] < size:
        raise ObjectDamaged(
            f"{name} has {sizes[name]} bytes in the store, not {size}",
            truncated_object_advice(name, store.url),
            is_public=True,
        )


def _run_prefixes(topic_uid: str, needed: Iterable[str]) -> set[str]:
    """Return the prefixes to list: the runs that wrote the objects, or all runs of the topic if those are many."""
    attempts = {parsed.attempt_id for parsed in map(names.parse, needed) if parsed is not None}
    if len(attempts) > LISTINGS:
        return {names.runs_prefix(topic_uid)}
    return {names.run_prefix(topic_uid, attempt_id) for attempt_id in attempts}
