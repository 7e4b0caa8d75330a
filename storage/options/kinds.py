"""Kinds of policy values: what each takes as text and as a JSON value, and how it says what is allowed.

Invariant: `parse(name, shown(value)) == value`. A text and the JSON value of the same meaning give the same value.
Durations are milliseconds, as text also with a unit (`7d`, `90s`); sizes are bytes, as text also `128M` (powers of
1024). JSON's booleans are no numbers. Pure; raises nothing but InvalidInput, which names the policy.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from storage.errors import InvalidInput

FOR_EVER = -1
"""Kafka's "no limit"."""
_NO_LIMIT = (1 << 63) - 1
ALWAYS_MS = 1 << 62
"""A duration that is never over: a time of ours less this is still a number of 64 bits."""
_NONE = "none"
_DURATION_UNITS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_DURATION = re.compile(r"(-?\d{1,19})\s*(ms|s|m|h|d|)", re.ASCII | re.IGNORECASE)
_SIZE = re.compile(r"(-?\d{1,19})\s*([kmgt]?)(?:ib|b)?", re.ASCII | re.IGNORECASE)
_CLEANUP = ("compact", "delete")


class Kind(Protocol):
    """What a policy takes."""

    @property
    def allowed(self) -> str:
        """What to give instead of a value that was refused."""
        ...

    def parse(self, name: str, given: object) -> object:
        """The value of policy `name`. Raises InvalidInput."""
        ...

    def shown(self, value: object) -> object:
        """The value as JSON has it."""
        ...


def _refused(name: str, given: object, allowed: str) -> InvalidInput:
    return InvalidInput(f"{given!r} is no value for the policy {name}", f"give {allowed}")


@dataclass(frozen=True)
class Whole:
    """A whole number of `what`."""

    what: str
    least: int = 0
    most: int = _NO_LIMIT

    @property
    def allowed(self) -> str:
        return f"a whole number of {self.what}{_limits(self.least, self.most)}"

    def parse(self, name: str, given: object) -> int:
        number = self._number(given)
        if number is None or not self.least <= number <= self.most:
            raise _refused(name, given, self.allowed)
        return number

    def shown(self, value: object) -> object:
        return value

    def _number(self, given: object) -> int | None:
        if isinstance(given, str):
            return self._from_text(given.strip())
        return given if isinstance(given, int) and not isinstance(given, bool) else None

    def _from_text(self, text: str) -> int | None:
        return int(text) if re.fullmatch(r"-?\d{1,19}", text, re.ASCII) else None


def _limits(least: int, most: int) -> str:
    ever = ", or -1 for no limit" if least == FOR_EVER else ""
    from_ = max(least, 0)
    return (f" from {from_} to {most}" if most < _NO_LIMIT else f" of at least {from_}") + ever


@dataclass(frozen=True)
class _WithUnits(Whole):
    what: str = ""

    def _from_text(self, text: str) -> int | None:
        match = self._pattern.fullmatch(text)
        if match is None or (int(match[1]) < 0 and match[2]):
            return None
        return int(match[1]) * self._units[match[2].lower()]

    @property
    def _pattern(self) -> re.Pattern[str]:
        raise NotImplementedError

    @property
    def _units(self) -> dict[str, int]:
        raise NotImplementedError


@dataclass(frozen=True)
class Duration(_WithUnits):
    """Milliseconds; as text also 500ms, 90s, 10m, 4h, 7d."""

    @property
    def allowed(self) -> str:
        return f"milliseconds{_limits(self.least, self.most)}; or a number with ms, s, m, h or d: 90s, 7d"

    @property
    def _pattern(self) -> re.Pattern[str]:
        return _DURATION

    @property
    def _units(self) -> dict[str, int]:
        return _DURATION_UNITS


@dataclass(frozen=True)
class Size(_WithUnits):
    """Bytes; as text also 64K, 128M, 3G, 1T, in powers of 1024."""

    @property
    def allowed(self) -> str:
        return f"bytes{_limits(self.least, self.most)}; or a number with K, M, G or T: 128M, 3G"

    @property
    def _pattern(self) -> re.Pattern[str]:
        return _SIZE

    @property
    def _units(self) -> dict[str, int]:
        return _SIZE_UNITS


@dataclass(frozen=True)
class Optional:
    """What `kind` takes, or `none` (JSON null)."""

    kind: Kind

    @property
    def allowed(self) -> str:
        return f"{self.kind.allowed}; or {_NONE}"

    def parse(self, name: str, given: object) -> object:
        if given is None or (isinstance(given, str) and given.strip().lower() == _NONE):
            return None
        try:
            return self.kind.parse(name, given)
        except InvalidInput:
            raise _refused(name, given, self.allowed) from None

    def shown(self, value: object) -> object:
        return None if value is None else self.kind.shown(value)


@dataclass(frozen=True)
class Ratio:
    """A number from 0 to 1."""

    @property
    def allowed(self) -> str:
        return "a number from 0 to 1"

    def parse(self, name: str, given: object) -> float:
        try:
            number = float(given) if isinstance(given, str | int | float) and not isinstance(given, bool) else -1.0
        except (ValueError, OverflowError):
            number = -1.0
        if not 0 <= number <= 1:  # so is NaN refused
            raise _refused(name, given, self.allowed)
        return number

    def shown(self, value: object) -> object:
        return value


@dataclass(frozen=True)
class Boolean:
    """true or false."""

    @property
    def allowed(self) -> str:
        return "true or false"

    def parse(self, name: str, given: object) -> bool:
        if isinstance(given, bool):
            return given
        if isinstance(given, str) and given.strip().lower() in ("true", "false"):
            return given.strip().lower() == "true"
        raise _refused(name, given, self.allowed)

    def shown(self, value: object) -> object:
        return value


@dataclass(frozen=True)
class Choice:
    """One of some words; capitals do not matter."""

    words: tuple[str, ...]

    @property
    def allowed(self) -> str:
        return f"{', '.join(self.words[:-1])} or {self.words[-1]}"

    def parse(self, name: str, given: object) -> str:
        word = given.strip().lower() if isinstance(given, str) else None
        if word not in self.words:
            raise _refused(name, given, self.allowed)
        return str(word)

    def shown(self, value: object) -> object:
        return value


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
            raise _refused(name, given, self.allowed)
        words = frozenset(part for part in parts if isinstance(part, str))
        if not all(isinstance(part, str) for part in parts) or not words <= set(_CLEANUP):
            raise _refused(name, given, self.allowed)
        return words

    def shown(self, value: object) -> object:
        assert isinstance(value, Collection)
        return sorted(value)


RATIO = Ratio()
BOOLEAN = Boolean()
