"""Numbers in bodies: what is taken, and how the rest is refused."""

from __future__ import annotations

import pytest

from api.admin.models import EMPTY, int_number, long_number
from api.http.problems import UnreadableBody


@pytest.mark.parametrize(
    ("body", "number"),
    [
        (b"0", 0),
        (b" 17\n", 17),
        (b"-1", -1),
        (b"9223372036854775807", 2**63 - 1),
        (b"-9223372036854775808", -(2**63)),
    ],
)
def test_numbers(body: bytes, number: int) -> None:
    assert long_number(body) == number


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'"5"', 'from String "5": not a valid `long` value'),
        (b'"abc"', 'from String "abc"'),
        (b"1.0", "Floating-point"),
        (b"1e3", "Floating-point"),
        (b"NaN", "Floating-point"),
        (b"true", "Boolean"),
        (b"[1]", "Array"),
        (b"{}", "Object"),
        (b"abc", "Unrecognized token 'abc'"),
        (b"1 2", "Unrecognized token '1'"),
        (b"\xff\xfe", "Unrecognized token"),
        (b"\x1c", "Unrecognized token ''"),
        (b"\xe3\x80\x80", "Unrecognized token ''"),
        (b'"\\ud800"', 'from String "?"'),
        (b"9223372036854775808", "out of range of `long`"),
        (b"9" * 5000, "Unrecognized token"),
        (b"[" * 100_000, "Unrecognized token"),
    ],
)
def test_what_is_no_number_is_refused_in_a_brokers_words(body: bytes, told: str) -> None:
    with pytest.raises(UnreadableBody) as refused:
        long_number(body)
    assert told in refused.value.detail
    assert (refused.value.status_code, refused.value.media_type) == (400, "text/plain")
    assert len(refused.value.detail) < 400


@pytest.mark.parametrize("body", [b"", b"  \n", b"null", b'""'])
def test_an_empty_body(body: bytes) -> None:
    with pytest.raises(UnreadableBody) as refused:
        long_number(body)
    assert (refused.value.detail, refused.value.media_type) == (EMPTY, "application/json")


def test_an_int_has_32_bits() -> None:
    assert int_number(b"2147483647") == 2**31 - 1
    with pytest.raises(UnreadableBody, match="out of range of `int`"):
        int_number(b"2147483648")
