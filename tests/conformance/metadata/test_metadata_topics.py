"""Topics, their lists, ledger ids, snapshots, and that all of it outlives the process."""

from __future__ import annotations

from functools import partial
from unittest.mock import patch

import pytest
from sqlalchemy import URL, event

from storage.advice import Advice, AdviceKind
from storage.errors import ErrorText, Fenced, InvalidInput, TopicNotFound
from storage.metadata.records import TopicRecord, TopicSummary
from storage.metadata.store import MetadataStore
from storage.model import LedgerRecord, TopicName
from tests.clocks import ManualClock
from tests.conformance.metadata.builders import append, at_once, claim, publish_all
from tests.conformance.metadata.conftest import OpenStore, OpenStores
from tests.conformance.metadata.log_builders import rolled


def test_a_topic_is_made_once(store: MetadataStore, clock: ManualClock) -> None:
    name = TopicName.parse("persistent://acme/eu/orders-partition-3")
    created = store.tenancy.ensure_topic(name)
    assert created.name == name
    assert (created.generation, created.epoch, created.next_offset) == (0, 0, 0)
    assert created.created_at == clock.now_ms()
    assert len(created.uid) == 32
    assert int(created.uid, 16)
    assert 0 <= created.hash_seed < 2**63
    clock.advance(1)
    assert store.tenancy.ensure_topic(name) == created
    assert store.topics.get(name) == created
    with patch("storage.metadata.topics.secrets.randbits", return_value=7) as drawn:  # in CI all are drawn alike
        other = store.tenancy.ensure_topic(TopicName.parse("other"))
    assert other.uid != created.uid
    assert other.hash_seed == 7, "it is drawn again"
    drawn.assert_called_once_with(63)


def test_the_epoch_of_producers_only_grows(store: MetadataStore, open_stores: OpenStores) -> None:
    topic = store.tenancy.ensure_topic(TopicName.parse("exclusive"))
    assert store.topics.producer_epoch(topic.id) is None
    at_once(*(partial(other.topics.raise_producer_epoch, topic.id, 1 << 60) for other in open_stores(3)))
    assert store.topics.producer_epoch(topic.id) == 1 << 60
    with pytest.raises(Fenced, match=rf"exclusive has epoch {1 << 60}, after 7"):
        store.topics.raise_producer_epoch(topic.id, 7)
    assert store.topics.producer_epoch(topic.id) == 1 << 60
    for call in (
        lambda: store.topics.producer_epoch(topic.id + 1),
        lambda: store.topics.raise_producer_epoch(topic.id + 1, 1),
    ):
        with pytest.raises(TopicNotFound):
            call()


def test_topics_made_at_once_are_one(open_stores: OpenStores) -> None:
    stores = open_stores(4)
    for round_number in range(5):
        name = TopicName.parse(f"race-{round_number}")
        created = at_once(*(partial(store.tenancy.ensure_topic, name) for store in stores * 2))
        assert created == [stores[0].topics.get(name)] * 8


def test_an_unknown_topic_is_named(store: MetadataStore) -> None:
    with pytest.raises(TopicNotFound, match="persistent://public/default/nothing") as caught:
        store.topics.get(TopicName.parse("nothing"))
    assert caught.value.advice == Advice(AdviceKind.LIST_TOPICS)
    for call in (
        lambda: store.topic_snapshot(77),
        lambda: store.leases.acquire(77, "me", 1),
        lambda: store.runs.claim(77, "me", {}, 1),
        lambda: store.cursors.ensure(77, "c"),
    ):
        with pytest.raises(TopicNotFound, match="77"):
            call()


def test_topics_of_a_namespace(store: MetadataStore) -> None:
    for text in ("acme/eu/b", "acme/eu/a-partition-1", "acme/EU/c", "acme/eu2/d", "acme2/eu/e", "a_me/eu/f", "g"):
        store.tenancy.ensure_topic(TopicName.parse(text))

    def names(namespace: str) -> list[str]:
        return [topic.name.topic for topic in store.topics.in_namespace(namespace)]

    assert names("acme/eu") == ["a-partition-1", "b"]
    assert names("acme/EU") == ["c"]
    assert names("public/default") == ["g"]
    # Not a wildcard.
    assert names("a_me/eu") == ["f"]
    assert names("acme/%") == names("no/where") == []
    assert store.topics.in_namespace("acme/eu2") == [store.topics.get(TopicName.parse("acme/eu2/d"))]
    for wrong in ("", "acme", "acme/", "/eu", "acme/eu/b", "persistent://acme/eu"):
        with pytest.raises(InvalidInput, match="not a namespace"):
            store.topics.in_namespace(wrong)


def test_topics_are_listed_by_code_point(store: MetadataStore) -> None:
    # Collations would put these in other orders.
    for text in ("b", "B", "a", "é", "Z-1", "_"):
        store.tenancy.ensure_topic(TopicName.parse(text))
    expected = ["B", "Z-1", "_", "a", "b", "é"]
    assert [topic.name.topic for topic in store.topics.all()] == expected
    assert [summary.name.topic for summary in store.topics.summaries()] == expected


