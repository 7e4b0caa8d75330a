"""Picture of a topic along its offsets, as SVG: messages raw, and what a compaction left of them, in one scale.

The offsets are divided into at most `SLICES` slices of equal width. Over each slice stand two columns:

    above       the raw messages of the slice; those that are not sealed yet in another colour
    below       the live rows of the compacted ledger, and on top of them its garbage: superseded rows;
                hatched after the horizon, since no compaction has read these messages yet, and in another way
                before it if the compacted ledger cannot be read
    lines       the horizon, the first offset that can be read raw, the next offset of each cursor, readers;
                the first `LABELS` of them have a label, each in a row of its own above the columns

Labels fit on a phone, by their estimated widths, and cross no line where an order of their rows permits that; they are
drawn over the lines. A wider picture has more room.

The columns are in a nested drawing whose units are slices; labels and hatch are in pixels and in percent of the width.
A slice has its numbers as a title, which browsers show, and which the script copies below the picture while the arrow
keys walk along the slices. A ledger or part that is longer than a slice is taken to be evenly filled: where it has
gaps, the numbers of its slices are estimates, and say so. Pure: from rows of SQL and a manifest to text.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from api.dashboard.formats import chart_tooltip, count

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
_PHONE = 358
"""The width of the picture on a phone, in pixels."""
_CHARACTER = 7.5
"""The estimated width of a label's character, in pixels."""
_UNREADABLE_TEXT = "cannot be read"
SEALED, UNSEALED, LIVE, GARBAGE = "ledger", "open", "part", "garbage"
"""Kinds of messages, each with its column; also the classes of the drawing."""
_WORDS = {SEALED: "sealed", UNSEALED: "not sealed", LIVE: "left by compaction", GARBAGE: "garbage"}
HORIZON, START, CURSOR, READER = "horizon", "start", "cursor", "reader"
LINES = (HORIZON, START, READER, CURSOR)
"""Kinds of lines, in the order in which they get labels."""
BEHIND, UNREADABLE = "behind", "unreadable"
_LEGEND = {
    SEALED: "raw, sealed",
    UNSEALED: "raw, not sealed yet",
    LIVE: "live rows of the compacted ledger",
    GARBAGE: "its garbage: superseded rows that no read returns, until a run rewrites their part",
    UNREADABLE: "compacted ledger that cannot be read",
    BEHIND: "not compacted yet: a compacted read returns the raw messages",
    HORIZON: "horizon: compacted up to here",
    START: "first raw offset",
    CURSOR: "subscription: all before it is acknowledged",
    READER: "connected reader: all before it is sent",
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
    """A vertical line of the picture at an offset. `title`: its text in the numbers of a slice; `label`: a shorter
    one."""

    kind: str
    offset: int
    title: str
    label: str = ""


@dataclass(frozen=True)
class Slice:
    """The messages of each kind from offset `first` to `last`, both inclusive, and the marks there. `estimated`: the
    kinds whose number is an estimate, since a ledger or part with gaps is longer than the slice."""

    first: int
    last: int
    messages: dict[str, float]
    marks: Sequence[Mark]
    estimated: frozenset[str] = frozenset()

    @property
    def text(self) -> str:
        """Return the numbers of the slice in words."""
        numbers = [
            f"{'about ' if kind in self.estimated else ''}{count(round(self.messages[kind]))} {word}"
            for kind, word in _WORDS.items()
            if self.messages[kind]
        ]
        words = [", ".join(numbers) or "nothing", *(mark.title for mark in self.marks)]
        last = f" to {count(self.last)}" if self.last > self.first else ""
        return f"Offset{'s' if last else ''} {count(self.first)}{last}: {'; '.join(words)}"

    def column_height(self, kind: str) -> float:
        """Return the height of the column of a kind of messages; few messages get a height that can be seen."""
        number = self.messages[kind]
        return max(number / (self.last - self.first + 1) * _HEIGHT, _LEAST_HEIGHT) if number else 0


@dataclass(frozen=True)
class Picture:
    """A drawing, and the offsets from `first` to before `end` that it covers.

    `texts`: the numbers of each slice in words. `offsets_per_slice`: offsets in a slice at most, the height of a full
    column. `legend`: class and word of each kind in it.
    """

    svg: Markup
    first: int
    end: int
    texts: Sequence[str]
    offsets_per_slice: int
    legend: Sequence[tuple[str, str]]

    @property
    def slice_count(self) -> int:
        """Return the number of slices of the picture."""
        return len(self.texts)


def draw_picture(
    extents: Sequence[Extent],
    marks: Sequence[Mark],
    end: int,
    horizon_end: int | None = None,
    unreadable: range = range(0),
) -> Picture:
    """Draw the picture of a topic. `end`: the offset of the next message to be appended. `horizon_end`: the offset
    after the horizon; None: it was never compacted. `unreadable`: offsets of which the compacted ledger cannot be
    read."""
    first = min([item.first for item in extents] + [max(item.offset, 0) for item in marks], default=0)
    end = max([end, first + 1] + [item.offset for item in marks])
    divided = divide_into_slices(extents, marks, first, end)
    behind = max(first, horizon_end or 0)
    unreadable = range(max(unreadable.start, first), unreadable.stop)
    texts = [
        f"{item.text}; {note}" if (note := _slice_note(item, behind, unreadable)) else item.text for item in divided
    ]
    marks = sorted(marks, key=lambda mark: LINES.index(mark.kind))
    top = _ROW * min(len(marks), LABELS)

    def percent(offset: int) -> float:
        return 100 * (offset - first) / (end - first)

    columns = Markup(
        '<svg class="columns" y="{}" width="100%" height="{}" viewBox="0 0 {} {}" preserveAspectRatio="none">{}</svg>'
    ).format(
        top,
        _PIXELS,
        len(divided),
        _BOTTOM,
        Markup("").join(
            [
                _draw_columns(LIVE, divided, lambda _: _BOTTOM),
                _draw_columns(GARBAGE, divided, lambda item: _BOTTOM - item.column_height(LIVE)),
                _draw_columns(SEALED, divided, lambda _: _HEIGHT),
                _draw_columns(UNSEALED, divided, lambda item: _HEIGHT - item.column_height(SEALED)),
                *(chart_tooltip(index, _BOTTOM, text) for index, text in enumerate(texts)),
            ]
        ),
    )
    hatched = {BEHIND: (behind, end if extents else behind), UNREADABLE: (unreadable.start, unreadable.stop)}
    hatched = {kind: (left, right) for kind, (left, right) in hatched.items() if left < right}
    placed = [_PlacedMark(mark, percent(mark.offset)) for mark in marks]
    rows = _order_label_rows(placed[:LABELS])
    pieces = [
        *(_draw_hatch(kind, top, percent(left), percent(right)) for kind, (left, right) in hatched.items()),
        columns,
        *(item.draw_line(top, top) for item in placed[LABELS:]),
        *(item.draw_line(item.line_top(row), top) for row, item in enumerate(rows)),
        *(item.draw_label(row) for row, item in enumerate(rows)),
    ]
    svg = Markup('<svg class="picture" width="100%" height="{}" role="img" aria-label="{}">{}</svg>').format(
        top + _PIXELS,
        _summary_text(extents, marks, first, end, _unreadable_text(unreadable, first, behind)),
        Markup("").join(pieces),
    )
    kinds = {item.kind for item in extents} | {mark.kind for mark in marks} | {*hatched}
    legend = [(kind, word) for kind, word in _LEGEND.items() if kind in kinds]
    widest = max(item.last - item.first + 1 for item in divided)
    return Picture(svg, first, end, texts, widest, legend)


def _unreadable_text(unreadable: range, first: int, behind: int) -> str:
    """Return how much of the compacted ledger cannot be read, in words; empty: all can."""
    if not unreadable:
        return ""
    return "the compacted ledger" if unreadable == range(first, behind) else "a part of the compacted ledger"


def _slice_note(item: Slice, behind: int, unreadable: range) -> str:
    """Return what the columns below do not show by their height: nothing is left, not compacted, or unreadable."""
    if item.first < unreadable.stop and item.last >= unreadable.start:
        return f"compacted: {_UNREADABLE_TEXT}"
    if item.first >= behind:
        return "not compacted yet"
    return "" if item.messages[LIVE] else "none left by compaction"


def _draw_hatch(kind: str, top: int, left: float, right: float) -> Markup:
    """Draw a hatch below the raw messages, from `left` to `right` in percent; with its name where that has room."""
    above = _PIXELS * (_HEIGHT + _GAP) // _BOTTOM
    hatch = Markup(
        '<defs><pattern id="hatch-{0}" width="8" height="8" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate({1})"><rect width="2" height="8" class="{0}"/></pattern></defs>'
        '<rect x="{2:.2f}%" y="{3}" width="{4:.2f}%" height="{5}" fill="url(#hatch-{0})"/>'
    ).format(kind, 45 if kind == BEHIND else -45, left, top + above, right - left, _PIXELS - above)
    if kind != UNREADABLE or right - left < _label_width_percent(_UNREADABLE_TEXT):
        return hatch
    return hatch + Markup('<text x="{:.2f}%" y="{}" text-anchor="middle" class="{}">{}</text>').format(
        (left + right) / 2, top + (above + _PIXELS) // 2, kind, _UNREADABLE_TEXT
    )


def _label_width_percent(text: str) -> float:
    """Return the estimated width of a text on a phone, in percent of the picture."""
    return 100 * len(text) * _CHARACTER / _PHONE


@dataclass(frozen=True)
class _PlacedMark:
    """A mark of the picture at the position `x`, in percent of the width."""

    mark: Mark
    x: float

    @property
    def label_text(self) -> str:
        return self.mark.label or self.mark.title

    @property
    def text_anchor(self) -> str:
        """Return the text anchor of the label, by the side of the line that has room: start, end or middle."""
        width = _label_width_percent(self.label_text)
        return "start" if self.x + width <= 100 else "end" if self.x >= width else "middle"

    def label_crosses_line_of(self, other: _PlacedMark) -> bool:
        """Return whether the label would be crossed by the line of another mark that begins above it."""
        width = _label_width_percent(self.label_text)
        left = self.x - {"start": 0, "end": width, "middle": width / 2}[self.text_anchor]
        return left < other.x < left + width and other.x != self.x

    def line_top(self, row: int) -> int:
        """Return the y coordinate at which the line of the mark begins: beside its label, or below it."""
        return _ROW * (row + 1) if self.text_anchor == "middle" else _ROW * row + 4

    def draw_label(self, row: int) -> Markup:
        """Draw the label of the mark in a row."""
        shift = {"start": 6, "end": -6, "middle": 0}[self.text_anchor]
        return Markup('<text x="{:.2f}%" dx="{}" y="{}" text-anchor="{}" class="{}">{}</text>').format(
            self.x, shift, _ROW * row + 15, self.text_anchor, self.mark.kind, self.label_text
        )

    def draw_line(self, y: int, top: int) -> Markup:
        """Draw the line of the mark from `y` to the bottom of the columns, which begin at `top`."""
        return Markup('<line x1="{0:.2f}%" x2="{0:.2f}%" y1="{1}" y2="{2}" class="{3}"/>').format(
            self.x, y, top + _PIXELS, self.mark.kind
        )


def _order_label_rows(placed: Sequence[_PlacedMark]) -> list[_PlacedMark]:
    """Return the marks in the order of their rows, from the top: a label is above the lines that it would cross."""
    rest, ordered = list(placed), list[_PlacedMark]()
    while rest:
        free = (item for item in rest if not any(other.label_crosses_line_of(item) for other in rest))
        ordered.append(next(free, rest[0]))
        rest.remove(ordered[-1])
    return ordered


def divide_into_slices(extents: Sequence[Extent], marks: Sequence[Mark], first: int, end: int) -> list[Slice]:
    """Divide the offsets from `first` to before `end` into slices with the messages of the extents."""
    number = min(SLICES, end - first)
    bounds = [first + (end - first) * index // number for index in range(number + 1)]
    counts = [dict.fromkeys(_WORDS, 0.0) for _ in range(number)]
    estimated = [set[str]() for _ in range(number)]
    for extent in extents:
        length = extent.last - extent.first + 1
        density = extent.messages / length
        index = bisect_right(bounds, extent.first) - 1
        while index < number and bounds[index] <= extent.last:
            overlap = min(extent.last + 1, bounds[index + 1]) - max(extent.first, bounds[index])
            counts[index][extent.kind] += overlap * density
            if overlap < length and extent.messages < length:
                estimated[index].add(extent.kind)
            index += 1
    places: list[list[Mark]] = [[] for _ in range(number)]
    for mark in marks:
        places[min(bisect_right(bounds, mark.offset), number) - 1].append(mark)
    return [
        Slice(bounds[index], bounds[index + 1] - 1, counts[index], places[index], frozenset(estimated[index]))
        for index in range(number)
    ]


def _draw_columns(kind: str, divided: Sequence[Slice], bottom: Callable[[Slice], float]) -> Markup:
    """Draw the columns of a kind of messages, each from its bottom upwards."""
    path = "".join(
        f"M{index} {bottom(item):.1f}v{-item.column_height(kind):.1f}h1v{item.column_height(kind):.1f}z"
        for index, item in enumerate(divided)
        if item.messages[kind]
    )
    return Markup('<path d="{}" class="{}"/>').format(path, kind)


def _summary_text(extents: Sequence[Extent], marks: Sequence[Mark], first: int, end: int, lost: str) -> str:
    totals = dict.fromkeys(_WORDS, 0)
    for item in extents:
        totals[item.kind] += item.messages
    numbers = ", ".join(f"{count(number)} {_WORDS[kind]}" for kind, number in totals.items() if number)
    return "; ".join(
        [
            f"Offsets {count(first)} to {count(end)}: {numbers or 'no messages'}",
            *([f"{lost} {_UNREADABLE_TEXT}"] if lost else []),
            *(mark.title for mark in marks[:LABELS]),
        ]
    )
