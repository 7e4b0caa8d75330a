"""Paths and mappings that `compactor-admin` makes from what a user gave."""

from __future__ import annotations

import pytest

from api.cli.admin.session import expand_path, parse_key_values, topic_path
from storage.errors import InvalidInput


@pytest.mark.parametrize(
    ("name", "encoded"), [("a/b", "a%2Fb"), ("{x}", "%7Bx%7D"), ("x}", "x%7D"), ("..", "%2E%2E"), ("a b", "a%20b")]
)
def test_a_name_is_one_part_of_a_path(name: str, encoded: str) -> None:
    assert topic_path("t", "subscription", name) == f"/admin/v2/persistent/public/default/t/subscription/{encoded}"
    template = "/admin/v2/persistent/{topic}/subscription/{subscription}"
    assert expand_path(template, topic="t", subscription=name) == topic_path("t", "subscription", name)


@pytest.mark.parametrize("parts", [("subscription", ""), ("subscription", "", "resetcursor")])
def test_an_empty_name_is_refused(parts: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput, match="the name of the subscription is empty"):
        topic_path("t", *parts)
    with pytest.raises(InvalidInput, match="the name of the role is empty"):
        expand_path("/admin/v2/namespaces/{namespace}/permissions/{role}", namespace="a/b", role="")


@pytest.mark.parametrize("pair", ["", "a=1,", "a=1,,b=2", "=1", "a"])
def test_a_mapping_has_a_key_and_a_value_in_each_pair(pair: str) -> None:
    with pytest.raises(InvalidInput, match="--property key=value"):
        parse_key_values("--property", [pair])


def test_pairs_are_given_one_by_one_or_with_commas() -> None:
    assert parse_key_values("--property", ["a=1", "b=2,c=x=y"]) == {"a": "1", "b": "2", "c": "x=y"}
