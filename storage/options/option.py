"""An option: one name, its kind of values, its meaning, its default. Policies and settings are options.

A table of options is a frozen dataclass whose fields are declared with `option`; `options_of` reads it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, TypeVar

from storage.options.kinds import ValueKind

_OPTION = "option"


@dataclass(frozen=True)
class Option:
    """An option of a table. `doc`: its meaning, in sentences; `attribute`: the dataclass field that holds it."""

    name: str
    kind: ValueKind
    doc: str
    default: Any = None
    attribute: str = ""


OptionT = TypeVar("OptionT", bound=Option)


def option(declared: Option) -> Any:
    """Return a dataclass field, with the option's default, that declares an option."""
    return field(default=declared.default, metadata={_OPTION: declared})


def options_of(of: type, kind: type[OptionT]) -> Mapping[str, OptionT]:
    """Return the options that dataclass `of` declares, by name, in order. `kind`: the class of these options."""
    declared = ((item.name, item.metadata[_OPTION]) for item in fields(of) if _OPTION in item.metadata)
    return MappingProxyType({item.name: replace(item, attribute=attribute) for attribute, item in declared})


def closest_name(name: str, names: Iterable[str]) -> str:
    """Return the name among `names` that is most similar to a misspelled `name`; empty: none is similar."""
    return next(iter(difflib.get_close_matches(name, list(names), n=1)), "")
