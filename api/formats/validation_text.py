"""Text of the errors that a parser of JSON, or pydantic, finds: the place, what it must be, and what it is. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_SHOWN = 40
"""The characters of a value that an error repeats."""
_EXPECTED: Mapping[str, str] = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float", "int_parsing_size"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "an object"),
    **dict.fromkeys(("enum", "literal_error"), "{expected}"),
    "string_type": "a text",
    "list_type": "a list",
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
}
"""Requirements of a value, by pydantic's type of the error, with fields of its context."""
_PROBLEMS: Mapping[str, str] = {
    "missing": "is missing",
    "extra_forbidden": "is not known here, leave it out",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must hold at least {min_length}, and holds {actual_length}",
    "too_long": "must hold at most {max_length}, and holds more",
    "json_invalid": "is not JSON ({error})",
}
"""Problems of a value whose kind does not matter, by pydantic's type of the error."""


def problem_text(error: Mapping[str, Any]) -> str:
    """Return what is wrong with a value, as a verb for its name: "must be at least 1, not 0". `error`: an error of
    pydantic.

    Return an empty text for an error whose message is not pydantic's.
    """
    kind, context = error["type"], error.get("ctx", {})
    if kind in _EXPECTED:
        return f"must be {_EXPECTED[kind].format(**context)}, not {_value_excerpt(error['input'])}"
    return _PROBLEMS.get(kind, "").format(**context)


def problem_sentence(place: str, error: Mapping[str, Any]) -> str:
    """Return an error of pydantic as a sentence that begins with the place of the value."""
    text = problem_text(error)
    return f"{place} {text}" if text else f"{place}: {error['msg'].removeprefix('Value error, ')}"


def json_problem_text(error: ValueError) -> str:
    """Return what is wrong with a text that Python's parser of JSON refuses: "is not JSON from line 1, column 6 on"."""
    if isinstance(error, json.JSONDecodeError):
        return f"is not JSON from line {error.lineno}, column {error.colno} on"
    return "is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else "has a number of too many digits"


def _value_excerpt(value: Any) -> str:
    """Return a value as an error repeats it: a text or scalar, shortened, or the kind of a larger value."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = repr(value) if isinstance(value, str) else json.dumps(value, default=lambda other: type(other).__name__)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
