"""Views of payloads: bounded, exact, and harmless whatever the payload is."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from api.dashboard.payload_views import HEX_BYTES, JSON_DEPTH, TEXT_BYTES, hex_view, json_view, payload_views, text_view
from tests.budgets import within


def names(payload: bytes) -> list[str]:
    return [view.name for view in payload_views(payload, len(payload))]


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b'{"a": 1}', ["json", "text", "hex"]),
        (b"[]", ["json", "text", "hex"]),
        (b"12", ["text", "hex"]),
        (b'{"a": 1', ["text", "hex"]),
        (b'{"a": "\xff"}', ["hex"]),
        (b"\x00text", ["hex"]),
        ("ä".encode(), ["text", "hex"]),
        (b"[" * 5000 + b"]" * 5000, ["text", "hex"]),
    ],
)
def test_what_a_payload_is_shown_as(payload: bytes, expected: list[str]) -> None:
    assert names(payload) == expected


def test_json_keeps_numbers_texts_and_repeated_names() -> None:
    view = json_view(b'{"a":1.50,"a":[1e400,"\\u00e4{["],"b":123456789012345678901234567890}', 66)
    assert view is not None
    assert [line.strip(" ,") for line in view.text.splitlines()] == [
        "{", '"a": 1.50', '"a": [', "1e400", '"\\u00e4{["', "]", '"b": 123456789012345678901234567890', "}",
    ]  # fmt: skip


@pytest.mark.slow
@within(200, 1000)
@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_formatted_json_is_the_same_value(value: object) -> None:
    data = json.dumps([value]).encode()
    view = json_view(data, len(data))
    assert view is not None
    assert json.loads(view.text) == [value]


def test_json_that_is_nested_deep_stays_a_text() -> None:
    for depth, title in ((JSON_DEPTH, "JSON"), (JSON_DEPTH + 1, "Text")):
        payload = b"[" * depth + b'"]]]]"' + b"]" * depth
        assert payload_views(payload, len(payload))[0].title == title


def test_a_text_is_cut_between_characters_and_says_so() -> None:
    payload = "ä".encode() * TEXT_BYTES
    whole = text_view(payload, len(payload))
    assert whole is not None
    assert whole.cut_to == TEXT_BYTES
    odd = text_view(b"a" + payload, len(payload) + 1)
    assert odd is not None
    assert odd.cut_to == TEXT_BYTES - 1
    assert json_view(b"[" + b"1" * TEXT_BYTES + b"]", TEXT_BYTES + 2) is None


def test_control_characters_become_visible() -> None:
    view = text_view(b"a\x1b[31m\tb\x7f\n", 9)
    assert view is not None
    assert view.text == "a␛[31m\tb␡\n"


def test_hexadecimal_shows_offsets_digits_and_characters() -> None:
    view = hex_view(b"Compactor\x00<", 11)
    assert view.text.splitlines() == ["0000  43 6f 6d 70 61 63 74 6f  Compacto", "0008  72 00 3c                 r.<"]
    assert view.cut_to is None
    assert hex_view(bytes(5000), 5000).cut_to == HEX_BYTES
