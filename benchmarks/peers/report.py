"""The result of a sitting as one Markdown table, and whether the goals were reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median


@dataclass
class Line:
    """One contender's rounds; `failure` instead where it gave up. `remark`: what it said in its last round."""

    name: str
    family: str
    seconds: list[float] = field(default_factory=list)
    written_bytes: list[int] = field(default_factory=list)
    peak_bytes: list[int] = field(default_factory=list)
    remark: str = ""
    failure: str = ""


def markdown(lines: list[Line], messages: int) -> str:
    """A row a contender; the first line is this job, which times are held against, round by round."""
    base = lines[0]
    rows = [
        "| contender | seconds, median | min–max | messages/s | written, MiB | peak memory, MiB | time, this job = 1 |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for line in lines:
        if line.failure or not line.seconds:
            rows.append(f"| {line.name} | failed: {' '.join(line.failure.split())[:200]} | | | | | |")
            continue
        middle = median(line.seconds)
        rows.append(
            f"| {line.name} | {middle:.2f} | {min(line.seconds):.2f}–{max(line.seconds):.2f} "
            f"| {messages / middle:,.0f} | {median(line.written_bytes) / 2**20:,.0f} "
            f"| {max(line.peak_bytes) / 2**20:,.0f} | {median(ratios(line, base)):.2f} |"
        )
    return "\n".join(rows)


def ratios(line: Line, base: Line) -> list[float]:
    """How many times as long as `base` it took, round by round."""
    return [theirs / ours for theirs, ours in zip(line.seconds, base.seconds, strict=False)]


def verdicts(lines: list[Line], goals: Mapping[str, float]) -> list[str]:
    """For each family with a goal: its quickest contender's time over this job's, and whether that is enough."""
    found = []
    for family, goal in goals.items():
        best = [median(ratios(line, lines[0])) for line in lines if line.family == family and line.seconds]
        if best:
            verdict = "reached" if min(best) >= goal else "MISSED"
            found.append(f"{family}: {min(best):.2f} × this job's time (goal {goal}: {verdict})")
    return found
