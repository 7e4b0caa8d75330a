"""`compactor config show`: the effective settings and their origins. Secrets are redacted."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from api.cli.kit.output import show, show_table
from api.cli.kit.shared_arguments import Output, OutputFormat
from api.cli.kit.stderr import say
from api.formats.option_text import value_text
from api.settings.shown import settings_with_origins


def show_settings(
    context: typer.Context,
    origin: Annotated[bool, typer.Option("--origin", help="Show the origin of each value.")] = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show all settings, and the policies that the file sets as the broker's defaults."""
    from api.settings.sources import unknown_variable_notes

    for note in unknown_variable_notes(os.environ):
        say(f"compactor: {note}")
    settings = settings_with_origins(context.obj)
    if output is OutputFormat.JSON:
        show(settings if origin else {name: setting["value"] for name, setting in settings.items()}, output)
        return
    rows = [
        {"setting": name, "value": value_text(setting["value"], empty=""), "from": setting["origin"]}
        for name, setting in settings.items()
    ]
    show_table(rows, ("setting", "value", "from") if origin else ("setting", "value"))
