"""Patterns of topics' names, in RE2's language: matching takes time that grows with the text alone.

Compiling is bounded by the pattern's length and by `COMPILED_BYTES`, and still takes milliseconds: it and matching are
for threads. Must not know: connections.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, cast

import re2

from api.pulsar.errors import Refused, ServerError
from storage.model import DOMAIN

MOST_CHARACTERS = 256
"""Pulsar takes 50 (subscriptionPatternMaxLength)."""
COMPILED_BYTES = 256 << 10
_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = COMPILED_BYTES
_OF_PARTITION = re.compile(r"-partition-\d+$")


class Pattern(Protocol):
    """A compiled pattern, as RE2 has it."""

    def fullmatch(self, text: str) -> object | None:
        """Something if all of `text` fits."""


def pattern_of(text: str) -> Pattern:
    """Compile a pattern of topics' names, with or without their domain. Raises Refused."""
    try:
        if len(text) > MOST_CHARACTERS:
            raise re2.error(f"it has more than {MOST_CHARACTERS} characters")
        return cast(Pattern, re2.compile(text.removeprefix(f"{DOMAIN}://"), _OPTIONS))
    except re2.error as error:
        raise Refused(ServerError.NotAllowedError, f"{text[:100]!r} is no pattern (RE2): {_reason(error)}") from error


def _reason(error: Exception) -> str:
    reason = error.args[0] if error.args else ""
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)


@dataclass(frozen=True)
class Matches:
    """The topics that a pattern fits, in full and sorted, and Pulsar's hash of that list."""

    topics: tuple[str, ...]
    hash: str

    @classmethod
    def of(cls, pattern: str, names: Iterable[str]) -> Matches:
        """Match a pattern's text with names. Raises Refused."""
        topics = matching(pattern_of(pattern), names)
        return cls(tuple(topics), hash_of(topics))


def matching(pattern: Pattern, names: Iterable[str]) -> list[str]:
    """Return the names, in full, that a pattern fits; partitions go by the name of the whole."""
    prefix = f"{DOMAIN}://"
    return sorted(name for name in names if pattern.fullmatch(_OF_PARTITION.sub("", name.removeprefix(prefix))))


def hash_of(names: Iterable[str]) -> str:
    """Return Pulsar's hash of a list of topics: a checksum of the sorted names, in hex."""
    return f"{zlib.crc32(','.join(sorted(names)).encode()):08x}"
