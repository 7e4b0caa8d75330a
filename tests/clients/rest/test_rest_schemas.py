"""Schemas over REST: versions, what may follow, and the partitions that share them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from storage.metadata.schemas import SchemaRecord
from storage.model import TopicName
from tests.serving import Served

NAMESPACE = "public/default"


def definition(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "User", "fields": [{"name": "id", "type": "int"}, *fields]})


FIRST = {"type": "AVRO", "schema": definition(), "properties": {"a": "b"}}
OPTIONAL = {**FIRST, "schema": definition({"name": "town", "type": ["null", "string"], "default": None})}
REQUIRED = {**FIRST, "schema": definition({"name": "town", "type": "string"})}


def ask(served: Served, verb: str, topic: str, call: str, body: object = None) -> Any:
    """The answer, which is a success."""
    answer = served.ask(verb, f"/admin/v2/schemas/{NAMESPACE}/{topic}/{call}", body and json.dumps(body))
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(served: Served, verb: str, topic: str, call: str, body: object = None) -> tuple[int, str]:
    answer = served.ask(verb, f"/admin/v2/schemas/{NAMESPACE}/{topic}/{call}", body and json.dumps(body))
    return answer.status_code, answer.json()["reason"]


def test_versions_are_stored_found_and_deleted(served: Served) -> None:
    assert refused(served, "GET", "s1", "schema")[0] == 404
    assert ask(served, "POST", "s1", "schema", FIRST) == {"version": {"version": 0}}
    assert ask(served, "POST", "s1", "schema", OPTIONAL) == {"version": {"version": 1}}
    assert ask(served, "POST", "s1", "schema", FIRST) == {"version": {"version": 0}}

    newest = ask(served, "GET", "s1", "schema")
    assert (newest["version"], newest["type"], newest["data"]) == (1, "AVRO", OPTIONAL["schema"])
    assert ask(served, "GET", "s1", "schema/0")["properties"] == {"a": "b"}
    assert [item["version"] for item in ask(served, "GET", "s1", "schemas")["getSchemaResponses"]] == [0, 1]
    assert ask(served, "GET", "s1", "metadata")["info"] == {"ledgerId": -1, "entryId": -1, "version": 1}
    assert ask(served, "POST", "s1", "version", OPTIONAL) == {"version": 1}
    assert refused(served, "POST", "s1", "version", REQUIRED)[0] == 404
    assert refused(served, "GET", "s1", "schema/2")[0] == 404

    assert ask(served, "DELETE", "s1", "schema") == {"version": 1}
    assert refused(served, "DELETE", "s1", "schema")[0] == 404


def test_what_may_not_follow_is_refused_by_the_strategy_that_holds(served: Served) -> None:
    served.ask("PUT", f"/admin/v2/persistent/{NAMESPACE}/s2/partitions", "2")
    ask(served, "POST", "s2", "schema", FIRST)
    status, reason = refused(served, "POST", "s2-partition-1", "schema", REQUIRED)
    assert status == 409
    assert reason.startswith(
        "the schema of persistent://public/default/s2 cannot change so: compared with version 0: the new one cannot "
        "read what it describes: town: the field is not written, and has no default value (FULL)"
    )
    fits = {"compatibility": False, "schemaCompatibilityStrategy": "FULL"}
    assert ask(served, "POST", "s2", "compatibility", REQUIRED) == fits

    strategy = f"/admin/v2/persistent/{NAMESPACE}/s2/schemaCompatibilityStrategy"
    assert served.ask("PUT", strategy, '"FORWARD"').status_code == 204
    assert served.ask("GET", strategy).json() == "FORWARD"
    fits = {"compatibility": True, "schemaCompatibilityStrategy": "FORWARD"}
    assert ask(served, "POST", "s2", "compatibility", REQUIRED) == fits
    assert ask(served, "POST", "s2-partition-0", "schema", REQUIRED) == {"version": {"version": 1}}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({**FIRST, "type": "NOSUCH"}, "there is no schema type 'NOSUCH': it is one of NONE, STRING"),
        ({**FIRST, "schema": "{"}, "the definition of the schema cannot be read as AVRO"),
    ],
)
def test_what_is_no_schema_is_refused(served: Served, body: dict[str, Any], reason: str) -> None:
    status, answered = refused(served, "POST", "s3", "schema", body)
    assert status == 400
    assert answered.startswith(reason)


def test_properties_may_be_null(served: Served) -> None:
    assert ask(served, "POST", "s4", "schema", {**FIRST, "properties": None}) == {"version": {"version": 0}}
    assert ask(served, "GET", "s4", "schema")["properties"] == {}


def test_a_schema_of_key_and_value_changes_by_the_rules_of_both(served: Served) -> None:
    kinds = {"key.schema.type": "STRING", "value.schema.type": "AVRO"}

    def pair(value: dict[str, Any]) -> dict[str, Any]:
        text = json.dumps({"key": "", "value": json.loads(value["schema"])})
        return {"type": "KEY_VALUE", "schema": text, "properties": kinds}

    assert ask(served, "POST", "s5", "schema", pair(FIRST)) == {"version": {"version": 0}}
    assert ask(served, "POST", "s5", "schema", pair(OPTIONAL)) == {"version": {"version": 1}}
    assert ask(served, "GET", "s5", "schema/0")["data"] == pair(FIRST)["schema"]
    assert refused(served, "POST", "s5", "schema", pair(REQUIRED))[0] == 409
    assert refused(served, "POST", "s5", "schema", {**pair(FIRST), "schema": "[]"})[0] == 400


def test_a_stored_type_without_meaning_breaks_no_call(served: Served) -> None:
    topic = TopicName.parse(f"persistent://{NAMESPACE}/s6")
    served.broker.environment.metadata.schemas.add(topic, SchemaRecord(-1, 21, "", b""), 0)
    assert refused(served, "GET", "s6", "schema")[0] == 404
    assert refused(served, "GET", "s6", "schemas")[0] == 404
    assert refused(served, "GET", "s6", "metadata")[0] == 404
    assert ask(served, "POST", "s6", "schema", {**FIRST, "type": "STRING", "schema": ""}) == {"version": {"version": 1}}


def test_policies_of_clients_come_from_the_namespace(served: Served) -> None:
    namespace = "/admin/v2/namespaces/public/clients"
    body = {"deduplicationEnabled": True, "schema_compatibility_strategy": "BACKWARD"}
    assert served.ask("PUT", namespace, json.dumps(body)).status_code == 204
    assert body.items() <= served.ask("GET", namespace).json().items()
    topic = "/admin/v2/persistent/public/clients/t"
    served.ask("PUT", topic)
    for call, value in (("deduplicationEnabled", True), ("schemaCompatibilityStrategy", "BACKWARD")):
        assert served.ask("GET", f"{topic}/{call}?applied=true").json() == value
        assert served.ask("GET", f"{topic}/{call}").text == ""
    assert served.ask("POST", f"{topic}/deduplicationEnabled", "false").status_code == 204
    assert served.ask("GET", f"{topic}/deduplicationEnabled").json() is False
    assert served.ask("PUT", f"{namespace}/schemaCompatibilityStrategy", '"UNDEFINED"').status_code == 204
    assert served.ask("GET", f"{namespace}/schemaCompatibilityStrategy").json() == "UNDEFINED"
