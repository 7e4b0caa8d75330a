"""What is said to a person: on stderr, numbers readable."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from api.cli.kit.terminal import spoken


def say(text: str) -> None:
    """One line for the user, on stderr, without secrets. Work goes on when nobody listens."""
    with suppress(OSError):
        print(spoken(text), file=sys.stderr, flush=True)  # noqa: T201


def abandon_output() -> None:
    """Let what is still to be written to stdout, which failed, go nowhere: the interpreter's last flush fails else."""
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


def origin(policy: Mapping[str, Any]) -> str:
    """Where a policy, as a plain document, comes from; and instead of which value, if that cannot be read."""
    unreadable = policy.get("unreadable")
    if unreadable is None:
        return str(policy["origin"])
    return f"{policy['origin']} (the {unreadable['origin']}'s {unreadable['value']} cannot be read)"
