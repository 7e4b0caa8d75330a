"""The end of a topic (S8): every row is gone in one transaction, and work in progress adds no row."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyroaring import BitMap
from sqlalchemy import URL, inspect, text

from storage.errors import CompactorError, ErrorText, Fenced, LeaseHeld, NotFound, TopicNotFound, Unavailable
from storage.failpoints import Failpoint
from storage.metadata.policy_store import topic_scope
from storage.metadata.records import COMPACTION_CURSOR, AttemptKind, DeletedTopic, SegmentState, TopicRecord
from storage.metadata.schemas import SchemaRecord
from storage.metadata.store import MetadataStore
from storage.model import TopicName
from tests.clocks import ManualClock
from tests.conformance.metadata.builders import TTL, append, at_once, claim, compacted, end_of, ledger, publish_all
from tests.conformance.metadata.conftest import OpenStore, OpenStores
from tests.conformance.metadata.log_builders import LOG_UID, broken_link, check_all_or_nothing, content, leased, opened
from tests.cursors import merge
from tests.servers.cut_link import Cut


def filled(store: MetadataStore, name: str) -> TopicRecord:
    """A topic with a row in every table that has topics."""
    topic = store.tenancy.ensure_topic(TopicName.parse(name))
    append(store, topic, 3)
    publish_all(store, topic)
    store.pins.take(topic.id, "reader", TTL)
    store.cursors.create(topic.id, "mine", None, {})
    life = store.cursors.load(topic.id, "mine", 99).incarnation
    merge(store, topic.id, "mine", life, None, {0: BitMap([1])})
    with leased(store, topic) as lease:
        store.segments.roll(lease, (segment := opened(store, lease, topic)).ledger_id, content(segment, 2))
        opened(store, lease, topic)
    store.policies.change([topic_scope(topic)], {"retention.ms": 5})
    store.topics.set_properties(topic.id, {"a": "b"})
    store.compaction_control.request(topic.id, "manual", "me")
    return store.topics.get(topic.name)


def rows(store: MetadataStore) -> dict[str, list[tuple[object, ...]]]:
    """All rows of all tables."""
    with store.database.read() as connection:
        tables = sorted(set(inspect(connection).get_table_names()) - {"alembic_version", "sequences"})
        return {
            table: sorted(map(tuple, connection.execute(text(f"SELECT * FROM {table}"))), key=str) for table in tables
        }


def test_an_unused_topic_is_deleted_and_one_in_use_is_not(store: MetadataStore) -> None:
    def topic(name: str) -> TopicRecord:
        return store.tenancy.ensure_topic(TopicName.parse(name))

    unused, written, read = topic("unused"), topic("written"), topic("read")
    store.cursors.ensure(unused.id, COMPACTION_CURSOR)
    append(store, written, 1)
    store.cursors.create(read.id, "mine", None, {})
    with leased(store, unused):
        assert not store.tenancy.delete_unused_topic(unused.id), "it has a writer"
    assert [store.tenancy.delete_unused_topic(item.id) for item in (unused, written, read)] == [True, False, False]
    assert store.tenancy.delete_unused_topic(unused.id), "it is gone"
    assert {item.name for item in store.topics.all()} >= {written.name, read.name}
    with pytest.raises(TopicNotFound):
        store.topics.get(unused.name)


def test_a_topic_to_which_tasks_append_is_in_use_until_their_attempt_is_finished(store: MetadataStore) -> None:
    topic = store.tenancy.ensure_topic(TopicName.parse("appended"))
    store.attempts.begin(topic.id, AttemptKind.IMPORT, "me")
    appended = store.attempts.begin(topic.id, AttemptKind.TASKS, "me")
    assert not store.tenancy.delete_unused_topic(topic.id)
    assert store.topics.get(topic.name).uid == topic.uid
    store.attempts.finish(appended.attempt_id)
    assert store.tenancy.delete_unused_topic(topic.id)


def test_a_topic_that_others_have_set_up_is_kept_with_all_they_stored(store: MetadataStore) -> None:
    def topic(name: str) -> TopicRecord:
        return store.tenancy.ensure_topic(TopicName.parse(name))

    schema = SchemaRecord(0, 4, "orders", b"{}")
    store.schemas.add(TopicName.parse("schema"), schema, 0)
    items = {
        name: topic(name)
        for name in ("schema", "permissions", "policies", "properties", "paused", "requested", "run", "unused")
    }
    store.tenancy.set_permissions(str(items["permissions"].name), "me", ["produce"])
    store.policies.change([topic_scope(items["policies"])], {"retention.ms": 5})
    store.topics.set_properties(items["properties"].id, {"a": "b"})
    store.compaction_control.pause([items["paused"].id])
    store.compaction_control.request(items["requested"].id, "manual", "me")
    claim(store, items["run"])
    before = rows(store)
    kept = {name for name, item in items.items() if not store.tenancy.delete_unused_topic(item.id)}
    assert kept == set(items) - {"unused"}
    after = rows(store)
    assert {table for table in before if before[table] != after[table]} == {"topics", "leases", "deleted_topics"}


def test_every_row_goes_and_no_other(store: MetadataStore, clock: ManualClock) -> None:
    kept = filled(store, "kept")
    before = rows(store)
    topic = filled(store, "gone")
    assert len([table for table, current in rows(store).items() if current != before[table]]) >= 12
    clock.advance(7)
    deleted = store.tenancy.delete_topic(topic.id)
    assert deleted == DeletedTopic(topic.uid, topic.name, clock.now_ms()) == store.tenancy.deleted_topic(topic.uid)
    after = rows(store)
    assert after.pop("deleted_topics") == [(topic.uid, topic.id, str(topic.name), clock.now_ms(), None)]
    before.pop("deleted_topics")
    assert after == before
    assert store.tenancy.deleted_topic(kept.uid) is None
    with pytest.raises(TopicNotFound, match="the topic persistent://public/default/gone was deleted"):
        store.tenancy.delete_topic(topic.id)


def test_one_made_again_shares_nothing(store: MetadataStore) -> None:
    first = filled(store, "t")
    store.tenancy.delete_topic(first.id)
    again = store.tenancy.ensure_topic(first.name)
    assert again.id > first.id
    assert (again.uid != first.uid, again.next_offset, again.generation, again.epoch) == (True, 0, 0, 0)
    assert store.policies.readable_of_scope(topic_scope(again)) == store.topics.properties(again.id) == {}
    assert store.topic_snapshot(again.id).extents == ()
    assert store.cursors.of_topic(again.id) == []
    assert store.runs.last(again.id) is None


@pytest.fixture
def at_work(store: MetadataStore, topic: TopicRecord) -> dict[str, Callable[[], object]]:
    """Return the next steps of all work that was in progress when the topic was deleted, by name."""
    append(store, topic, 3)
    publish_all(store, topic)
    run = claim(store, topic)
    generation = store.topics.get(topic.name).generation
    result = compacted(store, run, generation + 1, end_of(store.ledgers.of_topic(topic.id)[-1]))
    _, pin = store.pins.take(topic.id, "reader", TTL)
    assert pin is not None
    store.cursors.create(topic.id, "mine", None, {})
    life = store.cursors.load(topic.id, "mine", 99).incarnation
    lease = store.leases.acquire(topic.id, "writer", TTL)
    segment = opened(store, lease, topic)
    rolled = store.segments.roll(lease, segment.ledger_id, content(segment, 2))
    claimed = store.sealing.claim(topic.id, "sealer", LOG_UID, 1)
    assert claimed is not None
    sealing = claimed[1]
    opened_one = opened(store, lease, topic)
    importing = store.attempts.begin(topic.id, AttemptKind.IMPORT, "import")
    imported = ledger(store.ledgers.allocate_ids(1), 5, 2, importing.attempt_id)
    sealed = ledger(rolled.ledger_id, 3, 2, sealing.attempt_id)
    return {
        "publish": lambda: store.publishing.publish(run, generation, result, {}),
        "progress": lambda: store.runs.update(run, phase="phase one"),
        "finish": lambda: store.runs.succeed_unchanged(run, {}),
        "fail": lambda: store.runs.fail(run, ErrorText("why")),
        "claim": lambda: claim(store, topic),
        "renew a pin": lambda: store.pins.renew(pin, TTL),
        "pin": lambda: store.pins.take(topic.id, "reader", TTL),
        "look": lambda: store.topic_snapshot(topic.id),
        "acknowledge": lambda: merge(store, topic.id, "mine", life, None, {0: BitMap([2])}),
        "make a cursor": lambda: store.cursors.ensure(topic.id, COMPACTION_CURSOR),
        "renew the lease": lambda: store.leases.renew(lease, TTL),
        "take the lease": lambda: store.leases.acquire(topic.id, "other", TTL),
        "roll": lambda: store.segments.roll(lease, opened_one.ledger_id, content(opened_one, 1)),
        "open": lambda: store.segments.check_open(lease, opened_one.ledger_id),
        "ask to roll": lambda: store.segments.request_roll(topic.id),
        "seal": lambda: store.sealing.seal(sealing, sealed),
        "claim sealing": lambda: store.sealing.claim(topic.id, "sealer", LOG_UID, 1),
        "import": lambda: store.ledgers.append(lease, [imported]),
        "beat an import": lambda: store.attempts.heartbeat(importing),
        "begin": lambda: store.attempts.begin(topic.id, AttemptKind.IMPORT, "late"),
        "trim": lambda: store.trimming.trim(topic.id, 1, [], force=True),
        "truncate": lambda: store.trimming.truncate([topic.id]),
        "set a policy": lambda: store.policies.change([topic_scope(topic)], {"retention.ms": 5}),
        "set a property": lambda: store.topics.set_properties(topic.id, {"a": "b"}),
        "heartbeat": lambda: _raise_fenced(store.runs.heartbeat([run]), run.run_id),
    }


def _raise_fenced(fenced: list[int], run_id: int) -> None:
    assert fenced == [run_id], "the run must be fenced"
    raise Fenced("as reported", "stop")


def test_work_in_progress_is_refused(
    store: MetadataStore, topic: TopicRecord, at_work: dict[str, Callable[[], object]]
) -> None:
    store.tenancy.delete_topic(topic.id)
    again = store.tenancy.ensure_topic(topic.name)
    remaining = rows(store)
    for what, call in at_work.items():
        with pytest.raises((TopicNotFound, Fenced)) as answer:
            call()
        if isinstance(answer.value, TopicNotFound) and what != "set a policy":
            assert "persistent://public/default/orders was deleted" in answer.value.message, what
    assert rows(store) == remaining
    assert store.topic_snapshot(again.id).extents == ()


def test_what_gives_back_says_nothing(store: MetadataStore, topic: TopicRecord) -> None:
    """At the end of work its own error counts, not the absence of what it returns."""
    lease = store.leases.acquire(topic.id, "writer", TTL)
    attempt = store.attempts.begin(topic.id, AttemptKind.IMPORT, "import")
    store.tenancy.delete_topic(topic.id)
    store.leases.release(lease)
    store.attempts.finish(attempt.attempt_id)
    assert store.attempts.find(attempt.attempt_id) is None


def test_a_writer_keeps_it_from_those_who_do_not_force(
    store: MetadataStore, topic: TopicRecord, clock: ManualClock
) -> None:
    store.leases.acquire(topic.id, "writer", TTL)
    with pytest.raises(LeaseHeld, match="writer is writing to"):
        store.tenancy.delete_topic(topic.id, force=False)
    assert store.topics.get(topic.name) == topic
    clock.advance(TTL)
    store.tenancy.delete_topic(topic.id, force=False)
    with pytest.raises(NotFound):
        store.topics.get(topic.name)


def test_all_or_nothing(store: MetadataStore) -> None:
    topic = filled(store, "t")
    check_all_or_nothing(
        store,
        lambda: rows(store),
        lambda: store.tenancy.delete_topic(topic.id),
        Failpoint.TOPIC_DELETE_INSIDE_COMMIT,
        at_least=10,
    )


@pytest.mark.parametrize("cut", [Cut.BEFORE, Cut.AFTER])
def test_an_answer_that_is_lost_is_found_out(database_url: URL, open_store: OpenStore, cut: Cut) -> None:
    with broken_link(database_url, open_store) as broken:
        topic = filled(broken.store, "t")
        broken.link.cut(cut)
        if cut is Cut.BEFORE:
            with pytest.raises(Unavailable):
                broken.store.tenancy.delete_topic(topic.id)
            assert broken.store.topics.get(topic.name) == topic
            assert broken.store.tenancy.deleted_topic(topic.uid) is None
            return
        assert broken.store.tenancy.delete_topic(topic.id).uid == topic.uid
        assert broken.store.tenancy.deleted_topic(topic.uid) is not None


@pytest.mark.parametrize("seed", range(3))
def test_racing_with_everybody_at_work(open_stores: OpenStores, seed: int) -> None:
    """A call either ended before the deletion and went with it, or is refused. Nothing remains, and no call hangs."""
    stores = open_stores(2)
    before = rows(stores[0])
    topic = filled(stores[0], f"t{seed}")
    run = claim(stores[0], topic)
    life = stores[0].cursors.load(topic.id, "mine", 99).incarnation
    store, other = stores
    calls: list[Callable[[], object]] = [
        lambda: store.attempts.begin(topic.id, AttemptKind.IMPORT, "import"),
        lambda: merge(store, topic.id, "mine", life, None, {0: BitMap([2]), 1: BitMap([3])}),
        lambda: store.runs.heartbeat([run]),
        lambda: store.pins.take(topic.id, "reader", TTL),
        lambda: store.cursors.ensure(topic.id, "new"),
        lambda: store.policies.change([topic_scope(topic)], {"retention.ms": 7}),
        lambda: store.runs.expire_attempts(topic.id, 10**9),
        lambda: store.leases.acquire(topic.id, "other", TTL),
    ]
    calls.insert(seed * 4, lambda: other.tenancy.delete_topic(topic.id))
    answers = at_once(*calls)
    for answer in answers:
        assert not isinstance(answer, Exception) or isinstance(answer, (TopicNotFound, Fenced)), repr(answer)
    assert isinstance(answers[seed * 4], DeletedTopic)
    assert rows(store) | {"deleted_topics": []} == before


def test_a_segment_of_a_deleted_topic_is_nobodys(store: MetadataStore, topic: TopicRecord) -> None:
    with leased(store, topic) as lease:
        segment = opened(store, lease, topic)
        store.segments.roll(lease, segment.ledger_id, content(segment, 2))
    assert store.segments.topics_with_segments([SegmentState.ROLLED], LOG_UID) == [store.topics.get(topic.name)]
    assert store.segments.topics_with_segments([SegmentState.ROLLED], "cd" * 16) == []
    store.tenancy.delete_topic(topic.id)
    assert store.segments.topics_with_segments(list(SegmentState)) == []
    with pytest.raises(CompactorError, match="was deleted"):
        store.segments.is_roll_requested(topic.id)
