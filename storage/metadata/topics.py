"""Topics: creation, look-up, locks, lists and properties.

Every change that must not race with another change of the same topic begins with `locked`: it holds the topic's row
until the transaction ends, so writers of one topic form a queue and writers of different topics do not meet.

Order of locks, everywhere: lease, topic, attempts by id, runs by id, then the rest, and of several topics first all
leases, then all topics, and so on; therefore two transactions never wait for each other. Only heartbeats take no lock
of the topic, and begin at the attempts; they update each row once, since PostgreSQL locks the topic to check the
foreign key of a row that the same transaction has updated before. A transaction that adds rows of a topic without its
lock holds it `kept`, so that it is not deleted meanwhile. Tenants, namespaces and partitioned topics come before all
others (tenancy.py). tests/conformance/metadata/lock_order.py checks this order.

tenancy.py creates topics in their namespaces, and deletes them.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, RowMapping, Select, bindparam, func, insert, select
from sqlalchemy.exc import IntegrityError

from storage.advice import Advice, AdviceKind
from storage.errors import Fenced, InvalidInput, TopicNotFound
from storage.metadata import queries, row_mapping
from storage.metadata.records import SegmentState, TopicRecord, TopicSummary
from storage.metadata.tables import compacted_ledgers, deleted_topics, leases, ledgers, segments, topics
from storage.model import DOMAIN, TopicName

_LIST = Advice(AdviceKind.LIST_TOPICS)
# Here and elsewhere, statements of every request are built once: building one costs more than executing it.
_BY_NAME = select(topics).where(topics.c.name == bindparam("topic_name"))
_BY_ID = select(topics).where(topics.c.id == bindparam("topic"))
_LOCKED = _BY_ID.with_for_update(key_share=True)
_KEPT = _BY_ID.with_for_update(read=True, key_share=True)


def named(connection: Connection, names: Collection[TopicName]) -> dict[TopicName, TopicRecord]:
    """Return those of the topics that exist, by name."""
    records: dict[TopicName, TopicRecord] = {}
    for batch in queries.batches([str(name) for name in names]):
        statement = select(topics).where(topics.c.name.in_(batch))
        records.update((topic.name, topic) for topic in queries.fetch(connection, statement, row_mapping.topic))
    return records


def all_topics(connection: Connection) -> list[TopicRecord]:
    """Return all topics by name, in the order of code points: databases sort text each in their own way."""
    return of_statement(connection, select(topics))


def page_of(connection: Connection, after: int, count: int) -> list[TopicRecord]:
    """Return the next `count` topics whose ids are greater than `after`, by id."""
    return [row_mapping.topic(row) for row in page_rows(connection, after, count)]


def in_namespace(connection: Connection, namespace: str) -> list[TopicRecord]:
    """Return the topics of `tenant/namespace`, by name; none is no error. Raises InvalidInput for anything else."""
    tenant, local = parse_namespace(namespace)
    like = topics.c.name.startswith(f"{DOMAIN}://{namespace}/", autoescape=True)
    records = of_statement(connection, select(topics).where(like))
    # Again here: SQLite's LIKE folds case.
    return [topic for topic in records if (topic.name.tenant, topic.name.namespace) == (tenant, local)]


def summaries(connection: Connection) -> list[TopicSummary]:
    """Return all topics, by name, with sums over their ledgers that are not trimmed, and over rolled segments.

    One statement for all topics. The contents of open segments are known to their files only.
    """
    sums = (
        select(
            ledgers.c.topic_id,
            func.count().label("ledgers"),
            func.sum(ledgers.c.messages).label("messages"),
            func.sum(ledgers.c.logical_bytes).label("logical_bytes"),
        )
        .where(ledgers.c.deleted_at.is_(None))
        .group_by(ledgers.c.topic_id)
        .subquery()
    )
    rolled = (
        select(
            segments.c.topic_id,
            func.sum(segments.c.messages).label("messages"),
            func.sum(segments.c.logical_bytes).label("logical_bytes"),
        )
        .where(segments.c.state == SegmentState.ROLLED.value)
        .group_by(segments.c.topic_id)
        .subquery()
    )
    serving = (compacted_ledgers.c.topic_id == topics.c.id) & compacted_ledgers.c.retired_at.is_(None)
    statement = (
        select(
            topics.c.id,
            topics.c.name,
            func.coalesce(sums.c.ledgers, 0),
            func.coalesce(sums.c.messages, 0),
            func.coalesce(sums.c.logical_bytes, 0),
            compacted_ledgers.c.ledger_id,
            compacted_ledgers.c.logical_bytes,
            compacted_ledgers.c.created_at,
            func.coalesce(rolled.c.messages, 0),
            func.coalesce(rolled.c.logical_bytes, 0),
        )
        .select_from(topics)
        .outerjoin(sums, sums.c.topic_id == topics.c.id)
        .outerjoin(rolled, rolled.c.topic_id == topics.c.id)
        .outerjoin(compacted_ledgers, serving)
    )
    rows = [_summary(tuple(row)) for row in connection.execute(statement)]
    return sorted(rows, key=lambda summary: str(summary.name))


def producer_epoch(connection: Connection, topic_id: int) -> int | None:
    """Return the epoch of the exclusive producer that came last; None: there was none. Raises TopicNotFound."""
    row = connection.execute(select(topics.c.producer_epoch).where(topics.c.id == topic_id)).first()
    if row is None:
        raise _not_found(connection, topic_id)
    epoch: int | None = row[0]
    return epoch


def raise_producer_epoch(connection: Connection, topic_id: int, epoch: int) -> None:
    """Store the epoch of an exclusive producer. Raises TopicNotFound, Fenced if a later one is stored."""
    topic = locked(connection, topic_id)
    stored = producer_epoch(connection, topic_id)
    if stored is not None and stored > epoch:
        raise Fenced(
            f"a later exclusive producer of {topic.name} has epoch {stored}, after {epoch}",
            "look the topic up again",
            is_public=True,
        )
    queries.change(connection, topics, topic_id, producer_epoch=epoch)


def properties(connection: Connection, topic_id: int) -> dict[str, str]:
    """Return the topic's properties. Raises TopicNotFound."""
    row = connection.execute(select(topics.c.properties).where(topics.c.id == topic_id)).first()
    if row is None:
        raise _not_found(connection, topic_id)
    return dict(row[0])


