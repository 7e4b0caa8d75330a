"""Kinds of values that policies and settings take: one parser of numbers, durations, sizes, words and lists.

`parse(name, given)` takes a text (flags, environment, Java properties) or a JSON or TOML value, which mean the same; it
raises InvalidInput, which names the option, and nothing else. Invariant: `parse(name, shown(value)) == value`.
Durations are milliseconds, as text also with a unit (`7d`, `90s`); sizes are bytes, as text also `128M` (powers of
1024). Booleans of JSON are not numbers. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Protocol

from storage.errors import InvalidInput

NO_LIMIT = -1
"""Kafka's "no limit"."""
ALWAYS_MS = 1 << 62
"""A duration that does not end: a time in milliseconds minus this is still a number of 64 bits."""
_MOST = (1 << 63) - 1
_NONE = "none"
_CLEANUP = ("compact", "delete")


class ValueKind(Protocol):
    """What an option takes."""

    @property
    def allowed(self) -> str:
        """What to give instead of a value that was refused."""
        ...

    def parse(self, name: str, given: object) -> object:
        """The value of option `name`. Raises InvalidInput."""
        ...

    def shown(self, value: object) -> object:
        """The value as JSON has it."""
        ...


def refused(name: str, given: object, allowed: str) -> InvalidInput:
    """The error for a value that cannot be taken, which says what can."""
    return InvalidInput(f"{given!r} is not a value of {name}", f"give {allowed}")


class _Plain:
    """A kind whose values are what JSON has."""

    def shown(self, value: object) -> object:
        return value


@dataclass(frozen=True)
class WholeNumber(_Plain):
    """A whole number of `what`."""

    what: str = ""
    least: int = 0
    most: int = _MOST

    _units: ClassVar[Mapping[str, int]] = MappingProxyType({"": 1})
    """By unit, in small letters: its length in the unit of the value."""

    @property
    def allowed(self) -> str:
        return f"a whole number of {self.what}{self._limits}"

    @property
    def _limits(self) -> str:
        least = max(self.least, 0)
        limits = f" from {least} to {self.most}" if self.most < _MOST else f" of at least {least}"
        return f"{limits}, or -1 for no limit" if self.least == NO_LIMIT else limits

    def parse(self, name: str, given: object) -> int:
        number = self._number(given.strip().lower() if isinstance(given, str) else given)
        if number is None or not self.least <= number <= self.most:
            raise refused(name, given, self.allowed)
        return number

    def _number(self, given: object) -> int | None:
        if not isinstance(given, str):
            return given if isinstance(given, int) and not isinstance(given, bool) else None
        match = re.fullmatch(r"(-?\d{1,19})\s*([a-z]*)", given, re.ASCII)
        if match is None or match[2] not in self._units or (int(match[1]) < 0 and match[2] not in ("", "b", "ib")):
            return None
        return int(match[1]) * self._units[match[2]]


