"""A database writes to its own store and to no other one; which that is, both remember."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from compactor.maintenance.garbage import GarbageCollector
from storage.errors import Misconfigured, ObjectDamaged, Unavailable, WrongStore
from storage.ledger.names import STORE_UID
from storage.metadata.store import MetadataStore
from storage.objects.interface import ObjectStore
from storage.objects.local import LocalStore
from storage.objects.registry import open_store
from storage.store_identity import StoreIdentity
from tests.clocks import ManualClock
from tests.counted import CountedStore
from tests.entries import produce, single
from tests.workbench import Workbench, content, raw


def database(folder: Path, name: str = "metadata") -> MetadataStore:
    """Open the database as another process does."""
    metadata = MetadataStore(f"sqlite:///{folder / name}.db", ManualClock())
    metadata.upgrade()
    return metadata


def store_at(folder: Path, name: str) -> ObjectStore:
    return open_store((folder / name).as_uri())


def names(store: ObjectStore) -> list[str]:
    return [info.name for info in store.list()]


@pytest.fixture
def wrong(bench: Workbench, tmp_path: Path) -> Workbench:
    """The same database with a mistyped store, in another process."""
    return replace(bench, metadata=database(tmp_path), store=store_at(tmp_path, "objetcs"))


def test_nothing_is_written_to_a_mistyped_store(bench: Workbench, wrong: Workbench) -> None:
    """And nothing acknowledged is lost: its segment stays where it is (e20)."""
    topic, wrong_topic = bench.topic(), wrong.topic()
    produce(topic, [single(b"a", b"1")])
    topic.log_manager().roll(topic.record)
    before = bench.metadata.topic_snapshot(topic.record.id)
    for write in (
        lambda: wrong_topic.log_manager().roll_and_seal(wrong_topic.record),
        lambda: list(wrong_topic.log_manager().seal_accepting_loss(wrong_topic.record)),
        lambda: wrong_topic.bulk_append().append([content((b"b", b"1"))]),
        lambda: wrong.compact(wrong_topic),
        lambda: wrong.compactor().dry_run(wrong_topic.name),
        lambda: GarbageCollector(wrong).collect(wrong_topic.record),
        lambda: list(GarbageCollector(wrong).collect_all(dry_run=True)),
    ):
        with pytest.raises(WrongStore, match=r"objetcs has no uid.*which was at file:.*/objects"):
            write()
    assert names(wrong.store) == []
    assert bench.metadata.topic_snapshot(topic.record.id) == before
    assert bench.metadata.attempts.of_topic(topic.record.id) == []
    assert [message.key for message in raw(topic)] == [b"a"]


def test_nothing_is_written_to_the_folder_of_a_disk_that_is_not_mounted_any_more(bench: Workbench) -> None:
    """A process that has written there goes on when the disk is back; what was acknowledged meanwhile is kept."""
    topic, store = bench.topic(), bench.store
    assert isinstance(store, LocalStore)
    bench.append(topic, [content((b"a", b"1"))])
    bench.compact(topic)
    away = store.root.rename(store.root.with_name("away"))
    store.root.mkdir()
    produce(topic, [single(b"a", b"2")])
    topic.log_manager().roll(topic.record)
    for write in (
        lambda: topic.log_manager().roll_and_seal(topic.record),
        lambda: topic.bulk_append().append([content((b"b", b"1"))]),
        lambda: bench.compact(topic),
        lambda: GarbageCollector(bench).collect(topic.record),
    ):
        with pytest.raises(WrongStore, match=r"has no uid.*which was there: check .* that its disk is mounted"):
            write()
    assert not list(store.root.iterdir())
    store.root.rmdir()
    away.rename(store.root)
    bench.compact(topic)
    assert [message.payload for message in topic.messages(read_compacted=True)] == [b"2"]


@pytest.mark.parametrize("before", [True, False])
def test_two_processes_that_start_at_once_bind_the_same(tmp_path: Path, before: bool) -> None:
    """The other one binds the two while this one looks: right before, or right after its first check the store."""
    fresh = database(tmp_path, "fresh")
    other = StoreIdentity(fresh, store_at(tmp_path, "new"))

    class Watched(LocalStore):
        looks = 0

        def get(self, name: str) -> bytes:
            self.looks += 1
            if self.looks == 1 and before:
                other.check_or_bind()
            try:
                return super().get(name)
            finally:
                if self.looks == 1 and not before:
                    other.check_or_bind()

    metadata = database(tmp_path, "fresh")
    StoreIdentity(metadata, Watched(tmp_path / "new")).check_or_bind()
    assert metadata.store_binding.find() == fresh.store_binding.find()
    assert metadata.store_binding.verified_locations


def test_a_fresh_database_writes_to_no_store_of_another_one(bench: Workbench, tmp_path: Path) -> None:
    """With `unknown_topics` it would delete every object of the other database."""
    bench.append(bench.topic(), [content((b"a", b"1"))])
    before = names(bench.store)
    fresh = replace(bench, metadata=database(tmp_path, "fresh"))
    collector = GarbageCollector(fresh, grace_ms=0, skew_ms=-1)
    for write in (lambda: list(collector.collect_all(unknown_topics=True)), lambda: fresh.append(fresh.topic(), [])):
        with pytest.raises(WrongStore, match=r"belongs to another database.*this one .*fresh\.db\) has none yet"):
            write()
    assert names(bench.store) == before
    assert fresh.metadata.store_binding.find() is None


def test_the_store_of_two_databases_that_were_both_bound(bench: Workbench, tmp_path: Path) -> None:
    other = replace(bench, metadata=database(tmp_path, "other"), store=store_at(tmp_path, "others"))
    StoreIdentity(other.metadata, other.store).check_or_bind()
    with pytest.raises(WrongStore, match="is another one"):
        StoreIdentity(database(tmp_path, "other"), bench.store).check()


def test_it_costs_one_small_get_a_process(bench: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = database(tmp_path)
    counted = CountedStore(monkeypatch)
    counted.objects[STORE_UID] = bench.store.get(STORE_UID)
    for _ in range(3):
        StoreIdentity(metadata, counted).check()
        StoreIdentity(metadata, counted).check_or_bind()
    assert sum(counted.requests.values()) == 1


def test_readers_make_nothing(tmp_path: Path) -> None:
    metadata, store = database(tmp_path), store_at(tmp_path, "objects")
    StoreIdentity(metadata, store).check()
    assert names(store) == []
    assert metadata.store_binding.find() is None
    StoreIdentity(metadata, store).check_or_bind()
    binding = metadata.store_binding.find()
    assert binding is not None
    assert binding.confirmed
    assert store.get(STORE_UID).startswith(binding.uid.encode())


def test_a_database_and_store_from_before_are_bound_in_silence(bench: Workbench, tmp_path: Path) -> None:
    topic = bench.topic()
    bench.append(topic, [content((b"a", b"1"))])
    forget(bench)
    metadata = database(tmp_path)
    mistyped = store_at(tmp_path, "objetcs")
    with pytest.raises(WrongStore, match=r"does not have the object topics/.*which the database names"):
        StoreIdentity(metadata, mistyped).check_or_bind()
    assert names(mistyped) == []
    StoreIdentity(metadata, bench.store).check_or_bind()
    assert STORE_UID in names(bench.store)


def test_a_fresh_database_is_not_bound_in_silence_to_a_store_in_use(bench: Workbench, tmp_path: Path) -> None:
    """An older version left no uid there; garbage collection would delete it all (e20)."""
    topic = bench.topic()
    bench.append(topic, [content((b"a", b"1"))])
    forget(bench)
    before = names(bench.store)
    fresh = database(tmp_path, "fresh")
    collector = GarbageCollector(replace(bench, metadata=fresh), grace_ms=0, skew_ms=-1)
    with pytest.raises(WrongStore, match=rf"has objects of a topic \({topic.record.uid}\) that .*fresh\.db\) does not"):
        list(collector.collect_all(unknown_topics=True))
    assert names(bench.store) == before
    assert fresh.store_binding.find() is None


@pytest.mark.parametrize("deleted", [False, True])
def test_what_a_topic_without_ledgers_left_is_the_databases_own(
    bench: Workbench, tmp_path: Path, deleted: bool
) -> None:
    topic = bench.topic()
    bench.store.put(f"topics/{topic.record.uid}/runs/left", b"")
    forget(bench)
    if deleted:
        bench.metadata.tenancy.delete_topic(topic.record.id)
    StoreIdentity(database(tmp_path), bench.store).check_or_bind()
    assert STORE_UID in names(bench.store)


def test_a_binding_that_was_cut_off_is_finished_by_the_next_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata, store = database(tmp_path), store_at(tmp_path, "objects")
    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "put", lambda *_: (_ for _ in ()).throw(Unavailable("away", "wait")))
        with pytest.raises(Unavailable):
            StoreIdentity(metadata, store).check_or_bind()
    begun = metadata.store_binding.find()
    assert begun is not None
    assert not begun.confirmed
    again = database(tmp_path)
    put = LocalStore.put

    def put_without_answer(local: LocalStore, name: str, data: bytes) -> None:
        put(local, name, data)
        raise Unavailable("away", "wait")

    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "put", put_without_answer)
        with pytest.raises(Unavailable):
            StoreIdentity(again, store).check_or_bind()
    StoreIdentity(again, store).check()
    StoreIdentity(again, store).check_or_bind()
    finished = again.store_binding.find()
    assert finished is not None
    assert (finished.uid, finished.confirmed) == (begun.uid, True)
    assert store.get(STORE_UID).startswith(begun.uid.encode())
    # another database is first
    late = database(tmp_path, "late")
    late.store_binding.ensure(store.url)
    with pytest.raises(WrongStore, match="belongs to another database"):
        StoreIdentity(late, store).check_or_bind()


@pytest.mark.parametrize(
    "change", [lambda data: data[:20], lambda data: bytes([data[0] ^ 1]) + data[1:], lambda _: b""]
)
def test_a_damaged_uid_is_damage(bench: Workbench, tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    """And is not taken for another store's."""
    damaged = change(bench.store.get(STORE_UID))
    bench.store.delete(STORE_UID)
    bench.store.put(STORE_UID, damaged)
    with pytest.raises(ObjectDamaged, match=r"store\.uid.* which is no uid"):
        StoreIdentity(database(tmp_path), bench.store).check()


