"""Single acknowledgements of cursors: merged, bounded rows; two owners; incarnations; the end of a cursor (R9, A4)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyroaring import BitMap
from sqlalchemy import URL, func, insert, select

from storage.ack_ranges import MAX_RANGE_BYTES, RANGE_OFFSETS
from storage.errors import Conflict, Fenced, InvalidInput, NotFound, ObjectDamaged
from storage.metadata import cursor_ranges, topics
from storage.metadata.cursor_ranges import CursorUpdate, RangesSummary
from storage.metadata.records import COMPACTION_CURSOR, CursorRecord, TopicRecord
from storage.metadata.store import MetadataStore
from storage.metadata.tables import cursor_ranges as table
from storage.model import LogPosition, MessageId
from tests.conformance.metadata.builders import BIG, append, at_once, fail_at, publish_all
from tests.conformance.metadata.conftest import OpenStore
from tests.conformance.metadata.log_builders import check_all_or_nothing
from tests.cursors import merge

MUCH = 1 << 30


def at(offset: int) -> LogPosition:
    return LogPosition(offset, MessageId(7, offset, 3, 1))


@pytest.fixture
def life(store: MetadataStore, topic: TopicRecord) -> str:
    store.cursors.create(topic.id, "s", None, {})
    return life_of(store, topic)


def life_of(store: MetadataStore, topic: TopicRecord) -> str:
    return store.cursors.load(topic.id, "s", MUCH).incarnation


def ack_ranges(store: MetadataStore, topic: TopicRecord) -> dict[int, BitMap]:
    return dict(store.cursors.load(topic.id, "s", MUCH).ranges)


def rows(store: MetadataStore) -> int:
    with store.database.read() as connection:
        return connection.execute(select(func.count()).select_from(table)).scalar_one()


def test_what_was_merged_is_loaded(store: MetadataStore, topic: TopicRecord, life: str) -> None:
    far = BIG // RANGE_OFFSETS
    assert store.cursors.load(topic.id, "s", MUCH).record == CursorRecord("s", None, {})
    merged = merge(store, topic.id, "s", life, at(4), {0: BitMap([6, 9]), far: BitMap([RANGE_OFFSETS - 1])})
    assert merged.mark_delete == at(4)
    assert merged.ranges == {0: BitMap([6, 9]), far: BitMap([RANGE_OFFSETS - 1])}
    loaded = store.cursors.load(topic.id, "s", MUCH)
    assert (loaded.record.mark_delete, loaded.incarnation) == (at(4), life)
    assert loaded.record.mark_delete is not None
    assert loaded.record.mark_delete.message_id.partition == 3
    assert loaded.ranges == merged.ranges
    assert merge(store, topic.id, "s", life, None, {0: BitMap([7])}).ranges == {0: BitMap([6, 7, 9])}
    ((record, summary),) = store.cursors.summaries(topic.id)
    assert (record, summary) == store.cursors.summary(topic.id, "s")
    assert (record.mark_delete, summary.messages, summary.ranges, summary.rows) == (at(4), 4, 3, 2)


def test_mark_delete_never_goes_back(store: MetadataStore, topic: TopicRecord, life: str) -> None:
    merge(store, topic.id, "s", life, at(9), {})
    for position in (at(5), None):
        assert merge(store, topic.id, "s", life, position, {0: BitMap([7, 8])}).mark_delete == at(9)
    assert store.cursors.get(topic.id, "s").mark_delete == at(9)
    assert ack_ranges(store, topic) == {}, "it is below mark-delete"


def test_stretches_below_mark_delete_go(store: MetadataStore, topic: TopicRecord, life: str) -> None:
    changed = {number: BitMap([0, 5]) for number in range(4)}
    merge(store, topic.id, "s", life, None, changed)
    assert rows(store) == 4
    merged = merge(store, topic.id, "s", life, at(2 * RANGE_OFFSETS + 3), {1: BitMap([8])})
    assert merged.ranges == {2: BitMap([5])}
    assert rows(store) == 2
    assert ack_ranges(store, topic) == {2: BitMap([5]), 3: BitMap([0, 5])}
    merge(store, topic.id, "s", life, at(3 * RANGE_OFFSETS - 1), {})
    assert rows(store) == 1


def test_a_row_is_at_most_64_kib(store: MetadataStore, topic: TopicRecord, life: str) -> None:
    changed = {number: BitMap(range(number % 2, RANGE_OFFSETS, 2)) for number in range(3)}
    merge(store, topic.id, "s", life, None, changed)
    merge(store, topic.id, "s", life, None, {4: BitMap(range(RANGE_OFFSETS))})
    with store.database.read() as connection:
        sizes = list(connection.scalars(select(func.length(table.c.acknowledged)).order_by(table.c.number)))
    assert len(sizes) == 4
    assert max(sizes) <= MAX_RANGE_BYTES
    assert sizes[3] < 200, "one run"
    assert ack_ranges(store, topic) == {**changed, 4: BitMap(range(RANGE_OFFSETS))}


def test_no_more_is_loaded_than_is_asked_for(store: MetadataStore, topic: TopicRecord, life: str) -> None:
    many = {number: BitMap([1]) for number in range(200)}
    merge(store, topic.id, "s", life, None, many)
    whole = store.cursors.load(topic.id, "s", MUCH)
    assert dict(whole.ranges) == many
    some = store.cursors.load(topic.id, "s", 50 * 1024)
    assert 50 < len(some.ranges) <= 100
    assert list(some.ranges) == list(range(len(some.ranges)))
    assert store.cursors.summary(topic.id, "s")[1].rows == 200


def test_what_is_there_already_is_not_written(store: MetadataStore, topic: TopicRecord, life: str) -> None:
    merge(store, topic.id, "s", life, at(0), {0: BitMap([5, 6]), 1: BitMap([5])})
    undo = fail_at(store, 0)
    merge(store, topic.id, "s", life, at(0), {0: BitMap([5]), 1: BitMap([5])})
    check = undo()
    undo = fail_at(store, 0)
    merge(store, topic.id, "s", life, at(0), {0: BitMap([5]), 1: BitMap([7])})
    assert undo() == check + 1


def test_ranges_across_rows_are_one(store: MetadataStore, topic: TopicRecord, life: str) -> None:
    first, second = BitMap(range(RANGE_OFFSETS - 10, RANGE_OFFSETS)), BitMap([0, 1, 5])
    merge(store, topic.id, "s", life, None, {0: first, 1: second})
    summary = store.cursors.summary(topic.id, "s")[1]
    assert (summary.messages, summary.ranges) == (13, 2)
    merge(store, topic.id, "s", life, at(RANGE_OFFSETS), {})
    summary = store.cursors.summary(topic.id, "s")[1]
    assert (summary.messages, summary.ranges, summary.rows) == (2, 2, 1)


def test_a_reset_clears_and_fences(store: MetadataStore, topic: TopicRecord, life: str) -> None:
    store.cursors.create(topic.id, "t", None, {})
    theirs = store.cursors.load(topic.id, "t", MUCH).incarnation
    for name, its_life in (("s", life), ("t", theirs)):
        merge(store, topic.id, name, its_life, at(9), {0: BitMap([20]), 5: BitMap([1])})
    store.cursors.set_properties(topic.id, "s", {"a": "b"})
    for position in (at(3), None):
        before = life_of(store, topic)
        assert store.cursors.reset(topic.id, "s", position) == CursorRecord("s", position, {"a": "b"})
        with pytest.raises(Fenced, match="'s' of persistent://public/default/orders was reset"):
            merge(store, topic.id, "s", before, at(30), {0: BitMap([40])})
        assert (store.cursors.get(topic.id, "s").mark_delete, ack_ranges(store, topic)) == (position, {})
    merge(store, topic.id, "s", life_of(store, topic), at(4), {})
    assert store.cursors.summary(topic.id, "t")[1].rows == 2, "another cursor's are its own"


def test_with_a_cursor_go_its_ranges(store: MetadataStore, topic: TopicRecord, life: str) -> None:
    merge(store, topic.id, "s", life, at(9), {5: BitMap([1])})
    store.cursors.delete(topic.id, "s")
    assert rows(store) == 0
    with pytest.raises(NotFound, match="orders has no cursor 's'"):
        merge(store, topic.id, "s", life, at(9), {5: BitMap([1])})
    store.cursors.ensure(topic.id, "s")
    with pytest.raises(Fenced):
        merge(store, topic.id, "s", life, at(9), {5: BitMap([1])})
    assert (store.cursors.get(topic.id, "s").mark_delete, rows(store)) == (None, 0)
    for call in (
        lambda: store.cursors.load(topic.id, "none", MUCH),
        lambda: store.cursors.summary(topic.id, "none"),
    ):
        with pytest.raises(NotFound, match="'none'"):
            call()


def test_the_horizon_cannot_be_acknowledged(store: MetadataStore, topic: TopicRecord) -> None:
    append(store, topic, 3)
    publish_all(store, topic)
    before = store.topic_snapshot(topic.id)
    for call in (
        lambda: store.cursors.load(topic.id, COMPACTION_CURSOR, MUCH),
        lambda: merge(store, topic.id, COMPACTION_CURSOR, "", at(2**60), {}),
        lambda: store.cursors.create(topic.id, COMPACTION_CURSOR, at(2**60), {}),
    ):
        with pytest.raises(InvalidInput, match=r"__compaction of persistent://public/default/orders .*horizon"):
            call()
    assert store.topic_snapshot(topic.id) == before
    assert store.cursors.summary(topic.id, COMPACTION_CURSOR)[1] == RangesSummary(0, 0, 0, 0)


def test_made_at_a_position_with_properties(store: MetadataStore, topic: TopicRecord) -> None:
    properties = {"readCompacted": "true"}
    created = store.cursors.create(topic.id, "reader ✓", at(5), properties)
    assert created == store.cursors.get(topic.id, "reader ✓") == CursorRecord("reader ✓", at(5), properties)
    assert store.cursors.slowest_compacted_reader_offset(topic.id) == 5
    with pytest.raises(Conflict, match="has a cursor 'reader ✓' already"):
        store.cursors.create(topic.id, "reader ✓", None, {})
    assert store.cursors.get(topic.id, "reader ✓") == created
    for name in ("", "a\nb", "a\x00", "\ud800", "ç" * 128):
        with pytest.raises(InvalidInput, match="cursor name"):
            store.cursors.create(topic.id, name, None, {})
    with pytest.raises(NotFound):
        store.cursors.create(topic.id + 1, "reader", None, {})


def test_a_flush_is_all_or_nothing(store: MetadataStore, topic: TopicRecord, life: str) -> None:
    merge(store, topic.id, "s", life, at(9), {0: BitMap([20]), 1: BitMap([1]), 2: BitMap([1])})
    new = {1: BitMap([2]), 2: BitMap([2]), 3: BitMap([3])}
    check_all_or_nothing(
        store,
        lambda: store.cursors.load(topic.id, "s", MUCH),
        lambda: merge(store, topic.id, "s", life, at(RANGE_OFFSETS), new),
        at_least=7,
    )
    assert ack_ranges(store, topic) == {1: BitMap([1, 2]), 2: BitMap([1, 2]), 3: BitMap([3])}


def test_owners_at_once_lose_nothing(store: MetadataStore, topic: TopicRecord, life: str) -> None:
    def flush(owner: int) -> Callable[[], object]:
        def flushes() -> None:
            for offset in range(owner, 40, 4):
                changed = {0: BitMap([100 + offset]), 1 + offset % 3: BitMap([offset])}
                merge(store, topic.id, "s", life, at(offset), changed)

        return flushes

    assert at_once(*(flush(owner) for owner in range(4))) == [None] * 4
    loaded = store.cursors.load(topic.id, "s", MUCH)
    assert loaded.record.mark_delete == at(39)
    assert loaded.ranges[0] == BitMap(range(100, 140))
    assert sum(len(loaded.ranges[number]) for number in (1, 2, 3)) == 40


def test_a_deletion_beside_owners_leaves_no_row(store: MetadataStore, topic: TopicRecord, life: str) -> None:
    def flush(owner: int) -> Callable[[], object]:
        def flushes() -> None:
            for number in range(30):
                merge(store, topic.id, "s", life, None, {30 * owner + number: BitMap([1])})

        return flushes

    outcomes = at_once(flush(0), flush(1), lambda: store.cursors.delete(topic.id, "s"))
    assert all(outcome is None or isinstance(outcome, NotFound) for outcome in outcomes), outcomes
    assert rows(store) == 0


def test_publishing_does_not_wait_for_acknowledging(
    store: MetadataStore, topic: TopicRecord, life: str, database_url: URL, open_store: OpenStore
) -> None:
    """On PostgreSQL; SQLite has one writer anyway."""
    if store.database.dialect == "sqlite":
        pytest.skip("one writer at a time")
    other = open_store(database_url)
    with store.database.write() as connection:
        update = CursorUpdate(topic.id, "s", life, at(3), {0: BitMap([9])})
        cursor_ranges.merge(connection, topics.lock_against_deletion(connection, topic.id), update)
        append(other, topic, 3)
        publish_all(other, topic)
    assert store.cursors.get(topic.id, "s").mark_delete == at(3)


@pytest.mark.parametrize(
    "stored", [b"", b"nonsense", BitMap([RANGE_OFFSETS]).serialize()], ids=["empty", "nonsense", "far"]
)
def test_a_row_that_is_no_bitmap(store: MetadataStore, topic: TopicRecord, life: str, stored: bytes) -> None:
    with store.database.write() as connection:
        connection.execute(insert(table).values(topic_id=topic.id, name="s", number=0, acknowledged=stored))
    for call in (
        lambda: store.cursors.load(topic.id, "s", MUCH),
        lambda: merge(store, topic.id, "s", life, at(1), {0: BitMap([5])}),
        lambda: store.cursors.summary(topic.id, "s"),
    ):
        with pytest.raises(ObjectDamaged, match=r"row 0 .* 's' of persistent://public/default/orders") as caught:
            call()
        assert "reset the cursor" in caught.value.remedy
    store.cursors.reset(topic.id, "s", at(1))
    assert ack_ranges(store, topic) == {}


def test_topics_do_not_share_cursors(store: MetadataStore, topic: TopicRecord, other: TopicRecord, life: str) -> None:
    store.cursors.create(other.id, "s", None, {})
    merge(store, topic.id, "s", life, at(9), {0: BitMap([20])})
    loaded = store.cursors.load(other.id, "s", MUCH)
    assert (loaded.record.mark_delete, dict(loaded.ranges)) == (None, {})
    assert loaded.incarnation != life
