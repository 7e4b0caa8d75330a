"""A topic drawn along its offsets, as SVG: what is raw, what is compacted, the horizon, and where the cursors stand.

    raw         a box for each sealed ledger and segment, as wide as its offsets; the open one has a dashed edge
    compacted   a box for each part of the compacted ledger; the darker share of it is garbage: superseded rows
    marks       the horizon, the first offset that can be read, the mark-delete of each cursor, readers

Every box and mark can be focused, and has its numbers as a title, which browsers and screen readers give. Pure: rows of
SQL and a manifest come in, text goes out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH = 1000
_LEFT, _RIGHT = 90, 10
_RAW_TOP, _COMPACTED_TOP, _BOX_HEIGHT = 24, 74, 34
_HEIGHT = 150
_LEAST_WIDTH = 1.5


@dataclass(frozen=True)
class Extent:
    """A box: a ledger, a segment or a part, from its first to its last offset. `garbage`: the share of its rows that no
    longer count, 0 to 1."""

    kind: str
    first: int
    last: int
    title: str
    garbage: float = 0.0


@dataclass(frozen=True)
class Mark:
    """A line at an offset."""

    kind: str
    offset: int
    title: str


def draw(raw: Sequence[Extent], compacted: Sequence[Extent], marks: Sequence[Mark], end: int) -> Markup:
    """The picture. `end`: the offset that the next message gets."""
    first = min([extent.first for extent in (*raw, *compacted)] + [mark.offset for mark in marks], default=0)
    scale = _Scale(max(first, 0), max(end, first + 1))
    rows = [
        *_labels(),
        *(_box(extent, scale, _RAW_TOP) for extent in raw),
        *(_box(extent, scale, _COMPACTED_TOP) for extent in compacted),
        *(_mark(mark, scale) for mark in marks),
        Markup('<text x="{}" y="{}" class="axis">{}</text>').format(_LEFT, _HEIGHT - 6, f"offset {scale.first:,}"),
        Markup('<text x="{}" y="{}" class="axis end">{}</text>').format(WIDTH - _RIGHT, _HEIGHT - 6, f"{scale.end:,}"),
    ]
    title = f"{len(raw)} raw ledgers and segments, {len(compacted)} compacted parts, offsets {first:,} to {end:,}"
    return Markup(
        '<svg class="picture" viewBox="0 0 {width} {height}" role="group" aria-label="{title}">{rows}</svg>'
    ).format(width=WIDTH, height=_HEIGHT, title=title, rows=Markup("").join(rows))


@dataclass(frozen=True)
class _Scale:
    first: int
    end: int

    def x(self, offset: int) -> float:
        share = (min(max(offset, self.first), self.end) - self.first) / (self.end - self.first)
        return round(_LEFT + share * (WIDTH - _LEFT - _RIGHT), 2)


def _labels() -> Iterable[Markup]:
    for name, top in (("raw", _RAW_TOP), ("compacted", _COMPACTED_TOP)):
        yield Markup('<text x="4" y="{}" class="label">{}</text>').format(top + 22, name)


def _box(extent: Extent, scale: _Scale, top: int) -> Markup:
    left = scale.x(extent.first)
    width = round(max(scale.x(extent.last + 1) - left, _LEAST_WIDTH), 2)
    box = Markup('<rect x="{}" y="{}" width="{}" height="{}" class="{}"/>')
    pieces = [box.format(left, top, width, _BOX_HEIGHT, extent.kind)]
    if extent.garbage > 0:
        height = round(_BOX_HEIGHT * min(extent.garbage, 1.0), 2)
        pieces.append(box.format(left, round(top + _BOX_HEIGHT - height, 2), width, height, "garbage"))
    return _focusable(extent.title, pieces)


def _mark(mark: Mark, scale: _Scale) -> Markup:
    x = scale.x(mark.offset)
    line = Markup('<line x1="{0}" x2="{0}" y1="{1}" y2="{2}" class="{3}"/>')
    return _focusable(mark.title, [line.format(x, _RAW_TOP - 10, _COMPACTED_TOP + _BOX_HEIGHT + 10, mark.kind)])


def _focusable(title: str, pieces: Sequence[Markup]) -> Markup:
    return Markup('<g tabindex="0" role="img" aria-label="{0}"><title>{0}</title>{1}</g>').format(
        escape(title), Markup("").join(pieces)
    )
