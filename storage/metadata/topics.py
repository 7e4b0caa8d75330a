"""Topics: creation, look-up, locks, lists and properties.

Every change that must not race with another change of the same topic begins with `lock`: it holds the topic's row
until the transaction ends, so writers of one topic form a queue and writers of different topics do not meet.

Order of locks, everywhere: lease, topic, attempts by id, runs by id, then the rest, and of several topics first all
leases, then all topics, and so on; therefore two transactions never wait for each other. Only heartbeats take no lock
of the topic, and begin at the attempts; they update each row once, since PostgreSQL locks the topic to check the
foreign key of a row that the same transaction has updated before. A transaction that adds rows of a topic without its
lock takes `lock_against_deletion`, so that it is not deleted meanwhile. Tenants, namespaces and partitioned topics come
before all others (tenancy.py). tests/conformance/metadata/lock_order.py checks this order.

tenancy.py creates topics in their namespaces, and deletes them.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, Select, bindparam, func, insert, select, true

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


def by_names(connection: Connection, names: Collection[TopicName]) -> dict[TopicName, TopicRecord]:
    """Return those of the topics that exist, by name. A name without a topic is left out."""
    texts = [str(name) for name in names]
    return {topic.name: topic for topic in _topics_with_values(connection, topics.c.name, texts)}


def all_topics(connection: Connection) -> list[TopicRecord]:
    """Return all topics by name, in the order of code points: databases sort text each in their own way."""
    return of_statement(connection, select(topics))


def page_by_id(connection: Connection, after_id: int, count: int) -> list[TopicRecord]:
    """Return the next `count` topics whose ids are greater than `after_id`, by id."""
    statement = select(topics).where(topics.c.id > after_id).order_by(topics.c.id).limit(count)
    return queries.fetch(connection, statement, row_mapping.topic)


def page_by_uid(connection: Connection, after_uid: str, count: int) -> list[TopicRecord]:
    """Return the next `count` topics whose uids are greater than `after_uid`, by uid."""
    statement = select(topics).where(topics.c.uid > after_uid).order_by(topics.c.uid).limit(count)
    return queries.fetch(connection, statement, row_mapping.topic)


def by_uid(connection: Connection, uid: str) -> TopicRecord | None:
    """Return the topic of that uid; None: there is none."""
    return queries.find(connection, select(topics).where(topics.c.uid == uid), row_mapping.topic)


def in_namespace(connection: Connection, namespace: str) -> list[TopicRecord]:
    """Return the topics of `tenant/namespace`, by name; empty: there are none. Raises InvalidInput for another form."""
    tenant, local = parse_namespace(namespace)
    like = topics.c.name.startswith(f"{DOMAIN}://{namespace}/", autoescape=True)
    records = of_statement(connection, select(topics).where(like))
    # Again here: SQLite's LIKE folds case.
    return [topic for topic in records if (topic.name.tenant, topic.name.namespace) == (tenant, local)]


def with_iceberg_tables(connection: Connection, levels: Sequence[str], after: str, limit: int) -> list[TopicName]:
    """Return topics whose serving compacted ledger has an Iceberg table: the next `limit` after a name, by name.

    `levels`: a tenant, or a tenant and a namespace; empty: all topics. `after`: a full name; empty: from the first.
    SQLite's LIKE folds case, so some may be of other tenants or namespaces.
    """
    serving = compacted_ledgers.c.retired_at.is_(None) & compacted_ledgers.c.table_metadata_name.is_not(None)
    statement = select(topics.c.name).join(compacted_ledgers, compacted_ledgers.c.topic_id == topics.c.id)
    inside = topics.c.name.startswith("/".join((f"{DOMAIN}:/", *levels, "")), autoescape=True)
    statement = statement.where(serving, inside, topics.c.name > after).order_by(topics.c.name).limit(limit)
    return [row_mapping.stored_name(name) for name in connection.execute(statement).scalars()]


def summaries(connection: Connection, topic_ids: Collection[int] | None = None) -> list[TopicSummary]:
    """Return summaries of topics, by name: sums over their ledgers that are not trimmed, and over rolled segments.

    `topic_ids`: of these topics; None: of all. One statement, which reads all topics for more than `queries.AT_ONCE`
    ids. The contents of open segments are known to their files only, and not added.
    """
    if topic_ids is not None and len(topic_ids) > queries.AT_ONCE:
        ids = frozenset(topic_ids)
        return [summary for summary in summaries(connection) if summary.topic_id in ids]

    def chosen(column: ColumnElement[int]) -> ColumnElement[bool]:
        return true() if topic_ids is None else column.in_(topic_ids)

    sums = (
        select(
            ledgers.c.topic_id,
            func.count().label("ledgers"),
            queries.total(ledgers.c.messages).label("messages"),
            queries.total(ledgers.c.logical_bytes).label("logical_bytes"),
        )
        .where(ledgers.c.deleted_at.is_(None), chosen(ledgers.c.topic_id))
        .group_by(ledgers.c.topic_id)
        .subquery()
    )
    rolled = (
        select(
            segments.c.topic_id,
            queries.total(segments.c.messages).label("messages"),
            queries.total(segments.c.logical_bytes).label("logical_bytes"),
        )
        .where(segments.c.state == SegmentState.ROLLED.value, chosen(segments.c.topic_id))
        .group_by(segments.c.topic_id)
        .subquery()
    )
    serving = (compacted_ledgers.c.topic_id == topics.c.id) & compacted_ledgers.c.retired_at.is_(None)
    statement = (
        select(
            topics.c.id.label("topic_id"),
            topics.c.name,
            func.coalesce(sums.c.ledgers, 0).label("ledgers"),
            func.coalesce(sums.c.messages, 0).label("messages"),
            func.coalesce(sums.c.logical_bytes, 0).label("logical_bytes"),
            compacted_ledgers.c.ledger_id.label("compacted_ledger_id"),
            compacted_ledgers.c.logical_bytes.label("compacted_bytes"),
            compacted_ledgers.c.created_at.label("compacted_at"),
            func.coalesce(rolled.c.messages, 0).label("unsealed_messages"),
            func.coalesce(rolled.c.logical_bytes, 0).label("unsealed_bytes"),
        )
        .select_from(topics)
        .outerjoin(sums, sums.c.topic_id == topics.c.id)
        .outerjoin(rolled, rolled.c.topic_id == topics.c.id)
        .outerjoin(compacted_ledgers, serving)
        .where(chosen(topics.c.id))
    )
    return sorted(queries.fetch(connection, statement, _summary), key=lambda summary: str(summary.name))


def producer_epoch(connection: Connection, topic_id: int) -> int | None:
    """Return the epoch of the exclusive producer that came last; None: there was none. Raises TopicNotFound."""
    epoch: int | None = value_of(connection, topic_id, topics.c.producer_epoch)
    return epoch


def raise_producer_epoch(connection: Connection, topic_id: int, epoch: int) -> None:
    """Store the epoch of an exclusive producer. Raises TopicNotFound, Fenced if a larger one is stored."""
    topic = lock(connection, topic_id)
    stored = producer_epoch(connection, topic_id)
    if stored is not None and stored > epoch:
        raise Fenced(
            f"a later exclusive producer of {topic.name} has epoch {stored}, after {epoch}",
            "look the topic up again",
            is_public=True,
        )
    queries.change(connection, topics, topic_id, producer_epoch=epoch)


def properties(connection: Connection, topic_id: int) -> dict[str, str]:
    """Return the properties of the topic with that id, which users have set. Raises TopicNotFound."""
    return dict(value_of(connection, topic_id, topics.c.properties))


def set_properties(
    connection: Connection, topic_id: int, updates: Mapping[str, str], removed: Collection[str] = ()
) -> None:
    """Add or replace the properties `updates`, and remove those named in `removed`; the others stay.

    Raises TopicNotFound, InvalidInput for a property that cannot be stored.
    """
    lock(connection, topic_id)
    kept_properties = {key: value for key, value in properties(connection, topic_id).items() if key not in removed}
    store_properties(connection, topic_id, {**kept_properties, **updates})


# Parts of other transactions


def ensure(connection: Connection, names: Sequence[TopicName], now: int) -> list[TopicRecord]:
    """Return the topics of these names, in their order; those that do not exist are inserted with their lease rows.

    The caller has locked their namespace, so no other transaction inserts them meanwhile. Raises InvalidTopicName.
    """
    records = by_names(connection, names)
    new = [name for name in names if name not in records]
    for name in new:
        name.check_new()
    if new:
        counters = {"generation": 0, "epoch": 0, "next_offset": 0, "created_at": now}
        rows = [{"uid": uuid.uuid4().hex, "name": str(name), "hash_seed": secrets.randbits(63)} for name in new]
        inserted = connection.execute(insert(topics).returning(topics), [{**row, **counters} for row in rows])
        records.update((topic.name, topic) for topic in map(row_mapping.topic, inserted.mappings()))
        unheld = {"holder": None, "token": 0, "expires_at": 0}
        connection.execute(insert(leases), [{"topic_id": records[name].id, **unheld} for name in new])
    return [records[name] for name in names]


def find(connection: Connection, name: TopicName) -> TopicRecord | None:
    """Return the topic of that name; None: there is none."""
    return queries.find(connection, _BY_NAME, row_mapping.topic, {"topic_name": str(name)})


def _summary(row: RowMapping) -> TopicSummary:
    return row_mapping.record(TopicSummary, row, name=row_mapping.stored_name(row["name"]))


def by_name(connection: Connection, name: TopicName) -> TopicRecord:
    """Return the topic of that name. Raises TopicNotFound."""
    topic = find(connection, name)
    if topic is None:
        raise TopicNotFound(f"the topic {name} does not exist", _LIST)
    return topic


def by_id(connection: Connection, topic_id: int) -> TopicRecord:
    """Return the topic of that id. Raises TopicNotFound."""
    return _get_one(connection, _BY_ID, topic_id)


def by_ids(connection: Connection, topic_ids: Collection[int]) -> dict[int, TopicRecord]:
    """Return those of the topics that exist, by id. An id without a topic is left out."""
    return {topic.id: topic for topic in _topics_with_values(connection, topics.c.id, topic_ids)}


def value_of(connection: Connection, topic_id: int, column: ColumnElement[Any]) -> Any:
    """Return the value of one column of a topic's row. Raises TopicNotFound."""
    row = connection.execute(select(column).where(topics.c.id == topic_id)).first()
    if row is None:
        raise _not_found(connection, topic_id)
    return row[0]


