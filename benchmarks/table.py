"""The result of a run as one Markdown table, and ratios within rounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median


@dataclass
class Row:
    """One contender's seconds by round; `failure` instead where it gave up. `family`: whose best is searched for."""

    name: str
    family: str
    seconds: list[float] = field(default_factory=list)
    failure: str = ""


def ratios(row: Row, base: Row) -> list[float]:
    """How many times as long as `base` it took, round by round."""
    return [mine / theirs for mine, theirs in zip(row.seconds, base.seconds, strict=False)]


def best_ratios(rows: list[Row], family: str, base: Row) -> list[float]:
    """As `ratios`, of the quickest of a family in each round; empty if none of it worked."""
    working = [row for row in rows if row.family == family and row.seconds and not row.failure]
    return [min(seconds) for seconds in zip(*(ratios(row, base) for row in working), strict=False)]


def markdown(rows: list[Row], base: Row, messages: int) -> str:
    """A line a contender: median and range of its seconds, its rate, its time over the base's."""
    lines = [
        "| way | seconds, median | min–max | messages/s | time, this job = 1 |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        if row.failure or not row.seconds:
            lines.append(f"| {row.name} | failed: {row.failure} | | | |")
            continue
        middle = median(row.seconds)
        ratio = f"{median(ratios(row, base)):.2f}" if row.family != "import" and base.seconds else ""
        lines.append(
            f"| {row.name} | {middle:.2f} | {min(row.seconds):.2f}–{max(row.seconds):.2f} "
            f"| {messages / middle:,.0f} | {ratio} |"
        )
    return "\n".join(lines)
