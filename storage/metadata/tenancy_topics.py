"""Making topics in their namespaces, and their properties.

Invariants: a topic has its namespace; no topic has the name of a partitioned topic, nor the other way round. Both are
looked at under the namespace's lock (tenancy.py), under which every topic is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, select, update

from storage.errors import Conflict, InvalidInput
from storage.metadata import cursors, policy_store, tenancy, topics
from storage.metadata.records import COMPACTION_CURSOR, TopicRecord
from storage.metadata.tables import partitioned_topics
from storage.metadata.tables import topics as topics_table
from storage.model import TopicName


def ensure(connection: Connection, name: TopicName, now: int, defaults: Mapping[str, object]) -> TopicRecord:
    """The topic of that name, made with tenant and namespace if it does not exist. `defaults`: the broker's policies.

    Raises Conflict if that is a partitioned topic.
    """
    existing = topics.find(connection, name)
    if existing is not None:
        return existing
    tenancy.ensure_namespace(connection, name, now)
    _check_not_partitioned(connection, name)
    return make(connection, [name], now, defaults)[0]


def create(
    connection: Connection, name: TopicName, properties: Mapping[str, str], now: int, defaults: Mapping[str, object]
) -> TopicRecord:
    """A new topic. Raises NotFound for its namespace, Conflict if it, or a partitioned topic of its name, exists."""
    tenancy.locked_namespace(connection, f"{name.tenant}/{name.namespace}")
    _check_not_partitioned(connection, name)
    if topics.find(connection, name) is not None:
        raise Conflict(f"the topic {name} exists already", "nothing was changed; choose another name")
    (made,) = make(connection, [name], now, defaults)
    if properties:
        _store_properties(connection, made.id, properties)
    return made


def make(
    connection: Connection, names: Sequence[TopicName], now: int, defaults: Mapping[str, object]
) -> list[TopicRecord]:
    """Topics of one namespace, made if they do not exist; with the cursor `__compaction` where compaction is enabled
    for new topics (S9)."""
    around = policy_store.resolved_around(connection, policy_store.scope_around(names[0]), defaults)
    made = [topics.create(connection, name, now) for name in names]
    if around.compaction_enabled:
        for topic in sorted(made, key=lambda one: one.id):  # the order of locks: one may have been made again
            cursors.create(connection, topic.id, COMPACTION_CURSOR)
    return made


def properties(connection: Connection, topic_id: int) -> dict[str, str]:
    """Raises TopicNotFound."""
    found = connection.execute(select(topics_table.c.properties).where(topics_table.c.id == topic_id)).first()
    if found is None:
        topics.by_id(connection, topic_id)  # which says so in the topic's words
        return {}
    return dict(found[0])


def set_properties(connection: Connection, topic_id: int, updates: Mapping[str, str]) -> dict[str, str]:
    """Add or replace properties; as they are then. Raises TopicNotFound, InvalidInput for what is no text."""
    topics.locked(connection, topic_id)
    merged = {**properties(connection, topic_id), **updates}
    _store_properties(connection, topic_id, merged)
    return merged


def remove_property(connection: Connection, topic_id: int, key: str) -> bool:
    """Whether there was one to remove. Raises TopicNotFound."""
    topics.locked(connection, topic_id)
    left = properties(connection, topic_id)
    if key not in left:
        return False
    del left[key]
    _store_properties(connection, topic_id, left)
    return True


def check_properties(given: Mapping[str, str]) -> dict[str, str]:
    """Texts by name, which every database takes. Raises InvalidInput."""
    for key, value in given.items():
        if not isinstance(key, str) or not isinstance(value, str) or not _storable(key + value):
            raise InvalidInput(f"the property {key!r} is no text", "properties are texts of Unicode, without NUL")
    return dict(given)


def _storable(text: str) -> bool:
    """No NUL, which PostgreSQL does not take, and no half of a surrogate pair, of which JSON can tell: UTF-8 cannot."""
    return "\x00" not in text and not any("\ud800" <= one <= "\udfff" for one in text)


def _store_properties(connection: Connection, topic_id: int, given: Mapping[str, str]) -> None:
    values = check_properties(given)
    connection.execute(update(topics_table).where(topics_table.c.id == topic_id).values(properties=values))


def _check_not_partitioned(connection: Connection, name: TopicName) -> None:
    statement = select(partitioned_topics.c.partitions).where(partitioned_topics.c.name == str(name))
    found = connection.execute(statement).scalar_one_or_none()
    if found is not None:
        raise Conflict(
            f"{name} is a partitioned topic of {found} partitions", f"name one of them, {name}-partition-0 for example"
        )