def set_properties(connection: Connection, topic_id: int, updates: Mapping[str, str]) -> dict[str, str]:
    """Add or replace properties; return all of them. Raises TopicNotFound, InvalidInput."""
    locked(connection, topic_id)
    merged = {**properties(connection, topic_id), **updates}
    store_properties(connection, topic_id, merged)
    return merged


def remove_property(connection: Connection, topic_id: int, key: str) -> bool:
    """Remove a property. Returns False if the topic does not have it. Raises TopicNotFound."""
    locked(connection, topic_id)
    kept_properties = properties(connection, topic_id)
    if key not in kept_properties:
        return False
    del kept_properties[key]
    store_properties(connection, topic_id, kept_properties)
    return True


# Parts of other transactions


def create(connection: Connection, name: TopicName, now: int) -> TopicRecord:
    """Return the topic of that name, inserted with its lease row if it does not exist."""
    existing = find(connection, name)
    if existing is not None:
        return existing
    try:
        with connection.begin_nested():
            inserted = connection.execute(
                insert(topics).values(
                    uid=uuid.uuid4().hex,
                    name=str(name),
                    hash_seed=secrets.randbits(63),
                    generation=0,
                    epoch=0,
                    next_offset=0,
                    created_at=now,
                )
            )
            assert inserted.inserted_primary_key is not None
            topic_id: int = inserted.inserted_primary_key[0]
            connection.execute(insert(leases).values(topic_id=topic_id, holder=None, token=0, expires_at=0))
    except IntegrityError:
        # Another transaction inserted it between the select and the insert.
        return by_name(connection, name)
    return by_id(connection, topic_id)


def find(connection: Connection, name: TopicName) -> TopicRecord | None:
    """Return the topic of that name; None: there is none."""
    return queries.find(connection, _BY_NAME, row_mapping.topic, {"topic_name": str(name)})


def ids_of(connection: Connection, names: Collection[TopicName]) -> list[int]:
    """Return the ids of those of the topics that exist."""
    statement = select(topics.c.id).where(topics.c.name.in_([str(name) for name in names]))
    return list(connection.execute(statement).scalars())


def _summary(row: tuple[Any, ...]) -> TopicSummary:
    """Return a row of `summaries` as a record; int(): PostgreSQL's sum of BIGINT is a decimal."""
    topic_id, name, ledger_count, messages, size = row[:5]
    compacted_id, compacted_bytes, compacted_at, unsealed_messages, unsealed_bytes = row[5:]
    return TopicSummary(
        topic_id,
        TopicName.parse(name),
        int(ledger_count),
        int(messages),
        int(size),
        compacted_id,
        compacted_bytes,
        compacted_at,
        int(unsealed_messages),
        int(unsealed_bytes),
    )


def by_name(connection: Connection, name: TopicName) -> TopicRecord:
    """Return the topic of that name. Raises TopicNotFound."""
    topic = find(connection, name)
    if topic is None:
        raise TopicNotFound(f"the topic {name} does not exist", _LIST)
    return topic


def by_id(connection: Connection, topic_id: int) -> TopicRecord:
    """Return the topic of that id. Raises TopicNotFound."""
    return _one(connection, _BY_ID, topic_id)


