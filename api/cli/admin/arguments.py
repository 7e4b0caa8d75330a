"""Arguments and options that several commands have, and how Pulsar's retention is typed."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from api.cli.kit.quantities import parse_bytes, parse_duration
from storage.errors import InvalidInput

Namespace = Annotated[str, typer.Argument(metavar="TENANT/NAMESPACE", help="The namespace.")]
Tenant = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant.")]
Run = Annotated[int, typer.Argument(metavar="RUN", min=1, max=2**63 - 1, help="Its number, as `list` has it.")]
Subscription = Annotated[str, typer.Option("-s", "--subscription", metavar="NAME", help="The subscription.")]
Role = Annotated[str, typer.Option("--role", metavar="ROLE", help="The role.")]
Count = Annotated[int, typer.Option("-n", "--count", metavar="N", min=1, help="How many messages.")]
Threshold = Annotated[
    str,
    typer.Option(
        "-t",
        "--threshold",
        metavar="BYTES",
        help="Bytes behind the horizon that make a compaction due: 100M, 16G. 0: off.",
    ),
]
Applied = Annotated[bool, typer.Option("-a", "--applied", help="What holds in the end, wherever it is set.")]
RetentionTime = Annotated[
    str, typer.Option("-t", "--time", metavar="TIME", help="Seconds, or 100m, 3h, 2d, 5w; 0: none, -1: forever.")
]
RetentionSize = Annotated[
    str, typer.Option("-s", "--size", metavar="BYTES", help="Bytes, or 10M, 16G, 3T; 0: none, -1: any number.")
]
Execute = Annotated[bool, typer.Option("--execute", help="Do it. Without it, only report what would be done.")]

_MINUTE_MS = 60_000
_MIB = 1 << 20


def parse_minutes(text: str) -> int:
    """Pulsar's time of a retention: whole minutes, -1: forever. Raises InvalidInput."""
    if text == "-1":
        return -1
    weeks = re.fullmatch(r"([0-9]{1,4})w", text, re.ASCII)
    milliseconds = parse_duration("--time", f"{int(weeks[1]) * 7}d" if weeks else text)
    if milliseconds % _MINUTE_MS:
        raise InvalidInput(f"{text!r} is no whole number of minutes", "give --time in minutes, as 10m")
    return milliseconds // _MINUTE_MS


def parse_megabytes(text: str) -> int:
    """Pulsar's size of a retention: whole megabytes, -1: any. Raises InvalidInput."""
    if text == "-1":
        return -1
    size = parse_bytes("--size", text)
    if size % _MIB:
        raise InvalidInput(f"{text!r} is no whole number of megabytes", "give --size in megabytes, as 10M")
    return size // _MIB
