"""Schemas with Pulsar's Python client: stored with a version, compatible or refused."""

from __future__ import annotations

import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, String, StringSchema

from tests.clients.python.conftest import all_of

pytestmark = pytest.mark.slow


class User(Record):
    name = String()
    age = Integer()


def with_a_field(required: bool) -> type[Record]:
    """`User` with one field more."""

    class More(Record):
        _avro_namespace = None
        name = String()
        age = Integer()
        town = String(required=required, required_default=not required)

    More.__name__ = "User"
    return More


@pytest.mark.parametrize("kind", [JsonSchema, AvroSchema])
def test_records_come_back(client: pulsar.Client, topic: str, kind: type) -> None:
    producer = client.create_producer(topic, schema=kind(User))
    producer.send(User(name="Ada", age=36))

    (message,) = all_of(client.create_reader(topic, pulsar.MessageId.earliest, schema=kind(User)))

    assert (message.value().name, message.value().age) == ("Ada", 36)
    assert message.schema_version() == "\0" * 8


@pytest.mark.parametrize("kind", [JsonSchema, AvroSchema])
def test_a_schema_may_change_where_both_read_each_other(client: pulsar.Client, topic: str, kind: type) -> None:
    client.create_producer(topic, schema=kind(User)).send(User(name="Ada", age=36))

    more = with_a_field(required=False)
    client.create_producer(topic, schema=kind(more)).send(more(name="Bob", age=1, town="York"))

    assert [message.value().name for message in all_of(reader(client, topic, kind(User)))] == ["Ada", "Bob"]


def reader(client: pulsar.Client, topic: str, schema: object) -> pulsar.Reader:
    return client.create_reader(topic, pulsar.MessageId.earliest, schema=schema)


def test_another_kind_of_schema_is_refused(client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic, schema=JsonSchema(User))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=StringSchema())
    with pytest.raises(pulsar.IncompatibleSchema):
        client.subscribe(topic, "s", schema=AvroSchema(User))


def test_a_required_field_more_is_refused(client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic, schema=AvroSchema(User))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=AvroSchema(with_a_field(required=True)))


def test_text(client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic, schema=StringSchema()).send("grüße")
    assert all_of(client.create_reader(topic, pulsar.MessageId.earliest, schema=StringSchema()))[0].value() == "grüße"
