"""Settings for display: value and origin, secrets redacted."""

from __future__ import annotations

from typing import Any

from api.settings.settings import SETTINGS, Settings


def settings_with_origins(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return `value` and `origin` of each setting, then of each default policy, by name, with secrets redacted."""
    from storage.options import policies

    values = {
        setting.name: {
            "value": setting.displayed(getattr(settings, setting.attribute)),
            "origin": settings.origin(setting.name) or "default",
        }
        for setting in SETTINGS.values()
    }
    for name, value in settings.policies.items():
        values[name] = {"value": policies.to_json(name, value), "origin": settings.origin(name)}
    return values