def by_ids(connection: Connection, topic_ids: Collection[int]) -> dict[int, TopicRecord]:
    """Return those of the topics that exist, by id."""
    records: dict[int, TopicRecord] = {}
    for ids in queries.batches(topic_ids):
        batch = queries.fetch(connection, select(topics).where(topics.c.id.in_(ids)), row_mapping.topic)
        records.update((topic.id, topic) for topic in batch)
    return records


def of_statement(connection: Connection, statement: Select[Any]) -> list[TopicRecord]:
    """Return the topics that a statement selects, by name, in the order of code points."""
    return sorted(queries.fetch(connection, statement, row_mapping.topic), key=lambda topic: str(topic.name))


def locked(connection: Connection, topic_id: int) -> TopicRecord:
    """Lock and return the topic: no other transaction changes its row until this one ends. Raises TopicNotFound."""
    # NO KEY: rows that refer to the topic may still be inserted by others (an attempt, say).
    return _one(connection, _LOCKED, topic_id)


def kept(connection: Connection, topic_id: int) -> TopicRecord:
    """Lock and return the topic so that others may change but not delete it until this transaction ends.

    For a transaction that adds rows that refer to it, or locks some, without the topic's lock. Raises TopicNotFound.
    """
    return _one(connection, _KEPT, topic_id)


def all_locked(connection: Connection, topic_ids: Collection[int]) -> list[TopicRecord]:
    """Lock and return those of the topics that exist, by id, as `locked` does: to change several together."""
    statement = _of_ids(topic_ids).with_for_update(key_share=True)
    return queries.fetch(connection, statement, row_mapping.topic)


def locked_whole(connection: Connection, topic_ids: Collection[int]) -> list[TopicRecord]:
    """Lock and return those of the topics that exist, by id, for deletion: no other transaction adds rows to them."""
    statement = _of_ids(topic_ids).with_for_update()
    return queries.fetch(connection, statement, row_mapping.topic)


def lock_if_present(connection: Connection, topic_id: int) -> None:
    """Lock a topic as `locked_whole` does, if it exists."""
    connection.execute(select(topics.c.id).where(topics.c.id == topic_id).with_for_update()).first()


def page_rows(connection: Connection, after: int, count: int) -> Sequence[RowMapping]:
    """Return the rows of the next `count` topics whose ids are greater than `after`, by id."""
    statement = select(topics).where(topics.c.id > after).order_by(topics.c.id).limit(count)
    return connection.execute(statement).mappings().all()


def parse_namespace(namespace: str) -> tuple[str, str]:
    """Return tenant and local name of `tenant/namespace`, with any characters. Raises InvalidInput."""
    tenant, separator, local = namespace.partition("/")
    if not (tenant and separator and local) or "/" in local:
        raise InvalidInput(f"{namespace!r} is not a namespace", "use tenant/namespace, public/default for example")
    return tenant, local


def store_properties(connection: Connection, topic_id: int, new: Mapping[str, str]) -> None:
    """Replace the topic's properties. Raises InvalidInput."""
    queries.change(connection, topics, topic_id, properties=check_properties(new))


def check_properties(new: Mapping[str, str]) -> dict[str, str]:
    """Return properties that every database can store: texts by name. Raises InvalidInput."""
    for key, value in new.items():
        if not isinstance(key, str) or not isinstance(value, str) or not _storable(key + value):
            raise InvalidInput(f"the property {key!r} is no text", "properties are texts of Unicode, without NUL")
    return dict(new)


def _storable(text: str) -> bool:
    """Return whether a text has no NUL, which PostgreSQL refuses, and no half surrogate, which UTF-8 cannot hold."""
    return "\x00" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def _of_ids(topic_ids: Collection[int]) -> Select[tuple[object, ...]]:
    """Return a statement that selects topics by id, in the order in which several are locked."""
    return select(topics).where(topics.c.id.in_(topic_ids)).order_by(topics.c.id)


def _one(connection: Connection, statement: Select[tuple[object, ...]], topic_id: int) -> TopicRecord:
    topic = queries.find(connection, statement, row_mapping.topic, {"topic": topic_id})
    if topic is None:
        raise _not_found(connection, topic_id)
    return topic


def _not_found(connection: Connection, topic_id: int) -> TopicNotFound:
    """Return the error for a topic that does not exist; it has the name of a topic that was deleted."""
    deleted = select(deleted_topics.c.name).where(deleted_topics.c.topic_id == topic_id)
    name = connection.execute(deleted).scalar_one_or_none()
    if name is None:
        return TopicNotFound(f"the topic with id {topic_id} does not exist", _LIST)
    return TopicNotFound(f"the topic {name} was deleted", "create it again if it is still wanted: it will be empty")
