"""Report of a sitting: one Markdown table, and a verdict per goal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median


@dataclass
class Line:
    """Figures of one contender by round, or its `failure`. `remark`: its own figures of the last round."""

    name: str
    family: str
    seconds: list[float] = field(default_factory=list)
    written_bytes: list[int] = field(default_factory=list)
    peak_bytes: list[int] = field(default_factory=list)
    remark: str = ""
    failure: str = ""


def markdown(lines: list[Line], messages: int) -> str:
    """Return a table with a row per contender. The first line is this job, the base of the ratios."""
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
    """Return the ratio of the line's time to that of `base`, round by round."""
    return [seconds / base_seconds for seconds, base_seconds in zip(line.seconds, base.seconds, strict=False)]


def verdicts(lines: list[Line], goals: Mapping[str, float]) -> list[str]:
    """Return a sentence per family with a goal: the ratio of its fastest contender, and the verdict."""
    sentences = []
    for family, goal in goals.items():
        best = [median(ratios(line, lines[0])) for line in lines if line.family == family and line.seconds]
        if best:
            verdict = "reached" if min(best) >= goal else "MISSED"
            sentences.append(f"{family}: {min(best):.2f} × this job's time (goal {goal}: {verdict})")
    return sentences
