"""Topics: made once a name, found, locked, listed.

Every change that must not race with another change of the same topic begins with `locked`: it holds the topic's row
until the transaction ends, so writers of one topic form a queue and writers of different topics do not meet.
Order of locks, everywhere: lease, topic, attempts by id, runs by id, then the rest; that is why two transactions never
wait for each other. Only heartbeats go without the topic's lock, and begin at the attempts.
"""

from __future__ import annotations

import secrets
import uuid

from sqlalchemy import Connection, Select, func, insert, select
from sqlalchemy.exc import IntegrityError

from storage.errors import InvalidInput, TopicNotFound
from storage.metadata import mapping
from storage.metadata.records import TopicRecord, TopicSummary
from storage.metadata.tables import compacted_ledgers, leases, ledgers, topics
from storage.model import DOMAIN, TopicName

_LIST = "see `compactor topics list`"


def create(connection: Connection, name: TopicName, now: int) -> TopicRecord:
    """The topic of that name, made with its lease row if it does not exist."""
    existing = _find(connection, name)
    if existing is not None:
        return existing
    try:
        with connection.begin_nested():
            made = connection.execute(
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
            assert made.inserted_primary_key is not None
            topic_id: int = made.inserted_primary_key[0]
            connection.execute(insert(leases).values(topic_id=topic_id, holder=None, token=0, expires_at=0))
    except IntegrityError:
        # Somebody else made it between our look and our insert; theirs is as good.
        return by_name(connection, name)
    return by_id(connection, topic_id)


def by_name(connection: Connection, name: TopicName) -> TopicRecord:
    """Raises TopicNotFound."""
    topic = _find(connection, name)
    if topic is None:
        raise TopicNotFound(f"the topic {name} does not exist", _LIST)
    return topic


def by_id(connection: Connection, topic_id: int) -> TopicRecord:
    """Raises TopicNotFound."""
    return _one(connection, select(topics).where(topics.c.id == topic_id), topic_id)


def locked(connection: Connection, topic_id: int) -> TopicRecord:
    """The topic, whose row nobody else changes until this transaction ends. Raises TopicNotFound."""
    # NO KEY: rows that refer to the topic may still be inserted by others (an attempt, say).
    statement = select(topics).where(topics.c.id == topic_id).with_for_update(key_share=True)
    return _one(connection, statement, topic_id)


def list_all(connection: Connection) -> list[TopicRecord]:
    """By name, in the order of code points: databases sort text each in their own way."""
    found = [mapping.topic(row) for row in connection.execute(select(topics)).mappings()]
    return sorted(found, key=lambda topic: str(topic.name))


def in_namespace(connection: Connection, namespace: str) -> list[TopicRecord]:
    """The topics of `tenant/namespace`, by name; none is no error. Raises InvalidInput for anything else."""
    tenant, separator, local = namespace.partition("/")
    if not (tenant and separator and local) or "/" in local:
        raise InvalidInput(f"{namespace!r} is not a namespace", "use tenant/namespace, public/default for example")
    like = topics.c.name.startswith(f"{DOMAIN}://{namespace}/", autoescape=True)
    found = [mapping.topic(row) for row in connection.execute(select(topics).where(like)).mappings()]
    # Again here: SQLite's LIKE does not tell large letters from small ones.
    ours = [topic for topic in found if (topic.name.tenant, topic.name.namespace) == (tenant, local)]
    return sorted(ours, key=lambda topic: str(topic.name))


def summaries(connection: Connection) -> list[TopicSummary]:
    """All topics, by name, with sums over their ledgers; one statement however many topics there are."""
    sums = (
        select(
            ledgers.c.topic_id,
            func.count().label("ledgers"),
            func.sum(ledgers.c.messages).label("messages"),
            func.sum(ledgers.c.logical_bytes).label("logical_bytes"),
        )
        .group_by(ledgers.c.topic_id)
        .subquery()
    )
    serving = (compacted_ledgers.c.topic_id == topics.c.id) & compacted_ledgers.c.retired_at.is_(None)
    statement = (
        select(
            topics.c.name,
            func.coalesce(sums.c.ledgers, 0),
            func.coalesce(sums.c.messages, 0),
            func.coalesce(sums.c.logical_bytes, 0),
            compacted_ledgers.c.ledger_id,
        )
        .select_from(topics)
        .outerjoin(sums, sums.c.topic_id == topics.c.id)
        .outerjoin(compacted_ledgers, serving)
    )
    found = [
        # int(): PostgreSQL's sum of BIGINT is a decimal.
        TopicSummary(TopicName.parse(name), int(count), int(messages), int(size), compacted)
        for name, count, messages, size, compacted in connection.execute(statement)
    ]
    return sorted(found, key=lambda summary: str(summary.name))


def _find(connection: Connection, name: TopicName) -> TopicRecord | None:
    row = connection.execute(select(topics).where(topics.c.name == str(name))).mappings().one_or_none()
    return mapping.topic(row) if row is not None else None


def _one(connection: Connection, statement: Select[tuple[object, ...]], topic_id: int) -> TopicRecord:
    row = connection.execute(statement).mappings().one_or_none()
    if row is None:
        raise TopicNotFound(f"the topic with id {topic_id} does not exist (any more)", _LIST)
    return mapping.topic(row)
