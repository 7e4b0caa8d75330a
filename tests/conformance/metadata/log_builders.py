"""The short way to a topic that has segments: open, rolled and sealed ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest
from sqlalchemy import URL

from storage.failpoints import Failpoint
from storage.metadata.records import Attempt, Lease, SegmentContent, SegmentRecord, SegmentState, TopicRecord
from storage.metadata.store import MetadataStore
from storage.model import LedgerRecord, MessageId
from tests.conformance.metadata.builders import BIG, TTL, Sabotage, fail_at, ledger
from tests.conformance.metadata.conftest import OpenStore
from tests.failpoint_listeners import observed
from tests.servers.cut_link import PostgresLink, SqliteLink

LOG_UID = "ab" * 16


@contextmanager
def leased(store: MetadataStore, topic: TopicRecord, holder: str = "writer") -> Iterator[Lease]:
    lease = store.leases.acquire(topic.id, holder, TTL)
    yield lease
    store.leases.release(lease)


def new_segment(store: MetadataStore, topic: TopicRecord, log_uid: str = LOG_UID) -> SegmentRecord:
    """One that may be opened now."""
    first = store.topics.get(topic.name).next_offset
    return SegmentRecord(store.ledgers.allocate_ids(1), first, log_uid, SegmentState.OPEN, created_at=BIG)


def content(segment: SegmentRecord, messages: int, entries: int = 1) -> SegmentContent:
    return SegmentContent(
        last_offset=segment.first_offset + messages - 1,
        last_message_id=MessageId(segment.ledger_id, entries - 1, 3, messages - 1),
        messages=messages,
        entries=entries,
        logical_bytes=BIG + 1,
        min_publish_time=BIG + 2,
        max_publish_time=BIG + 3,
        size=BIG + 4,
    )


def opened(store: MetadataStore, lease: Lease, topic: TopicRecord) -> SegmentRecord:
    segment = new_segment(store, topic)
    store.segments.open(lease, segment)
    return segment


def rolled(store: MetadataStore, topic: TopicRecord, *counts: int) -> list[SegmentRecord]:
    """Segments of that many messages each, opened and rolled one after the other."""
    created = []
    with leased(store, topic) as lease:
        for count in counts:
            segment = opened(store, lease, topic)
            created.append(store.segments.roll(lease, segment.ledger_id, content(segment, count)))
    return created


def ledger_of(segment: SegmentRecord, attempt: Attempt) -> LedgerRecord:
    """The ledger that a sealer makes of a rolled segment."""
    assert segment.content is not None
    created = ledger(segment.ledger_id, segment.first_offset, segment.content.messages, attempt.attempt_id)
    return replace(created, entries=segment.content.entries, last_message_id=segment.content.last_message_id)


def claimed(
    store: MetadataStore, topic: TopicRecord, holder: str = "sealer", log_uid: str = LOG_UID
) -> tuple[SegmentRecord, Attempt]:
    claim = store.sealing.claim(topic.id, holder, log_uid, TTL)
    assert claim is not None
    return claim


def seal_all(store: MetadataStore, topic: TopicRecord) -> list[LedgerRecord]:
    created = []
    while (claim := store.sealing.claim(topic.id, "sealer", LOG_UID, TTL)) is not None:
        created.append(ledger_of(*claim))
        store.sealing.seal(claim[1], created[-1])
    return created


def state(store: MetadataStore, topic: TopicRecord) -> tuple[object, ...]:
    """All that changes of the log may touch."""
    return (
        store.topic_snapshot(topic.id),
        store.pins.gc_snapshot(topic.id),
        store.segments.of_topic(topic.id),
        store.segments.is_roll_requested(topic.id),
    )


def check_all_or_nothing(
    store: MetadataStore,
    changed: TopicRecord | Callable[[], object],
    call: Callable[[], object],
    step: Failpoint | None = None,
    at_least: int = 4,
) -> None:
    """`call` changes nothing if any of its statements fails, or something at `step`; then it is done.

    `changed`: what it may change, or the topic whose `state` that is; `at_least`: how many statements it has.
    """

    def seen() -> object:
        return state(store, changed) if isinstance(changed, TopicRecord) else changed()

    before = seen()

    def fail(at: Failpoint) -> None:
        if at is step:
            raise Sabotage

    if step is not None:
        with pytest.raises(Sabotage), observed(fail):
            call()
        assert seen() == before
    statement = 0
    while True:
        statement += 1
        undo = fail_at(store, statement)
        try:
            call()
        except Sabotage:
            undo()
            assert seen() == before
        else:
            assert undo() == statement - 1
            break
    assert statement > at_least - 1
    assert seen() != before


@dataclass(frozen=True)
class BrokenLink:
    """A store whose link breaks on cue."""

    store: MetadataStore
    link: PostgresLink | SqliteLink


@contextmanager
def broken_link(database_url: URL, open_store: OpenStore) -> Iterator[BrokenLink]:
    if database_url.drivername == "sqlite":
        store = open_store(database_url)
        yield BrokenLink(store, SqliteLink(store))
        return
    link = PostgresLink(database_url)
    yield BrokenLink(open_store(link.url), link)
    link.close()
