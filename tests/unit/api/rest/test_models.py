"""Numbers in bodies: what is taken, and how the rest is refused."""

from __future__ import annotations

import pytest
from pydantic import Field, ValidationError

from api.http.problems import UnreadableBody
from api.rest.models import EMPTY, PulsarBody, StrictBody, parse_int32, parse_int64


@pytest.mark.parametrize(
    ("body", "number"),
    [
        (b"0", 0),
        (b" 17\n", 17),
        (b"-1", -1),
        (b"9223372036854775807", 2**63 - 1),
        (b"-9223372036854775808", -(2**63)),
        (b'"5"', 5),
        (b'" +10240 "', 10240),
        (b'"-1"', -1),
    ],
)
def test_numbers(body: bytes, number: int) -> None:
    assert parse_int64(body) == number


@pytest.mark.parametrize(
    ("body", "reported"),
    [
        (b'"5s"', 'from String "5s": not a valid `long` value'),
        (b'"1_0"', 'from String "1_0"'),
        (b'"1.0"', 'from String "1.0"'),
        ('"\u0663"'.encode(), 'from String "\u0663"'),
        (b'"9223372036854775808"', "out of range of `long`"),
        (b'"' + b"9" * 5000 + b'"', 'from String "999'),
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
def test_what_is_no_number_is_refused_in_a_brokers_words(body: bytes, reported: str) -> None:
    with pytest.raises(UnreadableBody) as refused:
        parse_int64(body)
    assert reported in refused.value.detail
    assert (refused.value.status_code, refused.value.media_type) == (400, "text/plain")
    assert len(refused.value.detail) < 400


@pytest.mark.parametrize("body", [b"", b"  \n", b"null", b'""'])
def test_an_empty_body(body: bytes) -> None:
    with pytest.raises(UnreadableBody) as refused:
        parse_int64(body)
    assert (refused.value.detail, refused.value.media_type) == (EMPTY, "application/json")


def test_an_int_has_32_bits() -> None:
    assert parse_int32(b"2147483647") == 2**31 - 1
    with pytest.raises(UnreadableBody, match="out of range of `int`"):
        parse_int32(b"2147483648")


class _Body(PulsarBody):
    size_limit: int | None = Field(None, le=100)
    is_forced: bool = False
    text: str | int = ""
    names: list[str] = Field(default_factory=lambda: ["all"])
    required: int


@pytest.mark.parametrize(
    ("body", "read"),
    [
        ({"required": 1}, {}),
        ({"required": "1", "sizeLimit": " 99 ", "isForced": "TRUE"}, {"size_limit": 99, "is_forced": True}),
        ({"required": 1, "sizeLimit": None, "isForced": None, "names": None}, {}),
        ({"required": 1, "another": {"a": 1}, "size_limit": 7}, {}),
        ({"required": 1, "text": "5"}, {"text": "5"}),
    ],
)
def test_bodies_of_pulsars_calls_are_read_as_jackson_reads_them(body: object, read: dict[str, object]) -> None:
    absent = {"size_limit": None, "is_forced": False, "text": "", "names": ["all"], "required": 1}
    assert _Body.model_validate(body).model_dump() == absent | read


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        "1",
        {"required": None},
        {"required": ""},
        {"required": "1.5"},
        {"required": True},
        {"required": "true"},
        {"required": 1, "isForced": "yes"},
        {"required": 1, "isForced": 1},
        {"required": 1, "sizeLimit": "101"},
        {"required": 1, "names": "all"},
        {"required": 1, "names": [1]},
    ],
)
def test_what_jackson_refuses_is_refused(body: object) -> None:
    with pytest.raises(ValidationError):
        _Body.model_validate(body)


def test_bodies_of_own_calls_are_strict() -> None:
    class Own(StrictBody):
        dry_run: bool = True

    for body in ({"dryRun": "false"}, {"dryrun": False}, {"dryRun": None}):
        with pytest.raises(ValidationError):
            Own.model_validate(body)
