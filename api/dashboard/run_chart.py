"""Chart of a topic's newest runs, as SVG: a column for each run in three panels, the newest at the right.

    messages    in: those of the compacted ledger before, and the new ones; beside them those out
    bytes       read, beside written, as they are stored
    duration    the phases, in the order of execution from the bottom

The runs of a panel share its scale, and fill its width. A panel without a number above 0 is left out. A run that
failed, was cancelled or is active has a strip below the axis in the colour of its state. Below that stand numbers of
runs. Each column has the run's numbers as a title, which browsers show, and which the script copies below the panels
while the arrow keys walk along the runs. Pure: from the documents of runs (`api/reports.py: run_document`) to text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from api.dashboard.formats import chart_tooltip, count, duration, size, time

Run = Mapping[str, Any]
"""The document of a run."""
LEAST_COLUMNS = 12
"""The columns of a chart that has fewer runs: they are spread, and drawn as narrow as twelve."""
_HEIGHT = 100
_HIGHEST = 95
"""The height of the highest column; the rest is for small numbers that are drawn higher than they are."""
_STRIP = 6
"""The height of the strip that marks the state of a run."""
_LEAST_HEIGHT = 1
_FILLED = 0.8
"""The share of its place, which is 1 wide, that a column fills at most."""
_NUMBERED = 6
"""The runs that have their number below the axis at most."""
MARKED = ("ERROR", "CANCELLED", "RUNNING")
"""States that the chart marks."""
ENDED_EARLY = ("ERROR", "CANCELLED")


@dataclass(frozen=True)
class RunQuantity:
    """A number of a run that the chart draws. `css_class`: of its drawing; `label`: its name in the legend."""

    css_class: str
    label: str
    value: Callable[[Run], int]


@dataclass(frozen=True)
class PanelScheme:
    """The content of a panel: stacks side by side, each of quantities one on another. `format_number`: formats
    one of its numbers."""

    title: str
    format_number: Callable[[int], str]
    stacks: Sequence[Sequence[RunQuantity]]


@dataclass(frozen=True)
class Panel:
    """A drawn panel. `highest`: the number at the top of its scale. `legend`: class and word of each quantity."""

    title: str
    highest: str
    svg: Markup
    legend: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class RunChart:
    """The chart of a topic's runs. `axis`: numbers of runs, drawn below each panel. `texts`: the numbers of each run in
    words, the oldest first. `marks`: the states that are marked in it."""

    panels: Sequence[Panel]
    axis: Markup
    texts: Sequence[str]
    marks: Sequence[str]


@dataclass(frozen=True)
class EarlyEndReason:
    """A reason for which runs ended early; numbers in it may differ.

    `run_count`: the number of these runs; `newest_run`: the number of the newest; `last_at`: when it ended, in
    milliseconds; `error`: its reason.
    """

    state: str
    error: str
    run_count: int
    newest_run: int
    last_at: int | None


def _statistics_sum(*names: str) -> Callable[[Run], int]:
    """Return the function that sums the statistics of these names of a run; a missing one counts as 0."""
    return lambda run: sum(int(run["statistics"].get(name) or 0) for name in names)


def messages_in_and_out(run: Run) -> tuple[int | None, int | None]:
    """Return the messages that a run read, compacted and new, and those that it left; None: it has not counted them."""
    if "messages_out" not in run["statistics"]:
        return None, None
    return BEFORE.value(run) + NEW.value(run), OUT.value(run)


def run_duration(run: Run) -> int | None:
    """Return the duration of a run in milliseconds; None: it is active."""
    return None if run["finished_at"] is None else max(run["finished_at"] - run["started_at"], 0)


def _failed_run_duration(run: Run) -> int:
    """Return the duration of a run that failed or was cancelled, in milliseconds; 0 for any other run."""
    return (run_duration(run) or 0) if run["state"] in ENDED_EARLY else 0


PHASES = (
    RunQuantity("snapshot", "snapshot", _statistics_sum("snapshot_ms")),
    RunQuantity("scan", "scan", _statistics_sum("scan_ms")),
    RunQuantity("one", "phase one", _statistics_sum("phase_one_ms")),
    RunQuantity("two", "phase two", _statistics_sum("phase_two_ms")),
    RunQuantity("publish", "verify and publish", _statistics_sum("verify_ms", "publish_ms")),
)
BEFORE = RunQuantity("before", "in, from the compacted ledger", _statistics_sum("messages_before"))
NEW = RunQuantity("new", "in, new", _statistics_sum("messages_in"))
OUT = RunQuantity("out", "out", _statistics_sum("messages_out"))
READ = RunQuantity("new", "read", _statistics_sum("bytes_read"))
WRITTEN = RunQuantity("out", "written", _statistics_sum("bytes_written"))
PANELS = (
    PanelScheme("Messages", count, ((BEFORE, NEW), (OUT,))),
    PanelScheme("Stored bytes", size, ((READ,), (WRITTEN,))),
    PanelScheme("Duration", duration, ((*PHASES, RunQuantity("vain", "without a result", _failed_run_duration)),)),
)


def draw_chart(runs: Sequence[Run]) -> RunChart:
    """Draw the chart of a topic's runs. `runs`: the newest first."""
    oldest_first = list(reversed(runs))
    texts = [run_text(run) for run in oldest_first]
    marks = [state for state in MARKED if any(run["state"] == state for run in runs)]
    panels = [panel for scheme in PANELS if (panel := _draw_panel(scheme, oldest_first, texts)) is not None]
    return RunChart(panels, _draw_axis(oldest_first), texts, marks)


