"""What Kafka's log cleaner says in its log about its passes.

A pass begins with `Beginning cleaning of log T-0` and ends with a message of several lines, of which these count:

    2026-11-21 16:40:01.250 INFO ….LogCleaner: [kafka-log-cleaner-thread-0]:
        Log cleaner thread 0 cleaned log T-0 (dirty section = [0, 1000])
        1,000.0 MB of log processed in 3.2 seconds (312.5 MB/sec).

The second line's time is rounded to tenths, so times are taken from the stamps of the messages, which have
milliseconds; it is kept to be held against them.
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
    """One pass over one partition. `began`, `ended`: seconds of one clock; `seconds`: what the cleaner says."""

    partition: str
    dirty_from: int
    dirty_to: int
    began: float
    ended: float
    seconds: float


def read_passes(log: str, topic: str) -> list[Pass]:
    """The finished passes over partitions of `topic`, in the order of their ends."""
    passes: list[Pass] = []
    began: dict[str, float] = {}
    stamp = 0.0
    ending: tuple[str, int, int] | None = None
    for found in _LINE.finditer(log):
        time, begun, cleaned, first, last, seconds = found.groups()
        if time:
            stamp = datetime.strptime(time, "%Y-%m-%d %H:%M:%S.%f").replace(tzinfo=UTC).timestamp()
        elif begun:
            began[begun] = stamp
        elif cleaned:
            ending = (cleaned, int(first), int(last))
        elif ending:
            name, ending_from, ending_to = ending
            ending = None
            if name.rpartition("-")[0] == topic and name in began:
                message = float(seconds.replace(",", ""))
                passes.append(Pass(name, ending_from, ending_to, began.pop(name), stamp, message))
    return passes


def is_done(passes: list[Pass], ends: dict[str, int]) -> bool:
    """Whether every partition is cleaned up to its end offset."""
    reached = {pass_.partition: pass_.dirty_to for pass_ in passes}
    return all(reached.get(partition, 0) >= end for partition, end in ends.items())


def elapsed(passes: list[Pass]) -> float:
    """Seconds from the begin of the first pass to the end of the last, over all partitions and threads."""
    return max(pass_.ended for pass_ in passes) - min(pass_.began for pass_ in passes)
