"""Topics: made once a name, found, locked, listed, and their properties.

Every change that must not race with another change of the same topic begins with `locked`: it holds the topic's row
until the transaction ends, so writers of one topic form a queue and writers of different topics do not meet.
Order of locks, everywhere: lease, topic, attempts by id, runs by id, then the rest, and of several topics first all
leases, then all topics, and so on; that is why two transactions never wait for each other. Only heartbeats go without
the topic's lock, and begin at the attempts; they update each row once, since PostgreSQL locks the topic to check the
foreign key of a row that the same transaction has updated before. A transaction that adds rows of a topic without its
lock holds it `kept`, so that it is not deleted meanwhile. Tenants, namespaces and partitioned topics come before all,
in this order (tenancy.py). tests/conformance/metadata/lock_order.py watches it.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, RowMapping, Select, bindparam, func, insert, select
from sqlalchemy.exc import IntegrityError

from storage.errors import Fenced, InvalidInput, TopicNotFound
from storage.metadata import queries, row_mapping
from storage.metadata.queries import Store
from storage.metadata.records import SegmentState, TopicRecord, TopicSummary
from storage.metadata.tables import compacted_ledgers, deleted_topics, leases, ledgers, segments, topics
from storage.model import DOMAIN, TopicName

_LIST = "see `compactor topics list`"
# Here and elsewhere, statements of every request are made once: making one costs more than executing it.
_BY_NAME = select(topics).where(topics.c.name == bindparam("topic_name"))
_BY_ID = select(topics).where(topics.c.id == bindparam("topic"))
_LOCKED = _BY_ID.with_for_update(key_share=True)
_KEPT = _BY_ID.with_for_update(read=True, key_share=True)


class TopicStore(Store):
    """Topics. TenancyStore makes and deletes them, in their namespaces."""

    def get(self, name: TopicName) -> TopicRecord:
        """Raises TopicNotFound."""
        with self._database.read() as connection:
            return by_name(connection, name)

    def named(self, names: Collection[TopicName]) -> dict[TopicName, TopicRecord]:
        """Those of the topics that there are, by name."""
        found: dict[TopicName, TopicRecord] = {}
        with self._database.read() as connection:
            for some in queries.batches([str(name) for name in names]):
                these = select(topics).where(topics.c.name.in_(some))
                found.update((topic.name, topic) for topic in queries.fetch(connection, these, row_mapping.topic))
        return found

    def all(self) -> list[TopicRecord]:
        """All topics, by name, in the order of code points: databases sort text each in their own way."""
        with self._database.read() as connection:
            return of_statement(connection, select(topics))

    def in_pages(self, count: int) -> Iterator[list[TopicRecord]]:
        """All topics, by id, `count` at a time; each page is of its own moment."""
        after = -1
        while True:
            with self._database.read() as connection:
                page = [row_mapping.topic(row) for row in page_rows(connection, after, count)]
            if not page:
                return
            yield page
            after = page[-1].id

    def in_namespace(self, namespace: str) -> list[TopicRecord]:
        """The topics of `tenant/namespace`, by name; none is no error. Raises InvalidInput for anything else."""
        with self._database.read() as connection:
            return in_namespace(connection, namespace)

    def summaries(self) -> list[TopicSummary]:
        """All topics, by name, with sums over their ledgers that are not trimmed, and over rolled segments.

        One statement for all topics. What open segments hold is in their files.
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
        with self._database.read() as connection:
            summaries = [_summary(tuple(row)) for row in connection.execute(statement)]
        return sorted(summaries, key=lambda summary: str(summary.name))

    def producer_epoch(self, topic_id: int) -> int | None:
        """Return the epoch of the exclusive producer that came last; None: there was none. Raises TopicNotFound."""
        with self._database.read() as connection:
            return producer_epoch(connection, topic_id)

    def raise_producer_epoch(self, topic_id: int, epoch: int) -> None:
        """Store the epoch of an exclusive producer. Raises TopicNotFound, Fenced if a later one is stored."""
        with self._database.write() as connection:
            topic = locked(connection, topic_id)
            stored = producer_epoch(connection, topic_id)
            if stored is not None and stored > epoch:
                raise Fenced(
                    f"a later exclusive producer of {topic.name} has epoch {stored}, after {epoch}",
                    "look the topic up again",
                    is_public=True,
                )
            queries.change(connection, topics, topic_id, producer_epoch=epoch)

    def properties(self, topic_id: int) -> dict[str, str]:
        """Raises TopicNotFound."""
        with self._database.read() as connection:
            return properties(connection, topic_id)

    def set_properties(self, topic_id: int, updates: Mapping[str, str]) -> dict[str, str]:
        """Add or replace properties; all of them as they are then. Raises TopicNotFound, InvalidInput."""
        with self._database.write() as connection:
            locked(connection, topic_id)
            merged = {**properties(connection, topic_id), **updates}
            store_properties(connection, topic_id, merged)
            return merged

    def remove_property(self, topic_id: int, key: str) -> bool:
        """Whether there was one to remove. Raises TopicNotFound."""
        with self._database.write() as connection:
            locked(connection, topic_id)
            found = properties(connection, topic_id)
            if key not in found:
                return False
            del found[key]
            store_properties(connection, topic_id, found)
            return True