def run_text(run: Run) -> str:
    """Return the numbers of a run in words: state, start, messages, bytes and duration of its phases."""
    ended = run_duration(run)
    words = [f"Run {run['run']}, {run['state'].lower()}, {time(run['started_at'])}"]
    if "messages_out" in run["statistics"]:
        words.append(
            f"{count(NEW.value(run))} new and {count(BEFORE.value(run))} compacted messages in, "
            f"{count(OUT.value(run))} out"
        )
    if "bytes_read" in run["statistics"]:
        words.append(f"{size(READ.value(run))} read, {size(WRITTEN.value(run))} written")
    phases = ", ".join(f"{phase.label} {duration(phase.value(run))}" for phase in PHASES if phase.value(run))
    if ended is not None:
        words.append(f"took {duration(ended)}{': ' if phases else ''}{phases}")
    return "; ".join(words)


def early_end_reasons(runs: Sequence[Run]) -> list[EarlyEndReason]:
    """Return the reasons why runs failed or were cancelled, each once, that of the newest run first.

    `runs`: the newest first.
    """
    reasons: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        if run["state"] in ENDED_EARLY:
            reasons.setdefault((run["state"], re.sub(r"\d+", "#", run["error"] or "")), []).append(run)
    return [
        EarlyEndReason(state, each[0]["error"] or "", len(each), each[0]["run"], each[0]["finished_at"])
        for (state, _), each in reasons.items()
    ]


def _draw_panel(scheme: PanelScheme, runs: Sequence[Run], texts: Sequence[str]) -> Panel | None:
    """Draw a panel of the chart; None: all its numbers are 0."""
    quantities = [item for stack in scheme.stacks for item in stack]
    highest = max((sum(item.value(run) for item in stack) for run in runs for stack in scheme.stacks), default=0)
    if not highest:
        return None
    share = min(len(runs) / LEAST_COLUMNS, 1)
    paths = {item.css_class: "" for item in quantities}
    for index, run in enumerate(runs):
        for kind, box in _column_paths(scheme, index, run, highest, _FILLED * share):
            paths[kind] += box
    pieces = [
        Markup('<path d="M0 {}h{}" class="axis"/>').format(_HEIGHT, len(runs)),
        *(_draw_state_strip(index, run, share) for index, run in enumerate(runs) if run["state"] in MARKED),
        *(Markup('<path d="{}" class="{}"/>').format(path, kind) for kind, path in paths.items()),
        *(chart_tooltip(index, _HEIGHT + _STRIP, text) for index, text in enumerate(texts)),
    ]
    svg = Markup(
        '<svg class="panel" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
    ).format(
        len(runs),
        _HEIGHT + _STRIP,
        f"{scheme.title} of {len(runs)} compactions, at most {scheme.format_number(highest)}",
        Markup("").join(pieces),
    )
    legend = {item.css_class: item.label for item in quantities if any(item.value(run) for run in runs)}
    return Panel(scheme.title, scheme.format_number(highest), svg, list(legend.items()))


def _column_paths(scheme: PanelScheme, index: int, run: Run, highest: int, filled: float) -> Iterator[tuple[str, str]]:
    """Yield the boxes of a run's column as SVG paths, each with its CSS class; a small number is drawn high enough to
    be seen. `filled`: the share of its place that the column fills."""
    width = filled / len(scheme.stacks)
    for number, stack in enumerate(scheme.stacks):
        left, bottom = index + (1 - filled) / 2 + number * width, float(_HEIGHT)
        for item in stack:
            if amount := item.value(run):
                height = max(amount / highest * _HIGHEST, _LEAST_HEIGHT)
                yield item.css_class, f"M{left:.2f} {bottom:.1f}v{-height:.1f}h{width:.2f}v{height:.1f}z"
                bottom -= height


def _draw_state_strip(index: int, run: Run, width: float) -> Markup:
    """Draw the strip below the axis that marks a run that has not succeeded."""
    return Markup('<rect x="{:.2f}" y="{}" width="{:.2f}" height="{}" class="strip {}"/>').format(
        index + (1 - width) / 2, _HEIGHT, width, _STRIP, run["state"].lower()
    )


def _draw_axis(runs: Sequence[Run]) -> Markup:
    """Draw the numbers of runs at equal distances, that of the newest run always."""
    step = max(1, -(-len(runs) // _NUMBERED))
    numbers = [
        Markup('<text x="{:.2f}%" y="12" text-anchor="middle">{}</text>').format(
            100 * (index + 0.5) / len(runs), run["run"]
        )
        for index, run in enumerate(runs)
        if (len(runs) - 1 - index) % step == 0
    ]
    return Markup('<svg class="axis" width="100%" height="16" aria-hidden="true">{}</svg>').format(
        Markup("").join(numbers)
    )
