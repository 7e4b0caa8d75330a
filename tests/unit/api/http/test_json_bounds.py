"""Bounds of JSON texts: what counts is outside strings, whatever the strings hold."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from api.http.json_bounds import JsonBoundsError, count_containers_by_depth, parse_bounded_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def begun(value: object, depth: int = 0) -> dict[int, int]:
    """Return the number of arrays and objects of a value that begin at each depth."""
    if not isinstance(value, list | dict):
        return {}
    counts = {depth: 1}
    for item in value.values() if isinstance(value, dict) else value:
        for at, count in begun(item, depth + 1).items():
            counts[at] = counts.get(at, 0) + count
    return counts


@pytest.mark.slow
@given(VALUES, st.booleans())
def test_what_begins_at_each_depth_is_counted(value: object, ascii_only: bool) -> None:
    counts = count_containers_by_depth(json.dumps(value, ensure_ascii=ascii_only).encode(errors="replace"))
    assert {depth: count for depth, count in enumerate(counts) if count} == begun(value)


@pytest.mark.parametrize("text", [b"[[[[1]]]]", b'[{"a":[{}]}]', b'["\\\\",[["\\"",[]]]]'])
def test_deeper_than_allowed(text: bytes) -> None:
    assert json.loads(text)
    count_containers_by_depth(text, max_depth=4)
    with pytest.raises(JsonBoundsError, match="nested more than 3 deep"):
        count_containers_by_depth(text, max_depth=3)


@pytest.mark.parametrize("text", [b"[1,2,3]", b'{"a":1,"b":"[,","c":3}', b"{},{},{}"])
def test_more_values_than_allowed(text: bytes) -> None:
    count_containers_by_depth(text, max_values=10)
    with pytest.raises(JsonBoundsError, match="more than 2 values"):
        count_containers_by_depth(text, max_values=2)


@pytest.mark.parametrize("text", [b"[" * 10_000, b"]" * 10_000, b'"', b'["\\', b"", b'""' * 1000, b" " * 200_000])
def test_what_is_no_json_is_left_to_the_parser_or_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"nested|is not JSON from line 1, column"):
        parse_bounded_json(text)
