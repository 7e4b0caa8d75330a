"""docs/policies.md against the table of policies: every one with its values, default, meaning and other names.

When it fails, it says which lines the page should have.
"""

from __future__ import annotations

import re
from pathlib import Path

from api.cli.policies_command import cell
from storage.policies import POLICIES, Origin, Policy, shown

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "policies.md").read_text(encoding="utf-8")


def line(policy: Policy) -> str:
    """The policy as the table has it."""
    default = cell(shown(policy.name, policy.default)) or "nothing"
    names = ", ".join(f"`{alias}`" for alias in policy.aliases)
    return f"| `{policy.name}` | `{default}` | {policy.kind.allowed} | {policy.doc} | {names} |"


def test_the_table_has_every_policy_in_order_and_no_other() -> None:
    assert re.findall(r"^\| `.*$", PAGE, re.MULTILINE) == [line(policy) for policy in POLICIES.values()]


def test_the_page_says_which_scope_counts() -> None:
    order = [PAGE.index(f"**{origin.value}**") for origin in Origin]
    assert order == sorted(order)
