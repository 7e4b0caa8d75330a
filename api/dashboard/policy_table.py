"""Rows of the tables of policies and settings: value, origin, default, meaning and choices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from api.broker import policies
from api.broker.policies import PolicyScope
from api.dashboard.formats import exact_duration, size
from api.formats.option_text import value_text
from api.reports import policies_document
from api.settings.settings import SETTINGS, Settings
from api.settings.shown import settings_with_origins
from storage.environment import Environment
from storage.model import TopicName
from storage.options.kinds import Boolean, Choice, CleanupPolicy, Duration, Optional, Size, ValueKind
from storage.options.option import Option
from storage.options.policies import POLICIES, RETENTION_TIMES
from storage.options.resolution import PolicyOrigin, PolicyResolution

PolicyRow: TypeAlias = dict[str, Any]
_RETENTION = (*RETENTION_TIMES, "retention.bytes")


@dataclass(frozen=True)
class OptionTables:
    """Policies or settings. `set_rows`: those that are set; `defaults`: the others, by the prefix of their names."""

    set_rows: Sequence[PolicyRow]
    defaults: Sequence[tuple[str, Sequence[PolicyRow]]]


def policy_tables(environment: Environment, name: TopicName) -> OptionTables:
    """Return the tables of a topic's policies, also of a partitioned one. Raises TopicNotFound,
    PartitionPolicyRefused."""
    return _option_tables(policy_rows(policies.resolved(environment, PolicyScope(PolicyOrigin.TOPIC, topic=name))))


def policy_rows(resolved: PolicyResolution) -> Sequence[PolicyRow]:
    """Return a row of each policy; those that are set come first, then the defaults, each sorted by name."""
    document = policies_document(resolved)
    rows = [
        _option_row(policy, document[policy.name]["value"], document[policy.name]["origin"], policy.default)
        for policy in POLICIES.values()
    ]
    if "delete" not in resolved.policies.cleanup_policy:
        for row in rows:
            if row["option"].name in _RETENTION and row["origin"] != PolicyOrigin.DEFAULT:
                row["warning"] = "No effect: cleanup.policy does not have delete."
    return _sort_set_rows_first(rows)


def setting_tables(settings: Settings) -> OptionTables:
    """Return the tables of all settings, and of the policies that the settings file sets."""
    options: dict[str, Option] = {**SETTINGS, **POLICIES}
    return _option_tables(
        _sort_set_rows_first(
            _option_row(options[name], item["value"], item["origin"], options[name].default)
            for name, item in settings_with_origins(settings).items()
        )
    )


def _option_row(option: Option, value: object, origin: str, default: object) -> PolicyRow:
    """Return the row of an option: `option`, its effective `value` as text and `meant` in larger units, `origin`,
    `default` as text, its `choices`, whether the value `differs` from the default, and a `warning`. `value` and
    `default`: as JSON, and as Python has them."""
    text, default_text = value_text(value), value_text(option.kind.to_json(default))
    return {
        "option": option, "value": text, "origin": origin, "default": default_text, "choices": choices(option.kind),
        "differs": text != default_text, "meant": value_in_larger_units(option.kind, value), "warning": "",
    }  # fmt: skip


def _option_tables(rows: Sequence[PolicyRow]) -> OptionTables:
    """Divide sorted rows into those that are set and, by prefix, those with defaults."""
    defaults = [row for row in rows if row["origin"] == PolicyOrigin.DEFAULT]
    return OptionTables(rows[: len(rows) - len(defaults)], group_by_prefix(defaults))


def _sort_set_rows_first(rows: Any) -> Sequence[PolicyRow]:
    return sorted(rows, key=lambda row: (row["origin"] == PolicyOrigin.DEFAULT, row["option"].name))


def value_in_larger_units(kind: ValueKind, value: object) -> str:
    """Return a duration in milliseconds or a size in bytes in larger units; empty for any other value, and below
    1,000."""
    kind = kind.kind if isinstance(kind, Optional) else kind
    if not isinstance(value, int) or value < 1000:
        return ""
    match kind:
        case Duration():
            return exact_duration(value)
        case Size():
            return size(value)
    return ""


def group_by_prefix(rows: Sequence[PolicyRow]) -> Sequence[tuple[str, Sequence[PolicyRow]]]:
    """Group rows by the first word of their names. Rows that are alone in a group come last, under "others"."""
    groups: dict[str, list[PolicyRow]] = {}
    for row in rows:
        groups.setdefault(row["option"].name.partition(".")[0], []).append(row)
    others = [row for group in groups.values() if len(group) == 1 for row in group]
    several = [(prefix, group) for prefix, group in groups.items() if len(group) > 1]
    return [*several, ("others", others)] if others else several


def choices(kind: ValueKind) -> tuple[str, ...]:
    """Return the possible values of a kind that has few of them; empty for any other kind."""
    match kind:
        case Boolean():
            return "true", "false"
        case Choice(words):
            return words
        case CleanupPolicy():
            return "nothing", "delete", "compact", "compact,delete"
        case Optional(inner) if few := choices(inner):
            return *few, "none"
    return ()
