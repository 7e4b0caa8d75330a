"""Patterns of topic names, as regular expressions of RE2: the time to match grows with the length of the name alone.

To compile a pattern is bounded by its length and by `COMPILED_BYTES`, and still takes milliseconds: threads compile and
match. Must not know: connections.
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

MAX_CHARACTERS = 256
"""The longest pattern; Pulsar accepts 50 (subscriptionPatternMaxLength)."""
COMPILED_BYTES = 256 << 10
_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = COMPILED_BYTES
_OF_PARTITION = re.compile(r"-partition-\d+$")


class Pattern(Protocol):
    """A compiled pattern of RE2."""

    def fullmatch(self, text: str) -> object | None:
        """Return a match if all of `text` matches."""


def compile_pattern(text: str) -> Pattern:
    """Compile a pattern of topic names, with or without their domain. Raise Refused if it is too long or not RE2."""
    try:
        if len(text) > MAX_CHARACTERS:
            raise re2.error(f"it has more than {MAX_CHARACTERS} characters")
        return cast(Pattern, re2.compile(text.removeprefix(f"{DOMAIN}://"), _OPTIONS))
    except re2.error as error:
        raise Refused(
            ServerError.NotAllowedError, f"{text[:100]!r} is not a regular expression of RE2: {_error_text(error)}"
        ) from error


def _error_text(error: Exception) -> str:
    reason = error.args[0] if error.args else ""
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)


@dataclass(frozen=True)
class Matches:
    """The full names of the topics that match a pattern, sorted, and Pulsar's hash of that list."""

    topics: tuple[str, ...]
    hash: str

    @classmethod
    def of(cls, pattern: str, names: Iterable[str]) -> Matches:
        """Return those of `names`, full names of topics, that match a pattern. Raise Refused for an invalid pattern."""
        topics = matching_names(compile_pattern(pattern), names)
        return cls(tuple(topics), hash_of(topics))


def matching_names(pattern: Pattern, names: Iterable[str]) -> list[str]:
    """Return the names that match a pattern, sorted; a partition matches by the name of its partitioned topic."""
    prefix = f"{DOMAIN}://"
    return sorted(name for name in names if pattern.fullmatch(_OF_PARTITION.sub("", name.removeprefix(prefix))))


def hash_of(names: Iterable[str]) -> str:
    """Return Pulsar's hash of a list of topics: a checksum of the sorted names, in hex."""
    return f"{zlib.crc32(','.join(sorted(names)).encode()):08x}"
