"""Parser of the messages of Kafka's log cleaner about its passes.

A pass starts with `Beginning cleaning of log T-0` and ends with a message of several lines, of which these are used:

    2026-11-21 16:40:01.250 INFO ….LogCleaner: [kafka-log-cleaner-thread-0]:
        Log cleaner thread 0 cleaned log T-0 (dirty section = [0, 1000])
        1,000.0 MB of log processed in 3.2 seconds (312.5 MB/sec).

The second line's time is rounded to tenths. So times come from the timestamps of the messages, which have milliseconds;
the rounded time is kept for comparison.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

_STAMP = r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) "
_LINE = re.compile(
    rf"{_STAMP}|Beginning cleaning of log (\S+?)\.?\s*$"
    r"|cleaned log (\S+) \(dirty section = \[(\d+), (\d+)\]\)"
    r"|MB of log processed in ([\d.,]+) seconds",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Pass:
    """One pass over one partition. `start`, `end`: seconds of one clock. `seconds`: the cleaner's own figure."""

    partition: str
    dirty_from: int
    dirty_to: int
    start: float
    end: float
    seconds: float


def read_passes(log: str, topic: str) -> list[Pass]:
    """Return the finished passes over partitions of `topic`, in the order of their ends."""
    passes: list[Pass] = []
    starts: dict[str, float] = {}
    stamp = 0.0
    ending: tuple[str, int, int] | None = None
    for match in _LINE.finditer(log):
        time, log_name, cleaned, first, last, seconds = match.groups()
        if time:
            stamp = datetime.strptime(time, "%Y-%m-%d %H:%M:%S.%f").replace(tzinfo=UTC).timestamp()
        elif log_name:
            starts[log_name] = stamp
        elif cleaned:
            ending = (cleaned, int(first), int(last))
        elif ending:
            name, ending_from, ending_to = ending
            ending = None
            if name.rpartition("-")[0] == topic and name in starts:
                message = float(seconds.replace(",", ""))
                passes.append(Pass(name, ending_from, ending_to, starts.pop(name), stamp, message))
    return passes


def is_done(passes: list[Pass], ends: dict[str, int]) -> bool:
    """Return whether every partition is cleaned up to its end offset."""
    reached = {pass_.partition: pass_.dirty_to for pass_ in passes}
    return all(reached.get(partition, 0) >= end for partition, end in ends.items())


def elapsed(passes: list[Pass]) -> float:
    """Return the seconds from the start of the first pass to the end of the last, over all partitions and threads."""
    return max(pass_.end for pass_ in passes) - min(pass_.start for pass_ in passes)