def create(connection: Connection, name: TopicName, now: int) -> TopicRecord:
    """The topic of that name, made with its lease row if it does not exist."""
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
        # Another transaction made it between the select and the insert.
        return by_name(connection, name)
    return by_id(connection, topic_id)


def find(connection: Connection, name: TopicName) -> TopicRecord | None:
    return queries.find(connection, _BY_NAME, row_mapping.topic, {"topic_name": str(name)})


def ids_of(connection: Connection, names: Collection[TopicName]) -> list[int]:
    """Ids of those of the topics that there are."""
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
    """Raises TopicNotFound."""
    topic = find(connection, name)
    if topic is None:
        raise TopicNotFound(f"the topic {name} does not exist", _LIST)
    return topic


def by_id(connection: Connection, topic_id: int) -> TopicRecord:
    """Raises TopicNotFound."""
    return _found(connection, _BY_ID, topic_id)


def by_ids(connection: Connection, topic_ids: Collection[int]) -> dict[int, TopicRecord]:
    """Those of the topics that there are, by id."""
    found: dict[int, TopicRecord] = {}
    for ids in queries.batches(topic_ids):
        these = queries.fetch(connection, select(topics).where(topics.c.id.in_(ids)), row_mapping.topic)
        found.update((topic.id, topic) for topic in these)
    return found


def of_statement(connection: Connection, statement: Select[Any]) -> list[TopicRecord]:
    """The topics that a statement selects, by name, in the order of code points."""
    return sorted(queries.fetch(connection, statement, row_mapping.topic), key=lambda topic: str(topic.name))


def locked(connection: Connection, topic_id: int) -> TopicRecord:
    """The topic, whose row no other transaction changes until this one ends. Raises TopicNotFound."""
    # NO KEY: rows that refer to the topic may still be inserted by others (an attempt, say).
    return _found(connection, _LOCKED, topic_id)


def kept(connection: Connection, topic_id: int) -> TopicRecord:
    """The topic, which others may change but not delete until this transaction ends. Raises TopicNotFound.

    For a transaction that adds rows that refer to it, or locks some, without the topic's lock.
    """
    return _found(connection, _KEPT, topic_id)


def all_locked(connection: Connection, topic_ids: Collection[int]) -> list[TopicRecord]:
    """Those of the topics that there are, by id, each `locked`: for a change of several in one transaction."""
    statement = _of_ids(topic_ids).with_for_update(key_share=True)
    return queries.fetch(connection, statement, row_mapping.topic)


def locked_whole(connection: Connection, topic_ids: Collection[int]) -> list[TopicRecord]:
    """Those of the topics that there are, by id, for deleting them: no other transaction adds rows to them.

    Until this transaction ends.
    """
    statement = _of_ids(topic_ids).with_for_update()
    return queries.fetch(connection, statement, row_mapping.topic)


