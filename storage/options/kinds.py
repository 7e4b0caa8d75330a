"""Kinds of values of policies and settings: one parser of numbers, durations, sizes, words and lists.

`parse(name, raw)` takes a text (flags, environment, Java properties) or a JSON or TOML value, which mean the same; it
raises InvalidInput, which names the option, and nothing else. Invariant: `parse(name, to_json(value)) == value`.
Durations are milliseconds, as text also with a unit (`7d`, `90s`); sizes are bytes, as text also `128M` (powers of
1024). Booleans of JSON are not numbers. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Protocol

from storage.errors import InvalidInput

NO_LIMIT = -1
"""Kafka's "no limit"."""
ALWAYS_MS = 1 << 62
"""A duration without end: a time in milliseconds minus this is still a number of 64 bits."""
_MOST = (1 << 63) - 1
_NONE = "none"
_CLEANUP = ("compact", "delete")


class ValueKind(Protocol):
    """A kind of values of options: what is allowed, and how texts and JSON values become values."""

    @property
    def allowed(self) -> str:
        """The description of the allowed values, for the error that refuses another one."""
        ...

    def parse(self, name: str, raw: object) -> object:
        """Return the value that `raw`, a text or a JSON or TOML value, means. `name`: of the option.

        Raises InvalidInput.
        """
        ...

    def to_json(self, value: object) -> object:
        """Return the JSON value from which `parse` returns an equal value."""
        ...


def refused_value_error(name: str, raw: object, allowed: str) -> InvalidInput:
    """Return the error for `raw`, which is no allowed value of the option `name`. `allowed`: the allowed values."""
    text = repr(raw) if isinstance(raw, str) else json.dumps(raw, ensure_ascii=False, default=repr)
    return InvalidInput(f"{text} is not a value of {name}", f"give {allowed}")


class _JsonValueKind:
    """Base of the kinds whose values are JSON values already."""

    def to_json(self, value: object) -> object:
        return value


@dataclass(frozen=True)
class WholeNumber(_JsonValueKind):
    """A whole number of `what` (a unit, for texts) from `least` to `greatest`. `least` NO_LIMIT: -1 means no limit."""

    what: str = ""
    least: int = 0
    greatest: int = _MOST

    _units: ClassVar[Mapping[str, int]] = MappingProxyType({"": 1})
    """The length of each unit, in small letters, in the unit of the value."""

    @property
    def allowed(self) -> str:
        return f"a whole number of {self.what}{self._limits_text}"

    @property
    def _limits_text(self) -> str:
        least = max(self.least, 0)
        limits = f" from {least} to {self.greatest}" if self.greatest < _MOST else f" of at least {least}"
        return f"{limits}, or -1 for no limit" if self.least == NO_LIMIT else limits

    def parse(self, name: str, raw: object) -> int:
        number = self._parse_number(raw.strip().lower() if isinstance(raw, str) else raw)
        if number is None or not self.least <= number <= self.greatest:
            raise refused_value_error(name, raw, self.allowed)
        return number

    def _parse_number(self, raw: object) -> int | None:
        if not isinstance(raw, str):
            return raw if isinstance(raw, int) and not isinstance(raw, bool) else None
        match = re.fullmatch(r"(-?\d{1,19})\s*([a-z]*)", raw, re.ASCII)
        if match is None or match[2] not in self._units or (int(match[1]) < 0 and match[2] not in ("", "b", "ib")):
            return None
        return int(match[1]) * self._units[match[2]]


