"""docs/settings.md against the table of settings: every one with its variable, default, values, meaning, other names.

When it fails, it says which lines the page should have.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from api.formats.option_text import value_text
from api.settings.setting import Setting
from api.settings.settings import SETTINGS, Settings
from api.settings.sources import read_file
from storage.options.policies import POLICIES

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "settings.md").read_text(encoding="utf-8")


def line(setting: Setting) -> str:
    """The setting as the table has it."""
    default = value_text(setting.displayed(setting.default), empty="")
    cell = f"`{default}`" if default else ""
    names = ", ".join(f"`{alias.name}`" for alias in setting.aliases)
    variable = setting.environment_variable
    return f"| `{setting.name}` | `{variable}` | {cell} | {setting.kind.allowed} | {setting.doc} | {names} |"


def test_the_table_has_every_setting_in_order_and_no_other() -> None:
    assert re.findall(r"^\| `.*$", PAGE, re.MULTILINE) == [line(setting) for setting in SETTINGS.values()]


def test_no_name_is_both_a_settings_and_a_policys() -> None:
    """A file says both, by name alone."""
    settings = {
        name.lower()
        for setting in SETTINGS.values()
        for name in (setting.name, *(alias.name for alias in setting.aliases))
    }
    policies = {
        name.lower() for policy in POLICIES.values() for name in (policy.name, policy.attribute, *policy.aliases)
    }
    assert not settings & policies


@pytest.mark.parametrize(("language", "suffix"), [("toml", ".toml"), ("properties", ".conf")])
def test_the_examples_can_be_read(language: str, suffix: str, tmp_path: Path) -> None:
    examples = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert examples
    for text in examples:
        file = tmp_path / f"example{suffix}"
        file.write_text(text)
        values = read_file(file)
        assert values.settings
        assert values.policies
        assert Settings.load({}, str(file)).policies == values.policies
