"""Messages for a person: on stderr, with readable numbers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress

from api.cli.kit.terminal import for_person


def say(text: str) -> None:
    """One line for the user, on stderr, without secrets. A closed stderr does not stop the work."""
    with suppress(OSError):
        print(for_person(text), file=sys.stderr, flush=True)  # noqa: T201


def say_created(topics: Iterable[object]) -> None:
    """Topics that were made on first use, last, so that a mistyped name is seen."""
    for topic in topics:
        say(f"The topic {topic} did not exist: it was created")


def abandon_output() -> None:
    """Drop what is still to be written to stdout, which failed: else the interpreter's last flush fails again."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def number(value: int) -> str:
    """1,234,567."""
    return f"{value:,}"


def counted(value: int, noun: str) -> str:
    """1 ledger, 1,234 ledgers, 2 indexes."""
    return f"{value:,} {noun}" if value == 1 else f"{value:,} {noun}{'es' if noun.endswith('x') else 's'}"


def size(value: float) -> str:
    """Bytes in a unit that fits: 1.5 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024 or unit == "GiB":
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError
