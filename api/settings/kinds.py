"""What a setting takes: text, whole and decimal numbers, yes or no, durations, sizes, choices, lists.

`parse(name, given)` takes a text (flags, environment, Java properties) or a TOML value, which mean the same. A duration
needs a unit, since Pulsar counts seconds where Kafka counts milliseconds; their own names convert
(`api/settings/settings.py`). Raises InvalidInput, which names the setting. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from api.observability.redaction import shown_url
from storage.errors import InvalidInput
from storage.options.kinds import (
    BOOLEAN,
    Boolean,
    Duration,
    Optional,
    Size,
    Whole,
)

__all__ = ["BOOLEAN", "Boolean", "Choice", "Decimal", "List", "Optional", "Size", "Text", "Url", "Whole", "WithUnit"]


def refused(name: str, given: object, allowed: str) -> InvalidInput:
    """What says that a value cannot be taken, and what can."""
    return InvalidInput(f"{given!r} is no value for {name}", f"give {allowed}")


@dataclass(frozen=True)
class Text:
    """Any text in one line."""

    what: str = "a text"

    @property
    def allowed(self) -> str:
        return self.what

    def parse(self, name: str, given: object) -> str:
        if not isinstance(given, str) or not given.isprintable():
            raise refused(name, "…" if isinstance(given, str) else given, f"{self.what}, in one line")
        return given

    def shown(self, value: object) -> object:
        return value


class Url(Text):
    """A text that is one URL, or empty; its password is never shown."""

    def shown(self, value: object) -> object:
        return shown_url(str(value))


@dataclass(frozen=True)
class Choice:
    """One of some words; capitals do not matter."""

    words: tuple[str, ...]

    @property
    def allowed(self) -> str:
        return f"{', '.join(self.words[:-1])} or {self.words[-1]}"

    def parse(self, name: str, given: object) -> str:
        found = [word for word in self.words if isinstance(given, str) and word.lower() == given.strip().lower()]
        if not found:
            raise refused(name, given, self.allowed)
        return found[0]

    def shown(self, value: object) -> object:
        return value


@dataclass(frozen=True)
class List:
    """Texts, separated by commas; in TOML also a list of texts."""

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
class Decimal:
    """A number that may have a fraction."""

    least: float = 0.0

    @property
    def allowed(self) -> str:
        return f"a number of at least {self.least:g}"

    def parse(self, name: str, given: object) -> float:
        try:
            number = float(given) if isinstance(given, str | int | float) and not isinstance(given, bool) else -1.0
        except (ValueError, OverflowError):
            number = -1.0
        if not self.least <= number < float("inf"):  # so is NaN refused
            raise refused(name, given, self.allowed)
        return number

    def shown(self, value: object) -> object:
        return value


@dataclass(frozen=True)
class WithUnit:
    """A duration, kept as milliseconds, written with its unit; a bare number only if it is 0."""

    least: int = 0

    @property
    def allowed(self) -> str:
        from_ = f" of at least {self.least} ms" if self.least else ""
        return f"a duration{from_}, a number with ms, s, m, h or d: 500ms, 90s, 7d"

    def parse(self, name: str, given: object) -> int:
        text = str(given).strip() if isinstance(given, str | int) and not isinstance(given, bool) else ""
        try:
            parsed = Duration(least=self.least).parse(name, text) if text == "0" or text[-1:].isalpha() else None
        except InvalidInput:
            parsed = None
        if parsed is None:
            raise refused(name, given, self.allowed)
        return parsed

    def shown(self, value: object) -> object:
        assert isinstance(value, int)
        for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
            if value and value % length == 0:
                return f"{value // length}{unit}"
        return f"{value}ms" if value else "0"
