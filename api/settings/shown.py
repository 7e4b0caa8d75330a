"""The settings as they may be shown: value and origin, secrets masked."""

from __future__ import annotations

from typing import Any

from api.settings.settings import SETTINGS, Settings


def described(settings: Settings) -> dict[str, dict[str, Any]]:
    """Value and origin by name, as they may be shown: settings, then policies."""
    from storage.options import policies

    found = {
        setting.name: {
            "value": setting.shown(getattr(settings, setting.attribute)),
            "origin": settings.origin(setting.name) or "default",
        }
        for setting in SETTINGS.values()
    }
    for name, value in settings.policies.items():
        found[name] = {"value": policies.to_json(name, value), "origin": settings.origin(name)}
    return found
