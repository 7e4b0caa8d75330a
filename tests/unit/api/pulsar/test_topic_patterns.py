"""Patterns of topics: what they fit, and that none takes much time or memory."""

from __future__ import annotations

import pytest

from api.pulsar.errors import Refused
from api.pulsar.topic_patterns import MAX_CHARACTERS, Matches, compile_pattern, matching_names


def test_no_pattern_can_stop_the_service() -> None:
    names = [f"persistent://a/b/{'a' * 200}c", "persistent://a/b/aab"]
    assert matching_names(compile_pattern("persistent://a/b/(a+)+b"), names) == names[1:]


@pytest.mark.parametrize("text", ["(", "a{2000}" * 30, r"(a)\1", "x" * (MAX_CHARACTERS + 1)])
def test_a_pattern_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="is not a regular expression"):
        compile_pattern(text)


@pytest.mark.parametrize("text", [r"(?i)\pL{300}", r"(?i)(\w|\pL|\pN|\pS){90}", r".{1000}" * 4])
def test_a_pattern_that_takes_much_memory_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="too large"):
        compile_pattern(text)


def test_partitions_go_by_the_name_of_the_whole() -> None:
    names = ["persistent://a/b/t-partition-1", "persistent://a/b/t-partition-0", "persistent://a/b/u"]
    assert Matches.of("persistent://a/b/t", names).topics == (names[1], names[0])
