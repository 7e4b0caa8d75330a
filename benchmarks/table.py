"""Result of a run as one Markdown table, and ratios within rounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median


@dataclass
class Row:
    """Seconds of one contender by round, or its `failure`. `family`: group of contenders whose best counts."""

    name: str
    family: str
    seconds: list[float] = field(default_factory=list)
    failure: str = ""


def ratios(row: Row, base: Row) -> list[float]:
    """Return the ratio of the row's time to that of `base`, round by round."""
    return [seconds / base_seconds for seconds, base_seconds in zip(row.seconds, base.seconds, strict=False)]


def best_ratios(rows: list[Row], family: str, base: Row) -> list[float]:
    """Return the ratio of the fastest row of a family, round by round; empty if all of them failed."""
    working = [row for row in rows if row.family == family and row.seconds and not row.failure]
    return [min(seconds) for seconds in zip(*(ratios(row, base) for row in working), strict=False)]


def markdown(rows: list[Row], base: Row, messages: int) -> str:
    """Return a table with a line per contender: median and range of its seconds, its rate, its ratio to `base`."""
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
