"""Arguments and options that several commands have alike, and values as they are typed: sizes and durations."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from api.cli.kit.durations import parse_duration
from api.cli.kit.names import TOPIC_HELP
from storage.errors import InvalidInput

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help=TOPIC_HELP)]
Namespace = Annotated[str, typer.Argument(metavar="TENANT/NAMESPACE", help="The namespace.")]
Tenant = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant.")]
Subscription = Annotated[str, typer.Option("-s", "--subscription", metavar="NAME", help="The subscription.")]
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
Applied = Annotated[
    bool,
    typer.Option("-a", "--applied", help="What holds in the end, wherever it is set."),
]
RetentionTime = Annotated[
    str, typer.Option("-t", "--time", metavar="TIME", help="Seconds, or 100m, 3h, 2d, 5w; 0: none, -1: forever.")
]
RetentionSize = Annotated[
    str, typer.Option("-s", "--size", metavar="BYTES", help="Bytes, or 10M, 16G, 3T; 0: none, -1: any number.")
]

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_MINUTE_MS = 60_000
_MIB = 1 << 20


def parse_bytes(option: str, text: str) -> int:
    """A number of bytes; K, M, G and T are powers of 1024. Raises InvalidInput, which names the option."""
    match = re.fullmatch(r"([0-9]{1,18})([KMGTkmgt]?)", text, re.ASCII)
    size = int(match[1]) * _UNITS[match[2].upper()] if match else 2**63
    if size >= 2**63:
        raise InvalidInput(f"{text!r} is no number of bytes for {option}", "give one as 4096, 100M, 16G or 3T")
    return size


def retention(time: str, size: str) -> dict[str, int]:
    """Pulsar's body of a retention: minutes and megabytes, whole ones. Raises InvalidInput."""
    return {"retentionTimeInMinutes": _minutes(time), "retentionSizeInMB": _megabytes(size)}


def _minutes(text: str) -> int:
    if text == "-1":
        return -1
    weeks = re.fullmatch(r"([0-9]{1,4})w", text, re.ASCII)
    milliseconds = parse_duration("--time", f"{int(weeks[1]) * 7}d" if weeks else text)
    if milliseconds % _MINUTE_MS:
        raise InvalidInput(f"{text!r} is no whole number of minutes", "give --time in minutes, as 10m")
    return milliseconds // _MINUTE_MS


def _megabytes(text: str) -> int:
    if text == "-1":
        return -1
    size = parse_bytes("--size", text)
    if size % _MIB:
        raise InvalidInput(f"{text!r} is no whole number of megabytes", "give --size in megabytes, as 10M")
    return size // _MIB
