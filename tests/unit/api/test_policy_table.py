"""Texts and choices of policies and settings on the dashboard's pages."""

from __future__ import annotations

import pytest

from api.dashboard.policy_table import choices, setting_rows
from api.formats.option_text import value_text
from api.settings.settings import SETTINGS, Settings
from storage.options.kinds import BOOLEAN, Choice, CleanupPolicy, Duration, Optional, ValueKind
from storage.options.policies import POLICIES, Policy


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
    rows = setting_rows(Settings(port=9, policies={"retention.hours": 1}))
    assert len(rows) == len(SETTINGS) + 1
    assert {row["option"].name for row in rows if row["differs"]} == {"port", "retention.hours"}