def of_statement(connection: Connection, statement: Select[Any]) -> list[TopicRecord]:
    """Return the topics that a statement selects, by name, in the order of code points."""
    return sorted(queries.fetch(connection, statement, row_mapping.topic), key=lambda topic: str(topic.name))


def lock(connection: Connection, topic_id: int) -> TopicRecord:
    """Lock and return the topic: no other transaction changes its row until this one ends.

    Raises TopicNotFound.
    """
    # NO KEY: rows that refer to the topic may still be inserted by others (an attempt, say).
    return _get_one(connection, _LOCKED, topic_id)


def lock_against_deletion(connection: Connection, topic_id: int) -> TopicRecord:
    """Lock and return the topic so that others may change but not delete it until this transaction ends.

    For a transaction that adds rows that refer to it, or locks some, without the topic's lock. Raises TopicNotFound.
    """
    return _get_one(connection, _KEPT, topic_id)


def lock_all(connection: Connection, topic_ids: Collection[int]) -> list[TopicRecord]:
    """Lock, as `lock` does, those of the topics that exist, in the order of ids; return them.

    For a transaction that changes several topics.
    """
    return [
        topic
        for batch in queries.batches(sorted(topic_ids))
        for topic in queries.fetch(connection, _select_by_ids(batch).with_for_update(key_share=True), row_mapping.topic)
    ]