def test_a_store_is_adopted_on_purpose(bench: Workbench, tmp_path: Path) -> None:
    topic = bench.topic()
    bench.append(topic, [content((b"a", b"1"))])
    moved = store_at(tmp_path, "moved")
    identity = StoreIdentity(bench.metadata, moved)
    with pytest.raises(Misconfigured, match="does not have the object topics/"):
        identity.adopt()
    for info in bench.store.list("topics/"):
        moved.put(info.name, bench.store.get(info.name))
    adoption = identity.binding_state()
    assert (adoption.store_uid, adoption.has_object, adoption.is_bound) == (None, True, False)
    assert STORE_UID not in names(moved)
    assert identity.adopt() == adoption
    StoreIdentity(database(tmp_path), moved).check_or_bind()
    with pytest.raises(WrongStore, match="is another one"):
        StoreIdentity(database(tmp_path), bench.store).check()
    assert identity.adopt().is_bound
    # a database that was restored from before, or rebuilt
    fresh = database(tmp_path, "fresh")
    assert StoreIdentity(fresh, moved).adopt().database_uid is None
    StoreIdentity(database(tmp_path, "fresh"), moved).check_or_bind()
    # and one that has lost its objects
    empty = store_at(tmp_path, "empty")
    assert not StoreIdentity(bench.metadata, empty).adopt(force=True).has_object
    StoreIdentity(database(tmp_path), empty).check_or_bind()


def forget(bench: Workbench) -> None:
    """Restore the state of an older version: neither database nor store knows of the other."""
    bench.store.delete(STORE_UID)
    with bench.metadata.database.write() as connection:
        connection.exec_driver_sql("DELETE FROM store_bindings")
