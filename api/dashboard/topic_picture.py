"""Picture of a topic along its offsets, as SVG: messages raw, and what a compaction left of them, in one scale.

The offsets are divided into at most `SLICES` slices of equal width. Over each slice stand two columns:

    above       the raw messages of the slice; those that are not sealed yet in another colour
    below       the live rows of the compacted ledger, and on top of them its garbage: superseded rows;
                hatched after the horizon, since no compaction has read these messages yet
    lines       the horizon, the first offset that can be read raw, the next offset of each cursor, readers;
                the first `LABELS` of them have a label, each in a row of its own above the columns

The columns are in a nested drawing whose units are slices; labels and hatch are in pixels and in percent of the width.
A slice has its numbers as a title, which browsers show, and which the script copies below the picture while the arrow
keys walk along the slices. A ledger or part that is longer than a slice is taken to be evenly filled. Pure: from
rows of SQL and a manifest to text.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from api.dashboard.formats import chart_slice, count

SLICES = 200
LABELS = 6
"""The number of labels at most; the titles of the slices name all lines."""
_HEIGHT = 100
"""The height of a column whose offsets all have a message."""
_LEAST_HEIGHT = 1
_GAP = 8
_BOTTOM = 2 * _HEIGHT + _GAP
_PIXELS = 224
"""The height of the columns on the page."""
_ROW = 20
"""The height of a label's row, in pixels."""
SEALED, UNSEALED, LIVE, GARBAGE = "ledger", "open", "part", "garbage"
"""Kinds of messages, each with its column; also the classes of the drawing."""
_WORDS = {SEALED: "sealed", UNSEALED: "not sealed", LIVE: "live", GARBAGE: "garbage"}
HORIZON, START, CURSOR, READER = "horizon", "start", "cursor", "reader"
LINES = (HORIZON, START, READER, CURSOR)
"""Kinds of lines, in the order in which they get labels."""
BEHIND = "behind"
_LEGEND = {
    SEALED: "raw, sealed",
    UNSEALED: "raw, not sealed yet",
    LIVE: "compacted, live",
    GARBAGE: "compacted, garbage",
    BEHIND: "not compacted yet",
    HORIZON: "horizon of the compaction",
    START: "first raw offset",
    CURSOR: "next of a subscription",
    READER: "reader connected here",
}


@dataclass(frozen=True)
class Extent:
    """Messages of one kind between two offsets, both inclusive."""

    kind: str
    first: int
    last: int
    messages: int


@dataclass(frozen=True)
class Mark:
    """A line at an offset, with its text in the numbers of the slice and its shorter label."""

    kind: str
    offset: int
    title: str
    label: str = ""


@dataclass(frozen=True)
class Slice:
    """The messages of each kind from offset `first` to `last`, both inclusive, and the marks there."""

    first: int
    last: int
    messages: dict[str, float]
    marks: Sequence[Mark]

    @property
    def text(self) -> str:
        """Return its numbers in words."""
        numbers = [
            f"{count(round(self.messages[kind]))} {word}" for kind, word in _WORDS.items() if self.messages[kind]
        ]
        words = [", ".join(numbers) or "nothing", *(mark.title for mark in self.marks)]
        return f"Offsets {count(self.first)} to {count(self.last)}: {'; '.join(words)}"

    def height(self, kind: str) -> float:
        """Return the height of a kind's column; a few messages can be seen, too."""
        number = self.messages[kind]
        return max(number / (self.last - self.first + 1) * _HEIGHT, _LEAST_HEIGHT) if number else 0


@dataclass(frozen=True)
class Picture:
    """A drawing, and the offsets from `first` to before `end` that it covers.

    `texts`: the numbers of each slice in words. `slice_offsets`: offsets in a slice at most, the height of a full
    column. `legend`: class and word of each kind in it.
    """

    svg: Markup
    first: int
    end: int
    texts: Sequence[str]
    slice_offsets: int
    legend: Sequence[tuple[str, str]]

    @property
    def slices(self) -> int:
        """Return the number of slices."""
        return len(self.texts)