def lock_all_for_deletion(connection: Connection, topic_ids: Collection[int]) -> list[TopicRecord]:
    """Lock those of the topics that exist, in the order of ids, for deletion; return them.

    No other transaction adds rows that refer to them until this one ends.
    """
    return queries.fetch(connection, _select_by_ids(topic_ids).with_for_update(), row_mapping.topic)


def parse_namespace(namespace: str) -> tuple[str, str]:
    """Return tenant and local name of `tenant/namespace`. Raises InvalidInput for any other form.

    The characters of the two are not checked.
    """
    tenant, separator, local = namespace.partition("/")
    if not (tenant and separator and local) or "/" in local:
        raise InvalidInput(f"{namespace!r} is not a namespace", "use tenant/namespace, public/default for example")
    return tenant, local


def store_properties(connection: Connection, topic_id: int, new: Mapping[str, str]) -> None:
    """Replace the topic's properties. Raises InvalidInput."""
    queries.change(connection, topics, topic_id, properties=validated_properties(new))


def validated_properties(new: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of a topic's properties. Raises InvalidInput if not every database can store them.

    Names and values must be texts without NUL and without half surrogates.
    """
    for key, value in new.items():
        if not isinstance(key, str) or not isinstance(value, str) or not _is_storable(key + value):
            raise InvalidInput(f"the property {key!r} is no text", "properties are texts of Unicode, without NUL")
    return dict(new)


def _is_storable(text: str) -> bool:
    """Return whether a text has no NUL, which PostgreSQL refuses, and no half surrogate, which UTF-8 cannot hold."""
    return "\x00" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def _topics_with_values(
    connection: Connection, column: ColumnElement[Any], values: Collection[Any]
) -> Iterator[TopicRecord]:
    """Yield the topics that have one of these values in a column, which is unique."""
    for batch in queries.batches(values):
        yield from queries.fetch(connection, select(topics).where(column.in_(batch)), row_mapping.topic)


def _select_by_ids(topic_ids: Collection[int]) -> Select[tuple[object, ...]]:
    """Return a statement that selects topics with these ids, in the order of ids, in which several are locked."""
    return select(topics).where(topics.c.id.in_(topic_ids)).order_by(topics.c.id)


def _get_one(connection: Connection, statement: Select[tuple[object, ...]], topic_id: int) -> TopicRecord:
    topic = queries.find(connection, statement, row_mapping.topic, {"topic": topic_id})
    if topic is None:
        raise _not_found(connection, topic_id)
    return topic


def _not_found(connection: Connection, topic_id: int) -> TopicNotFound:
    """Return the error for an id without a topic; for a topic that was deleted, the error has its name."""
    deleted = select(deleted_topics.c.name).where(deleted_topics.c.topic_id == topic_id)
    name = connection.execute(deleted).scalar_one_or_none()
    if name is None:
        return TopicNotFound(f"the topic with id {topic_id} does not exist", _LIST)
    return TopicNotFound(f"the topic {name} was deleted", "create it again if it is still wanted: it will be empty")