@dataclass(frozen=True)
class Duration(WholeNumber):
    """Milliseconds; as text also 500ms, 90s, 10m, 4h, 7d. `needs_unit`: a number without a unit may only be 0.

    A unit is needed where Pulsar counts seconds and Kafka milliseconds.
    """

    needs_unit: bool = False

    _units = MappingProxyType({"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000})

    @property
    def allowed(self) -> str:
        if self.needs_unit:
            least = f" of at least {self.least} ms" if self.least else ""
            return f"a duration{least}, a number with ms, s, m, h or d: 500ms, 90s, 7d"
        return f"milliseconds{self._limits}; or a number with ms, s, m, h or d: 90s, 7d"

    def _number(self, given: object) -> int | None:
        bare = not (isinstance(given, str) and given[-1:].isalpha())
        return None if self.needs_unit and bare and given not in (0, "0") else super()._number(given)

    def shown(self, value: object) -> object:
        if not self.needs_unit or not isinstance(value, int):
            return value
        units = (unit for unit in ("d", "h", "m", "s", "ms") if value and value % self._units[unit] == 0)
        unit = next(units, "")
        return f"{value // self._units[unit]}{unit}"


@dataclass(frozen=True)
class Size(WholeNumber):
    """Bytes; as text also 64K, 128M, 3G, 1T, in powers of 1024."""

    _units = MappingProxyType(
        {f"{unit}{end}": 1 << 10 * power for power, unit in enumerate(("", *"kmgt")) for end in ("", "b", "ib")}
    )

    @property
    def allowed(self) -> str:
        return f"bytes{self._limits}; or a number with K, M, G or T: 128M, 3G"


@dataclass(frozen=True)
class Decimal(_Plain):
    """A number that may have a fraction."""

    least: float = 0.0
    most: float = float("inf")

    @property
    def allowed(self) -> str:
        ratio = f"a number from {self.least:g} to {self.most:g}"
        return ratio if self.most < float("inf") else f"a number of at least {self.least:g}"

    def parse(self, name: str, given: object) -> float:
        try:
            number = float(given) if isinstance(given, str | int | float) and not isinstance(given, bool) else None
        except (ValueError, OverflowError):
            number = None
        if number is None or not self.least <= number <= self.most or number == float("inf"):  # NaN is not in between
            raise refused(name, given, self.allowed)
        return number


@dataclass(frozen=True)
class Boolean(_Plain):
    """true or false."""

    @property
    def allowed(self) -> str:
        return "true or false"

    def parse(self, name: str, given: object) -> bool:
        word = given.strip().lower() if isinstance(given, str) else given
        if isinstance(word, bool) or word in ("true", "false"):
            return word in (True, "true")
        raise refused(name, given, self.allowed)


@dataclass(frozen=True)
class Choice(_Plain):
    """One of some words, in whatever capitals it is given."""

    words: tuple[str, ...]

    @property
    def allowed(self) -> str:
        return f"{', '.join(self.words[:-1])} or {self.words[-1]}"

    def parse(self, name: str, given: object) -> str:
        by_small_letters = {word.lower(): word for word in self.words}
        word = by_small_letters.get(given.strip().lower()) if isinstance(given, str) else None
        if word is None:
            raise refused(name, given, self.allowed)
        return word


@dataclass(frozen=True)
class Text(_Plain):
    """Any text in one line. A text that was refused is not repeated: it may be a secret."""

    what: str = "a text"

    @property
    def allowed(self) -> str:
        return self.what

    def parse(self, name: str, given: object) -> str:
        if not isinstance(given, str) or not given.isprintable():
            raise refused(name, "…" if isinstance(given, str) else given, f"{self.what}, in one line")
        return given


@dataclass(frozen=True)
class TextList:
    """Texts, separated by commas; in JSON and TOML also a list of texts."""

    what: str

    @property
    def allowed(self) -> str:
        return f"{self.what}, separated by commas"

    def parse(self, name: str, given: object) -> tuple[str, ...]:
        parts = given.split(",") if isinstance(given, str) else given
        if not isinstance(parts, list) or not all(isinstance(part, str) and part.isprintable() for part in parts):
            raise refused(name, given, self.allowed)
        return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))

    def shown(self, value: object) -> object:
        assert isinstance(value, tuple)
        return list(value)


@dataclass(frozen=True)
class CleanupPolicy:
    """A set of `compact` and `delete`; as text separated by commas, as JSON a list or such a text; `nothing`: empty."""

    @property
    def allowed(self) -> str:
        return "delete, compact, or compact,delete; or nothing, to keep everything"

    def parse(self, name: str, given: object) -> frozenset[str]:
        parts: list[object] = []
        if isinstance(given, str):
            nothing = given.strip().lower() in ("", "nothing", "none")
            parts += [] if nothing else [part.strip().lower() for part in given.split(",")]
        elif isinstance(given, list | tuple | set | frozenset):
            parts += given
        else:
            raise refused(name, given, self.allowed)
        words = frozenset(part for part in parts if isinstance(part, str))
        if not all(isinstance(part, str) for part in parts) or not words <= set(_CLEANUP):
            raise refused(name, given, self.allowed)
        return words

    def shown(self, value: object) -> object:
        assert isinstance(value, Collection)
        return sorted(value)


@dataclass(frozen=True)
class Optional:
    """What `kind` takes, or `none` (JSON null)."""

    kind: ValueKind

    @property
    def allowed(self) -> str:
        return f"{self.kind.allowed}; or {_NONE}"

    def parse(self, name: str, given: object) -> object:
        if given is None or (isinstance(given, str) and given.strip().lower() == _NONE):
            return None
        try:
            return self.kind.parse(name, given)
        except InvalidInput:
            raise refused(name, given, self.allowed) from None

    def shown(self, value: object) -> object:
        return None if value is None else self.kind.shown(value)


BOOLEAN = Boolean()
RATIO = Decimal(most=1)
