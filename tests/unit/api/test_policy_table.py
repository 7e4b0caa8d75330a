"""Texts and choices of policies and settings on the dashboard's pages."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from api.dashboard.policy_table import choices, group_by_prefix, policy_rows, setting_tables, value_in_larger_units
from api.formats.option_text import value_text
from api.settings.settings import SETTINGS, Settings
from storage.options.kinds import BOOLEAN, Choice, CleanupPolicy, Duration, Optional, Size, ValueKind
from storage.options.policies import POLICIES, Policy
from storage.options.resolution import resolve


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (BOOLEAN, ("true", "false")),
        (Optional(Choice(("a", "b"))), ("a", "b", "none")),
        (CleanupPolicy(), ("nothing", "delete", "compact", "compact,delete")),
        (Duration(), ()),
        (Optional(Duration()), ()),
    ],
)
def test_a_kind_with_few_values_has_choices(kind: ValueKind, expected: tuple[str, ...]) -> None:
    assert choices(kind) == expected


@pytest.mark.parametrize("policy", POLICIES.values(), ids=lambda policy: policy.name)
def test_the_text_of_a_value_is_read_as_that_value(policy: Policy) -> None:
    kind = policy.kind
    for text in (*choices(kind), value_text(kind.to_json(policy.default))):
        value = kind.parse(policy.name, text)
        assert value_text(kind.to_json(value)) == text


def test_settings_that_are_set_come_first_and_are_marked() -> None:
    tables = setting_tables(Settings(port=9, policies={"retention.hours": 1}))
    defaults = [row for _, rows in tables.defaults for row in rows]
    assert len(tables.set_rows) + len(defaults) == len(SETTINGS) + 1
    marked = {row["option"].name for row in (*tables.set_rows, *defaults) if row["differs"]}
    assert marked == {"port", "retention.hours"}


@pytest.mark.parametrize(
    ("cleanup", "warned"),
    [
        (frozenset(), {"retention.ms", "retention.bytes"}),
        ({"compact"}, {"retention.ms", "retention.bytes"}),
        ({"delete"}, set()),
    ],
)
def test_a_retention_without_effect_says_so(cleanup: Collection[str], warned: set[str]) -> None:
    settings = {"cleanup.policy": frozenset(cleanup), "retention.ms": 1_000}
    rows = policy_rows(resolve({}, {"retention.bytes": 5}, settings))
    assert {row["option"].name for row in rows if row["warning"]} == warned


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (Duration(), 604_800_000, "7 days"),
        (Optional(Duration()), 86_400_000, "1 day"),
        (Optional(Duration()), None, ""),
        (Duration(), 0, ""),
        (Size(), 5_242_880, "5.0 MiB"),
        (Size(), -1, ""),
        (BOOLEAN, True, ""),
    ],
)
def test_a_duration_and_a_size_are_shown_in_larger_units(kind: ValueKind, value: object, words: str) -> None:
    assert value_in_larger_units(kind, value) == words


def test_policies_are_grouped_by_the_first_word_of_their_names() -> None:
    rows = [{"option": POLICIES[name]} for name in ("cleanup.policy", "flush.ms", "retention.bytes", "retention.ms")]
    names = [(prefix, [row["option"].name for row in group]) for prefix, group in group_by_prefix(rows)]
    assert names == [("retention", ["retention.bytes", "retention.ms"]), ("others", ["cleanup.policy", "flush.ms"])]
