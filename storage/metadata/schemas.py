"""Versions of the schemas of topics. The partitions of a partitioned topic share the schema of the whole.

Must not know: the meaning of a schema, and which schema may follow another.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from sqlalchemy import ColumnElement, Connection, RowMapping, delete, func, select

from storage.metadata import queries, row_mapping
from storage.metadata.tables import schemas
from storage.metadata.transactions import Context
from storage.model import TopicName

SchemaVersion = int
"""The number of a version of a topic's schema, from 0."""


@dataclass(frozen=True)
class SchemaRecord:
    """One version of a topic's schema. `type`: by Pulsar's numbers; `data`: the definition; `created_at`: in ms."""

    version: int
    type: int
    name: str
    data: bytes
    properties: Mapping[str, str] = field(default_factory=dict)
    created_at: int = 0


@dataclass(frozen=True)
class SchemaOutline:
    """One version of a topic's schema without its definition. `size`: bytes of the definition; `created_at`: in ms."""

    version: int
    type: int
    size: int
    created_at: int


def outlines(connection: Connection, topic: TopicName) -> list[SchemaOutline]:
    """Return all versions of a topic's schema without their definitions, oldest first."""
    size = func.length(schemas.c.data)
    columns = (schemas.c.version, schemas.c.type, size, schemas.c.created_at)
    query = select(*columns).where(_condition_of_topic(topic)).order_by(schemas.c.version)
    return [SchemaOutline(*row) for row in connection.execute(query)]


def versions(connection: Connection, topic: TopicName, versions: Collection[int]) -> list[SchemaRecord]:
    """Return those of the versions `versions` of a topic's schema that exist, with definitions, oldest first."""
    query = select(schemas).where(_condition_of_topic(topic), schemas.c.version.in_(versions))
    return queries.fetch(connection, query.order_by(schemas.c.version), _record)


def find_by_data(connection: Connection, topic: TopicName, kind: int, data: bytes) -> SchemaRecord | None:
    """Return the oldest version of a topic's schema of type `kind` and of exactly these bytes; None: there is none."""
    query = select(schemas).where(_condition_of_topic(topic), schemas.c.type == kind, schemas.c.data == data)
    return queries.find(connection, query.order_by(schemas.c.version).limit(1), _record)


def add(connection: Connection, context: Context, topic: TopicName, schema: SchemaRecord, version: int) -> bool:
    """Store `schema` as the version `version` of a topic's schema. Its own `version` and `created_at` are ignored.

    Returns False if that version exists.
    """
    return queries.insert_new(
        connection,
        schemas,
        topic=_name_of_schema_topic(topic),
        version=version,
        type=schema.type,
        name=schema.name,
        data=schema.data,
        properties=dict(schema.properties),
        created_at=context.now,
    )


def delete_all(connection: Connection, topic: TopicName) -> SchemaVersion | None:
    """Delete all versions of a topic's schema. Returns the newest of them; None: there was none."""
    newest = connection.execute(select(func.max(schemas.c.version)).where(_condition_of_topic(topic))).scalar_one()
    remove(connection, topic)
    return None if newest is None else int(newest)


def remove(connection: Connection, topic: TopicName) -> None:
    """Delete all versions of a topic's schema. Idempotent."""
    connection.execute(delete(schemas).where(_condition_of_topic(topic)))


def _condition_of_topic(topic: TopicName) -> ColumnElement[bool]:
    return schemas.c.topic == _name_of_schema_topic(topic)


def _name_of_schema_topic(topic: TopicName) -> str:
    return str(topic.partitioned_topic or topic)


def _record(row: RowMapping) -> SchemaRecord:
    return row_mapping.record(SchemaRecord, row)
