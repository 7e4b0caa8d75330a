"""`compactor config show`: the settings as they are in the end, and where each comes from. Secrets are redacted."""

from __future__ import annotations

import json
import os
from typing import Annotated, Any

import typer

from api.cli.kit.stderr import say
from api.cli.local.topics_commands import ListingName
from api.settings.settings import SETTINGS, Settings


def show_settings(
    context: typer.Context,
    origin: Annotated[bool, typer.Option("--origin", help="Say where each value comes from.")] = False,
    output: Annotated[ListingName, typer.Option(help="For people, or for scripts.")] = ListingName.TABLE,
) -> None:
    """Show all settings, and the policies that the file sets as the broker's defaults."""
    from api.settings.sources import variable_notes

    for note in variable_notes(os.environ):
        say(f"compactor: {note}")
    found = described(context.obj)
    if output is ListingName.JSON:
        document = found if origin else {name: one["value"] for name, one in found.items()}
        print(json.dumps(document, indent=2))  # noqa: T201
        return
    from api.cli.kit.tables import print_table

    rows = ((name, _cell(one["value"]), one["origin"]) for name, one in found.items())
    if origin:
        print_table(("setting", "value", "from"), rows)
    else:
        print_table(("setting", "value"), (row[:2] for row in rows))


def described(settings: Settings) -> dict[str, dict[str, Any]]:
    """Value and origin by name, as they may be shown: settings, then policies."""
    from storage.options import policies

    found = {
        one.name: {
            "value": one.shown(getattr(settings, one.attribute)),
            "origin": settings.origin(one.name) or "default",
        }
        for one in SETTINGS.values()
    }
    for name, value in settings.policies.items():
        found[name] = {"value": policies.shown(name, value), "origin": settings.origin(name)}
    return found


def _cell(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)
