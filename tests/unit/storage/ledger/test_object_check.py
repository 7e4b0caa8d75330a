"""The objects of a ledger are in the store, at their full lengths (R8): what is listed, and what is named."""

from __future__ import annotations

import pytest

from storage.errors import ObjectDamaged, ObjectMissing
from storage.ledger import names, object_check
from storage.ledger.object_check import check_compacted_objects, first_damaged_ledger
from storage.topic import Topic
from tests.workbench import Workbench, content, two_generations


@pytest.mark.parametrize("listings", [0, 64])
def test_the_objects_of_many_runs_are_listed_at_once(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, listings: int
) -> None:
    topic = two_generations(bench)
    manifest = bench.manifest(topic)
    monkeypatch.setattr(object_check, "LISTINGS", listings)
    prefixes: list[str] = []
    list_objects = bench.store.list

    def recorded(prefix: str) -> object:
        prefixes.append(prefix)
        return list_objects(prefix)

    monkeypatch.setattr(bench.store, "list", recorded)
    check_compacted_objects(bench.store, manifest)
    runs = names.runs_prefix(manifest.topic_uid)
    assert [prefix == runs for prefix in prefixes] == [listings == 0]
    assert prefixes[0].startswith(runs)
    part = manifest.parts[0].rows.stored
    bench.store.delete(part.name)
    with pytest.raises(ObjectMissing, match=part.name):
        check_compacted_objects(bench.store, manifest)


def two_ledgers(bench: Workbench) -> Topic:
    topic = bench.topic()
    for key in (b"a", b"b"):
        bench.append(topic, [content((key, b"1"))])
    return topic


@pytest.mark.parametrize("is_index", [False, True])
def test_the_first_raw_ledger_that_lacks_bytes_is_named(bench: Workbench, is_index: bool) -> None:
    topic = two_ledgers(bench)
    ledgers, uid, store = topic.snapshot().ledgers, topic.record.uid, bench.store
    assert first_damaged_ledger(store, uid, ledgers) is None
    for ledger in reversed(ledgers):
        name = ledger.index.name if is_index else ledger.rows.name
        data = store.get(name)
        store.delete(name)
        store.put(name, data[:-1])
        damaged = first_damaged_ledger(store, uid, ledgers)
        assert damaged is not None
        assert damaged[0] == ledger
        assert isinstance(damaged[1], ObjectDamaged)
        store.delete(name)
        damaged = first_damaged_ledger(store, uid, ledgers)
        assert damaged is not None
        assert (damaged[0], type(damaged[1])) == (ledger, ObjectMissing)
        assert name in damaged[1].message
