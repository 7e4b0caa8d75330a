"""Messages for a person: on stderr, with readable numbers."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from api.cli.kit.terminal import safe_for_stderr


def say(text: str) -> None:
    """Print a text for the user on stderr, without secrets. A closed stderr does not stop the work."""
    with suppress(OSError):
        print(safe_for_stderr(text), file=sys.stderr, flush=True)  # noqa: T201


def report_topic_created(topic: object) -> None:
    """Report on stderr that a topic was created on first use, so that the user notices a mistyped name."""
    say(f"The topic {topic} did not exist: it was created")


def discard_output() -> None:
    """Redirect stdout to the null device after a failed write; otherwise the interpreter's last flush fails again."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def counted(value: int, noun: str) -> str:
    """Return a number with its noun: 1 ledger, 1,234 ledgers, 2 indexes."""
    return f"{value:,} {noun}" if value == 1 else f"{value:,} {noun}{'es' if noun.endswith('x') else 's'}"


def size(value: float) -> str:
    """Return bytes in a suitable unit: 1.5 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024 or unit == "GiB":
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError
