"""Headers as properties: texts as they are; marks for other bytes, nulls and repeated names; none is lost."""

from __future__ import annotations

import pytest

from storage.kafka.record_batch import read_batches
from storage.kafka.records import decode_batches
from tests.kafka_batches import Batch, Record, encode

Headers = list[tuple[bytes, bytes | None]]


def properties(*headers: Headers) -> list[list[tuple[str, str]] | None]:
    rows = [Record(number, headers=of_record) for number, of_record in enumerate(headers)]
    (table,) = decode_batches(read_batches(encode(Batch(rows))))
    return list(table.column("properties").to_pylist())


@pytest.mark.parametrize(
    ("headers", "result"),
    [
        ([], None),
        ([(b"a", b"1"), (b"b", b"")], [("a", "1"), ("b", "")]),
        ([("ключ".encode(), "ü".encode())], [("ключ", "ü")]),
        ([(b"", b"x")], [("", "x")]),
        ([(b"a", b"\xff\x00")], [("a;base64", "/wA=")]),
        ([(b"a", None)], [("a;null", "")]),
        ([(b"a", b"1"), (b"a", b"2"), (b"a", b"3")], [("a", "1"), ("a;2", "2"), ("a;3", "3")]),
        ([(b"a", b"\xff"), (b"a", b"\xfe")], [("a;base64", "/w=="), ("a;2;base64", "/g==")]),
        ([(b"a", None), (b"a", None), (b"a", b"1")], [("a;null", ""), ("a;2;null", ""), ("a", "1")]),
        ([(b"a;2", b"x"), (b"a", b"1"), (b"a", b"2")], [("a;2", "x"), ("a", "1"), ("a;3", "2")]),
        ([(b"\xff", b"1")], [("\\xff", "1")]),
    ],
)
def test_properties_of_headers(headers: Headers, result: list[tuple[str, str]] | None) -> None:
    assert properties(headers) == [result]


def test_marks_of_one_record_leave_the_others_as_they_are() -> None:
    assert properties([(b"a", b"1")], [], [(b"a", b"\xff")], [(b"a", b"2"), (b"b", None)]) == [
        [("a", "1")],
        None,
        [("a;base64", "/w==")],
        [("a", "2"), ("b;null", "")],
    ]