def lock_if_there(connection: Connection, topic_id: int) -> bool:
    """Like `locked_whole`, also for a topic that may be gone; whether it is there."""
    return connection.execute(select(topics.c.id).where(topics.c.id == topic_id).with_for_update()).first() is not None


def page_rows(connection: Connection, after: int, count: int) -> Sequence[RowMapping]:
    """The rows of the next `count` topics whose ids are greater than `after`, by id."""
    statement = select(topics).where(topics.c.id > after).order_by(topics.c.id).limit(count)
    return connection.execute(statement).mappings().all()


def in_namespace(connection: Connection, namespace: str) -> list[TopicRecord]:
    """The topics of `tenant/namespace`, by name; none is no error. Raises InvalidInput for anything else."""
    tenant, local = parse_namespace(namespace)
    like = topics.c.name.startswith(f"{DOMAIN}://{namespace}/", autoescape=True)
    found = of_statement(connection, select(topics).where(like))
    # Again here: SQLite's LIKE does not tell large letters from small ones.
    return [topic for topic in found if (topic.name.tenant, topic.name.namespace) == (tenant, local)]


def parse_namespace(namespace: str) -> tuple[str, str]:
    """Tenant and local name of `tenant/namespace`, whatever their characters. Raises InvalidInput."""
    tenant, separator, local = namespace.partition("/")
    if not (tenant and separator and local) or "/" in local:
        raise InvalidInput(f"{namespace!r} is not a namespace", "use tenant/namespace, public/default for example")
    return tenant, local


def properties(connection: Connection, topic_id: int) -> dict[str, str]:
    """Raises TopicNotFound."""
    found = connection.execute(select(topics.c.properties).where(topics.c.id == topic_id)).first()
    if found is None:
        by_id(connection, topic_id)  # which raises TopicNotFound in the topic's words
        return {}
    return dict(found[0])


def producer_epoch(connection: Connection, topic_id: int) -> int | None:
    """Return what `TopicStore.producer_epoch` does. Raises TopicNotFound."""
    row = connection.execute(select(topics.c.producer_epoch).where(topics.c.id == topic_id)).first()
    if row is None:
        raise _gone(connection, topic_id)
    epoch: int | None = row[0]
    return epoch


def store_properties(connection: Connection, topic_id: int, given: Mapping[str, str]) -> None:
    """Set the topic's properties instead of those that it has. Raises InvalidInput."""
    values = check_properties(given)
    queries.change(connection, topics, topic_id, properties=values)


def check_properties(given: Mapping[str, str]) -> dict[str, str]:
    """Texts by name, which every database takes. Raises InvalidInput."""
    for key, value in given.items():
        if not isinstance(key, str) or not isinstance(value, str) or not _storable(key + value):
            raise InvalidInput(f"the property {key!r} is no text", "properties are texts of Unicode, without NUL")
    return dict(given)


def _storable(text: str) -> bool:
    """No NUL, which PostgreSQL does not take, and no half of a surrogate pair, of which JSON can tell: UTF-8 cannot."""
    return "\x00" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def _of_ids(topic_ids: Collection[int]) -> Select[tuple[object, ...]]:
    """By id, as several topics are locked."""
    return select(topics).where(topics.c.id.in_(topic_ids)).order_by(topics.c.id)


def _found(connection: Connection, statement: Select[tuple[object, ...]], topic_id: int) -> TopicRecord:
    topic = queries.find(connection, statement, row_mapping.topic, {"topic": topic_id})
    if topic is None:
        raise _gone(connection, topic_id)
    return topic


def _gone(connection: Connection, topic_id: int) -> TopicNotFound:
    """With the name of the topic, if it was deleted."""
    over = select(deleted_topics.c.name).where(deleted_topics.c.topic_id == topic_id)
    name = connection.execute(over).scalar_one_or_none()
    if name is None:
        return TopicNotFound(f"the topic with id {topic_id} does not exist", _LIST)
    return TopicNotFound(f"the topic {name} was deleted", "create it again if it is still wanted: it will be empty")
