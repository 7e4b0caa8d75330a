"""Bodies of produce requests at their bounds: what is too much is refused before anything is made of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api.formats.text_encoding import TextEncoding
from api.http.problems import RestException
from api.rest.messages import produce_models
from api.rest.messages.encodings import MessageEncodings
from api.rest.messages.produce_models import NewMessage, parse_messages

LINES = "application/x-ndjson"
MOST = 10


def messages(body: bytes, kind: str = "application/json") -> list[NewMessage]:
    return parse_messages(kind, body, MessageEncodings(TextEncoding.UTF8, TextEncoding.UTF8), MOST)


def of(*some: Any, **others: Any) -> bytes:
    return json.dumps({"messages": some, **others}).encode()


def test_as_many_messages_as_may_be_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    line = b'{"key":"[{","value":"\\"{["}\n'
    payload = {"payload": '[{"a":{}}]', "properties": {"p": "{}"}}
    assert len(messages(of(*[payload] * MOST))) == len(messages(line * MOST, LINES)) == MOST
    assert messages(line.strip(), LINES)[0].payload == b'"{['
    monkeypatch.setattr(produce_models.ProducerMessages, "model_validate_json", None)  # it is not asked
    monkeypatch.setattr(produce_models, "parse_json_lines", None)
    for body, kind in ((of(*[payload] * (MOST + 1)), "application/json"), (line * (MOST + 1), LINES)):
        with pytest.raises(RestException, match=r"more than 10 messages: .* limits.messages") as refused:
            messages(body, kind)
        assert refused.value.status_code == 413
    with pytest.raises(RestException, match="more than 10 messages"):
        messages(b"1\n" * 1000, LINES)


@pytest.mark.parametrize("kind", ["application/json", LINES])
def test_one_message_does_not_hold_what_ten_thousand_may(kind: str) -> None:
    many = {str(number): "v" for number in range(1000)}
    line = {"key": "k", "value": "v", "properties": many}
    body = of({"payload": "v", "properties": many}) if kind != LINES else json.dumps(line).encode()
    with pytest.raises(RestException, match="more than 320 values") as refused:
        messages(body, kind)
    assert refused.value.status_code == 413


def test_a_schema_has_bounds_too() -> None:
    deep = "[" * 100 + "]" * 100
    with pytest.raises(RestException, match="SchemaInfo"):
        messages(of({"payload": "v"}, valueSchema=deep))
    with pytest.raises(RestException) as refused:
        messages(of({"payload": "v"}, valueSchema=json.dumps({"type": "AVRO" * 1000})))
    assert len(refused.value.detail) < 300


def test_of_many_errors_the_first_is_told() -> None:
    with pytest.raises(RestException, match=r"^400: the messages cannot be taken: messages.0.payload is missing$"):
        messages(of({}, {}, {}))
