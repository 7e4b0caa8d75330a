"""Picture of a topic along its offsets, as SVG: messages raw, and what a compaction left of them, in one scale.

The offsets are divided into at most `SLICES` slices of equal width. Over each slice stand two columns:

    above       the raw messages of the slice; those that are not sealed yet in another colour
    below       the live rows of the compacted ledger, and on top of them its garbage: superseded rows
    lines       the horizon, the first offset that can be read raw, the next offset of each cursor, readers

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
_HEIGHT = 100
"""The height of a column whose offsets all have a message."""
_LEAST_HEIGHT = 1
_GAP = 8
_BOTTOM = 2 * _HEIGHT + _GAP
SEALED, UNSEALED, LIVE, GARBAGE = "ledger", "open", "part", "garbage"
"""Kinds of messages, each with its column; also the classes of the drawing."""
_WORDS = {SEALED: "sealed", UNSEALED: "not sealed", LIVE: "live", GARBAGE: "garbage"}


@dataclass(frozen=True)
class Extent:
    """Messages of one kind between two offsets, both inclusive."""

    kind: str
    first: int
    last: int
    messages: int


@dataclass(frozen=True)
class Mark:
    """A line at an offset."""

    kind: str
    offset: int
    title: str


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
    """A drawing, and the offsets from `first` to before `end` that it covers. `slices`: their number."""

    svg: Markup
    first: int
    end: int
    slices: int


def draw(extents: Sequence[Extent], marks: Sequence[Mark], end: int) -> Picture:
    """Draw a topic. `end`: the offset of the next message to be appended."""
    first = min([item.first for item in extents] + [max(item.offset, 0) for item in marks], default=0)
    end = max([end, first + 1] + [item.offset for item in marks])
    divided = slices(extents, marks, first, end)
    pieces = [
        _columns(LIVE, divided, lambda _: _BOTTOM),
        _columns(GARBAGE, divided, lambda item: _BOTTOM - item.height(LIVE)),
        _columns(SEALED, divided, lambda _: _HEIGHT),
        _columns(UNSEALED, divided, lambda item: _HEIGHT - item.height(SEALED)),
        *(_line(mark, (mark.offset - first) / (end - first) * len(divided)) for mark in marks),
        *(chart_slice(index, _BOTTOM, item.text) for index, item in enumerate(divided)),
    ]
    svg = Markup(
        '<svg class="picture" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
    ).format(len(divided), _BOTTOM, _summary(extents, first, end), Markup("").join(pieces))
    return Picture(svg, first, end, len(divided))


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


def _line(mark: Mark, x: float) -> Markup:
    return Markup('<line x1="{0:.2f}" x2="{0:.2f}" y1="0" y2="{1}" class="{2}"/>').format(x, _BOTTOM, mark.kind)


def _summary(extents: Sequence[Extent], first: int, end: int) -> str:
    totals = dict.fromkeys(_WORDS, 0)
    for item in extents:
        totals[item.kind] += item.messages
    numbers = ", ".join(f"{count(number)} {_WORDS[kind]}" for kind, number in totals.items() if number)
    return f"Offsets {count(first)} to {count(end)}: {numbers or 'no messages'}"
