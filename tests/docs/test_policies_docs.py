"""docs/policies.md against the table of policies: every one with its values, default, meaning and other names.

When it fails, it says which lines the page should have.
"""

from __future__ import annotations

import re
from pathlib import Path

from api.formats.option_text import value_text as cell
from storage.options.kinds import ALWAYS_MS, NO_LIMIT
from storage.options.policies import NO_RUN, POLICIES, WIDER, Policy, to_json
from storage.options.resolution import PolicyOrigin

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "policies.md").read_text(encoding="utf-8")


def line(policy: Policy) -> str:
    """The policy as the table has it."""
    default = cell(to_json(policy.name, policy.default)) or "nothing"
    names = ", ".join(f"`{alias}`" for alias in policy.aliases)
    return f"| `{policy.name}` | `{default}` | {policy.kind.allowed} | {policy.doc} | {names} |"


def test_the_table_has_every_policy_in_order_and_no_other() -> None:
    assert re.findall(r"^\| `.*$", PAGE, re.MULTILINE) == [line(policy) for policy in POLICIES.values()]


def instead(policy: Policy) -> str:
    """Return the value that counts where the stored one cannot be read, as the list states it."""
    if policy.fallback is NO_RUN:
        return f"- `{policy.name}`: no compaction"
    if policy.fallback in (NO_LIMIT, ALWAYS_MS):
        return f"- `{policy.name}`: {'no limit' if 'quota' in policy.name else 'forever'}"
    return f"- `{policy.name}`: `{cell(to_json(policy.name, policy.fallback))}`"


def test_the_page_says_what_counts_instead_of_an_unreadable_value() -> None:
    others = [policy for policy in POLICIES.values() if policy.fallback is not WIDER]
    lines = re.findall(r"^- `[^`]+\.[^`]+`: (?:`.*`|no compaction|forever|no limit)$", PAGE, re.MULTILINE)
    assert lines == list(map(instead, others))


def test_the_page_says_which_scope_counts() -> None:
    order = [PAGE.index(f"**{origin.value}**") for origin in PolicyOrigin]
    assert order == sorted(order)