def test_summaries_add_up_in_one_statement(store: MetadataStore, topic: TopicRecord) -> None:
    append(store, topic, 3, 4)
    append(store, topic, 5)
    publish_all(store, topic)
    run = publish_all(store, topic)
    empty = store.tenancy.ensure_topic(TopicName.parse("zzz"))
    segments = rolled(store, empty, 5)
    unsealed = sum(segment.content.logical_bytes for segment in segments if segment.content)
    statements = []
    event.listen(store.database.engine, "before_cursor_execute", lambda *seen: statements.append(seen[2]))
    compacted = store.topic_snapshot(topic.id).compacted
    assert compacted is not None
    statements.clear()
    assert store.topics.summaries() == [
        TopicSummary(
            topic.id, topic.name, 3, 12, 1200, run.compacted_ledger_id, compacted.logical_bytes, compacted.created_at
        ),
        TopicSummary(empty.id, empty.name, 0, 0, 0, None, unsealed_messages=5, unsealed_bytes=unsealed),
    ]
    assert len([text for text in statements if text.lstrip().startswith("SELECT")]) == 1
    assert [item.topic_id for item in store.topics.summaries([empty.id, 10**6])] == [empty.id]
    many = range(10**6, 10**6 + 40_000)  # more than the parameters of a statement
    assert [item.topic_id for item in store.topics.summaries([empty.id, *many])] == [empty.id]


def test_ledger_ids_are_given_out_once(open_stores: OpenStores) -> None:
    stores = open_stores(4)
    counts = [1, 2, 3, 5] * 4
    firsts = at_once(
        *(partial(store.ledgers.allocate_ids, count) for store, count in zip(stores * 4, counts, strict=True))
    )
    taken = [first + i for first, count in zip(firsts, counts, strict=True) for i in range(count)]  # type: ignore[operator]
    assert sorted(taken) == list(range(min(taken), min(taken) + sum(counts)))
    assert stores[0].ledgers.allocate_ids(1) == max(taken) + 1


def test_no_ids_cannot_be_allocated(store: MetadataStore) -> None:
    with pytest.raises(ValueError, match="0 ledger ids"):
        store.ledgers.allocate_ids(0)


def test_an_id_is_claimed_once_and_never_below_an_allocated_one(open_stores: OpenStores) -> None:
    stores = open_stores(4)
    first = stores[0].ledgers.allocate_ids(1)
    assert not stores[0].ledgers.claim_id(first)
    claimed = at_once(*(partial(store.ledgers.claim_id, first + 100) for store in stores))
    assert sorted(map(bool, claimed)) == [False, False, False, True]
    assert not stores[0].ledgers.claim_id(first + 50), "ids ascend"
    assert stores[1].ledgers.allocate_ids(1) == first + 101
    assert stores[0].ledgers.claim_id(first + 102)
    assert not any(map(stores[0].ledgers.claim_id, (-1, 1 << 48)))
    assert stores[0].ledgers.allocate_ids(1) == first + 103


def test_ledgers_come_back_as_they_went_in(store: MetadataStore, topic: TopicRecord) -> None:
    first = append(store, topic, 3, 4)
    second = append(store, topic, 1)
    read = store.ledgers.of_topic(topic.id)
    assert read == (*first, *second)
    # Message ids compare without their partition, so check that by itself.
    assert [ledger.last_message_id.partition for ledger in read] == [3, 3, 3]
    assert store.topics.get(topic.name).next_offset == 8
    assert store.ledgers.of_topic(store.tenancy.ensure_topic(TopicName.parse("other")).id) == ()


def test_a_snapshot_is_of_one_moment(open_stores: OpenStores, topic: TopicRecord) -> None:
    reader, writer = open_stores(2)
    before = append(writer, topic, 3)
    result: list[LedgerRecord] = []

    def append_in_the_middle(_c: object, _cursor: object, statement: str, *_rest: object) -> None:
        if "FROM ledgers" in statement and not result:
            # The snapshot has read the topic's row by now, and is about to read its ledgers.
            result.extend(append(writer, topic, 4))

    event.listen(reader.database.engine, "before_cursor_execute", append_in_the_middle)
    snapshot = reader.topic_snapshot(topic.id)
    assert result
    assert snapshot.topic.next_offset == 3
    assert snapshot.ledgers == tuple(before)
    assert reader.topic_snapshot(topic.id).ledgers == (*before, *result)


def test_everything_outlives_the_process(database_url: URL, open_store: OpenStore, topic: TopicRecord) -> None:
    store = open_store(database_url)
    append(store, topic, 3, 4)
    publish_all(store, topic)
    store.cursors.set_properties(topic.id, "__compaction", {"owner": "me"})
    failed = store.runs.fail(claim(store, topic), ErrorText("disk on fire"))
    lease = store.leases.acquire(topic.id, "me", 1)
    before = (
        store.topic_snapshot(topic.id),
        store.runs.of_topic(topic.id, 10),
        store.cursors.of_topic(topic.id),
        store.topics.all(),
    )
    next_id = store.ledgers.allocate_ids(1) + 1
    store.close()

    again = open_store(database_url)
    again.check_schema()
    assert (
        again.topic_snapshot(topic.id),
        again.runs.of_topic(topic.id, 10),
        again.cursors.of_topic(topic.id),
        again.topics.all(),
    ) == before
    assert again.runs.last(topic.id) == failed
    assert again.ledgers.allocate_ids(1) == next_id
    assert again.leases.renew(lease, 1).token == lease.token


@pytest.mark.slow
def test_many_writers_do_not_die_of_locks(open_stores: OpenStores) -> None:
    stores = open_stores(2)

    def work(number: int) -> int:
        store = stores[number % 2]
        topic = store.tenancy.ensure_topic(TopicName.parse(f"topic-{number % 5}"))
        for step in range(10):
            cursor = store.cursors.ensure(topic.id, f"cursor-{number}")
            store.cursors.set_properties(topic.id, cursor.name, {f"step-{step}": "done"})
            store.topic_snapshot(topic.id)
        return len(store.cursors.get(topic.id, f"cursor-{number}").properties)

    assert at_once(*(partial(work, number) for number in range(16))) == [10] * 16
