"""Timelines of runs, as SVG: a box for each phase, as wide as its duration, with the duration as a title."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from api.dashboard.formats import duration, size

WIDTH, ROW_HEIGHT = 600, 18
PHASES = (
    ("snapshot", "snapshot_ms", "snapshot"),
    ("scan", "scan_ms", "scan"),
    ("phase one", "phase_one_ms", "one"),
    ("phase two", "phase_two_ms", "two"),
    ("verify and publish", "verify_ms", "publish"),
)
"""Name, key of a run's statistics, and class of the drawing, in the order of execution."""


def bar(run: Mapping[str, Any], longest_ms: int) -> Markup:
    """Draw the phases of one run; a run of `longest_ms` milliseconds is as wide as the drawing."""
    statistics: Mapping[str, Any] = run["statistics"]
    boxes: list[Markup] = []
    left = 0.0
    for name, key, kind in PHASES:
        took = int(statistics.get(key) or 0) + (int(statistics.get("publish_ms") or 0) if key == "verify_ms" else 0)
        if not took:
            continue
        width = round(max(took / max(longest_ms, 1) * WIDTH, 1), 2)
        boxes.append(
            Markup('<rect x="{}" y="2" width="{}" height="{}" class="{}"><title>{}</title></rect>').format(
                round(left, 2), width, ROW_HEIGHT - 4, kind, f"{name}: {duration(took)}"
            )
        )
        left += width
    return Markup('<svg class="timeline" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, ROW_HEIGHT, described(run), Markup("").join(boxes)
    )


def described(run: Mapping[str, Any]) -> str:
    """Return the phases and bytes of a run in words."""
    statistics: Mapping[str, Any] = run["statistics"]
    words = [f"{name} {duration(int(statistics[key]))}" for name, key, _ in PHASES if statistics.get(key)]
    for name, key in (("read", "bytes_read"), ("wrote", "bytes_written")):
        if statistics.get(key) is not None:
            words.append(f"{name} {size(int(statistics[key]))}")
    return ", ".join(words) or "no figures"


def longest_ms(runs: Sequence[Mapping[str, Any]]) -> int:
    """Return the sum of the phases, in milliseconds, of the longest run; 1 without runs."""
    return max((sum(int(run["statistics"].get(key) or 0) for _, key, _ in PHASES) for run in runs), default=1)
