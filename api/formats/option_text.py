"""Texts of the values of policies and settings, in the form in which a user sets them."""

from __future__ import annotations


def value_text(value: object, empty: str = "nothing") -> str:
    """Return a JSON value as the text that sets it. `empty`: the text of an empty list."""
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case list():
            return ",".join(map(str, value)) or empty
    return str(value)