def draw(extents: Sequence[Extent], marks: Sequence[Mark], end: int, horizon_end: int | None = None) -> Picture:
    """Draw a topic. `end`: the offset of the next message to be appended. `horizon_end`: the offset after the horizon;
    None: it was never compacted."""
    first = min([item.first for item in extents] + [max(item.offset, 0) for item in marks], default=0)
    end = max([end, first + 1] + [item.offset for item in marks])
    divided = slices(extents, marks, first, end)
    behind = max(first, horizon_end or 0)
    marks = sorted(marks, key=lambda mark: LINES.index(mark.kind))
    top = _ROW * min(len(marks), LABELS)
    columns = Markup(
        '<svg class="columns" y="{}" width="100%" height="{}" viewBox="0 0 {} {}" preserveAspectRatio="none">{}</svg>'
    ).format(
        top,
        _PIXELS,
        len(divided),
        _BOTTOM,
        Markup("").join(
            [
                _columns(LIVE, divided, lambda _: _BOTTOM),
                _columns(GARBAGE, divided, lambda item: _BOTTOM - item.height(LIVE)),
                _columns(SEALED, divided, lambda _: _HEIGHT),
                _columns(UNSEALED, divided, lambda item: _HEIGHT - item.height(SEALED)),
                *(chart_slice(index, _BOTTOM, item.text) for index, item in enumerate(divided)),
            ]
        ),
    )
    pieces = [
        _hatch(top, 100 * (behind - first) / (end - first)) if behind < end and extents else Markup(""),
        columns,
        *(_line(mark, row, 100 * (mark.offset - first) / (end - first), top) for row, mark in enumerate(marks)),
    ]
    svg = Markup('<svg class="picture" width="100%" height="{}" role="img" aria-label="{}">{}</svg>').format(
        top + _PIXELS, _summary(extents, marks, first, end), Markup("").join(pieces)
    )
    kinds = {item.kind for item in extents} | {mark.kind for mark in marks}
    if behind < end and extents:
        kinds.add(BEHIND)
    legend = [(kind, word) for kind, word in _LEGEND.items() if kind in kinds]
    widest = max(item.last - item.first + 1 for item in divided)
    return Picture(svg, first, end, [item.text for item in divided], widest, legend)


def _hatch(top: int, left: float) -> Markup:
    """Draw the hatch below the messages that no compaction has read. `left`: where it begins, in percent."""
    above = _PIXELS * (_HEIGHT + _GAP) // _BOTTOM
    return Markup(
        '<defs><pattern id="hatch" width="8" height="8" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect width="2" height="8" class="behind"/></pattern></defs>'
        '<rect x="{:.2f}%" y="{}" width="{:.2f}%" height="{}" fill="url(#hatch)"/>'
    ).format(left, top + above, 100 - left, _PIXELS - above)


def _line(mark: Mark, row: int, x: float, top: int) -> Markup:
    """Draw a line over the columns, with its label at the side that has more room. `x`: in percent."""
    is_labelled = row < LABELS
    line = Markup('<line x1="{0:.2f}%" x2="{0:.2f}%" y1="{1}" y2="{2}" class="{3}"/>').format(
        x, _ROW * row + 4 if is_labelled else top, top + _PIXELS, mark.kind
    )
    if not is_labelled:
        return line
    anchor, shift = ("start", 6) if x < 50 else ("end", -6)
    text = Markup('<text x="{:.2f}%" dx="{}" y="{}" text-anchor="{}" class="{}">{}</text>')
    return line + text.format(x, shift, _ROW * row + 15, anchor, mark.kind, mark.label or mark.title)


def slices(extents: Sequence[Extent], marks: Sequence[Mark], first: int, end: int) -> list[Slice]:
    """Divide the offsets from `first` to before `end` into slices with the messages of the extents."""
    number = min(SLICES, end - first)
    bounds = [first + (end - first) * index // number for index in range(number + 1)]
    counts = [dict.fromkeys(_WORDS, 0.0) for _ in range(number)]
    for extent in extents:
        density = extent.messages / (extent.last - extent.first + 1)
        index = bisect_right(bounds, extent.first) - 1
        while index < number and bounds[index] <= extent.last:
            overlap = min(extent.last + 1, bounds[index + 1]) - max(extent.first, bounds[index])
            counts[index][extent.kind] += overlap * density
            index += 1
    places: list[list[Mark]] = [[] for _ in range(number)]
    for mark in marks:
        places[min(bisect_right(bounds, mark.offset), number) - 1].append(mark)
    return [Slice(bounds[index], bounds[index + 1] - 1, counts[index], places[index]) for index in range(number)]


def _columns(kind: str, divided: Sequence[Slice], bottom: Callable[[Slice], float]) -> Markup:
    """Draw the columns of a kind, each from its bottom upwards."""
    path = "".join(
        f"M{index} {bottom(item):.1f}v{-item.height(kind):.1f}h1v{item.height(kind):.1f}z"
        for index, item in enumerate(divided)
        if item.messages[kind]
    )
    return Markup('<path d="{}" class="{}"/>').format(path, kind)


def _summary(extents: Sequence[Extent], marks: Sequence[Mark], first: int, end: int) -> str:
    totals = dict.fromkeys(_WORDS, 0)
    for item in extents:
        totals[item.kind] += item.messages
    numbers = ", ".join(f"{count(number)} {_WORDS[kind]}" for kind, number in totals.items() if number)
    return "; ".join(
        [
            f"Offsets {count(first)} to {count(end)}: {numbers or 'no messages'}",
            *(mark.title for mark in marks[:LABELS]),
        ]
    )