@dataclass(frozen=True)
class Duration(WholeNumber):
    """Milliseconds; as text also 500ms, 90s, 10m, 4h, 7d.

    `needs_unit`: a number without a unit may only be 0, because Pulsar counts seconds there and Kafka milliseconds.
    """

    needs_unit: bool = False

    _units = MappingProxyType({"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000})

    @property
    def allowed(self) -> str:
        if self.needs_unit:
            least = f" of at least {self.least} ms" if self.least else ""
            return f"a duration{least}, a number with ms, s, m, h or d: 500ms, 90s, 7d"
        return f"milliseconds{self._limits_text}; or a number with ms, s, m, h or d: 90s, 7d"

    def _parse_number(self, raw: object) -> int | None:
        bare = not (isinstance(raw, str) and raw[-1:].isalpha())
        return None if self.needs_unit and bare and raw not in (0, "0") else super()._parse_number(raw)

    def to_json(self, value: object) -> object:
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
        return f"bytes{self._limits_text}; or a number with K, M, G or T: 128M, 3G"


@dataclass(frozen=True)
class Decimal(_JsonValueKind):
    """A number that may have a fraction, from `least` to `greatest`; neither NaN nor infinity."""

    least: float = 0.0
    greatest: float = float("inf")

    @property
    def allowed(self) -> str:
        ratio = f"a number from {self.least:g} to {self.greatest:g}"
        return ratio if self.greatest < float("inf") else f"a number of at least {self.least:g}"

    def parse(self, name: str, raw: object) -> float:
        try:
            number = float(raw) if isinstance(raw, str | int | float) and not isinstance(raw, bool) else None
        except (ValueError, OverflowError):
            number = None
        if number is None or number == float("inf") or not self.least <= number <= self.greatest:  # NaN is not
            raise refused_value_error(name, raw, self.allowed)
        return number


@dataclass(frozen=True)
class Boolean(_JsonValueKind):
    """true or false."""

    allowed: ClassVar[str] = "true or false"

    def parse(self, name: str, raw: object) -> bool:
        word = raw.strip().lower() if isinstance(raw, str) else raw
        if isinstance(word, bool) or word in ("true", "false"):
            return word in (True, "true")
        raise refused_value_error(name, raw, self.allowed)


@dataclass(frozen=True)
class Choice(_JsonValueKind):
    """One of `words`, in upper or lower case; the value is as in `words`."""

    words: tuple[str, ...]

    @property
    def allowed(self) -> str:
        return f"{', '.join(self.words[:-1])} or {self.words[-1]}"

    def parse(self, name: str, raw: object) -> str:
        by_small_letters = {word.lower(): word for word in self.words}
        word = by_small_letters.get(raw.strip().lower()) if isinstance(raw, str) else None
        if word is None:
            raise refused_value_error(name, raw, self.allowed)
        return word


@dataclass(frozen=True)
class Text(_JsonValueKind):
    """A text in one line.

    `allowed`: its description for errors, which do not repeat a refused text: it may be a secret.
    """

    allowed: str = "a text"

    def parse(self, name: str, raw: object) -> str:
        if not isinstance(raw, str) or not raw.isprintable():
            raise refused_value_error(name, "…" if isinstance(raw, str) else raw, f"{self.allowed}, in one line")
        return raw


@dataclass(frozen=True)
class TextList:
    """A tuple of texts without duplicates; as text separated by commas, in JSON and TOML also a list.

    `what`: the plural.
    """

    what: str

    @property
    def allowed(self) -> str:
        return f"{self.what}, separated by commas"

    def parse(self, name: str, raw: object) -> tuple[str, ...]:
        parts = raw.split(",") if isinstance(raw, str) else raw
        if not isinstance(parts, list) or not all(isinstance(part, str) and part.isprintable() for part in parts):
            raise refused_value_error(name, raw, self.allowed)
        return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))

    def to_json(self, value: object) -> object:
        assert isinstance(value, tuple)
        return list(value)


@dataclass(frozen=True)
class CleanupPolicy:
    """A set of `compact` and `delete`; as text separated by commas, as JSON a list or such a text; `nothing`: empty."""

    allowed: ClassVar[str] = "delete, compact, or compact,delete; or nothing, to keep everything"

    def parse(self, name: str, raw: object) -> frozenset[str]:
        parts: list[object] = []
        if isinstance(raw, str):
            nothing = raw.strip().lower() in ("", "nothing", "none")
            parts += [] if nothing else [part.strip().lower() for part in raw.split(",")]
        elif isinstance(raw, list | tuple | set | frozenset):
            parts += raw
        else:
            raise refused_value_error(name, raw, self.allowed)
        words = frozenset(part for part in parts if isinstance(part, str))
        if not all(isinstance(part, str) for part in parts) or not words <= set(_CLEANUP):
            raise refused_value_error(name, raw, self.allowed)
        return words

    def to_json(self, value: object) -> object:
        assert isinstance(value, Collection)
        return sorted(value)


@dataclass(frozen=True)
class Optional:
    """The values of `kind`, or `none` (JSON null)."""

    kind: ValueKind

    @property
    def allowed(self) -> str:
        return f"{self.kind.allowed}; or {_NONE}"

    def parse(self, name: str, raw: object) -> object:
        if raw is None or (isinstance(raw, str) and raw.strip().lower() == _NONE):
            return None
        try:
            return self.kind.parse(name, raw)
        except InvalidInput:
            raise refused_value_error(name, raw, self.allowed) from None

    def to_json(self, value: object) -> object:
        return None if value is None else self.kind.to_json(value)


BOOLEAN = Boolean()
RATIO = Decimal(greatest=1)
