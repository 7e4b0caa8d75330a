"""The picture of a topic: messages raw and compacted over their offsets, in one scale, with their numbers."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from api.dashboard.topic_picture import (
    BEHIND,
    CURSOR,
    GARBAGE,
    HORIZON,
    LIVE,
    READER,
    SEALED,
    START,
    UNREADABLE,
    UNSEALED,
    Extent,
    Mark,
    divide_into_slices,
    draw_picture,
)


def heights(svg: str, kind: str) -> dict[int, float]:
    """Return the heights of a kind's columns, by slice."""
    (path,) = (item for item in ElementTree.fromstring(svg).iter("path") if item.get("class") == kind)
    return {int(x): float(height) for x, height in re.findall(r"M(\d+) [\d.]+v-([\d.]+)", path.get("d", ""))}


def hatched(svg: str, kind: str) -> list[tuple[str | None, str | None]]:
    """Return left edge and width of what a hatch fills."""
    boxes = ElementTree.fromstring(svg).iter("rect")
    return [(box.get("x"), box.get("width")) for box in boxes if box.get("fill") == f"url(#hatch-{kind})"]


def titles(svg: str) -> list[str]:
    return [str(item.text) for item in ElementTree.fromstring(svg).iter("title")]


def test_what_compaction_left_is_drawn_in_the_scale_of_raw() -> None:
    extents = [Extent(SEALED, 0, 23_999, 24_000), Extent(LIVE, 0, 19_999, 5_000), Extent(GARBAGE, 0, 19_999, 1_000)]
    picture = draw_picture(extents, [], 24_000, 20_000)
    raw, live, garbage = (heights(picture.svg, kind) for kind in (SEALED, LIVE, GARBAGE))
    assert picture.slice_count == len(raw) == 200
    assert set(raw.values()) == {100}
    assert (live[0], garbage[0]) == (25, 5)
    assert 166 in live
    assert 167 not in live
    assert titles(picture.svg)[0] == "Offsets 0 to 119: 120 sealed, about 30 left by compaction, about 6 garbage"
    assert titles(picture.svg)[199] == "Offsets 23,880 to 23,999: 120 sealed; not compacted yet"


def test_a_number_is_exact_where_a_part_is_in_one_slice_or_has_no_gaps() -> None:
    extents = [Extent(SEALED, 0, 399, 400), Extent(LIVE, 0, 1, 1), Extent(LIVE, 2, 9, 8), Extent(LIVE, 10, 13, 2)]
    assert titles(draw_picture(extents, [], 400, 400).svg)[:7] == [
        "Offsets 0 to 1: 2 sealed, 1 left by compaction",
        *(f"Offsets {first} to {first + 1}: 2 sealed, 2 left by compaction" for first in (2, 4, 6, 8)),
        *(f"Offsets {first} to {first + 1}: 2 sealed, about 1 left by compaction" for first in (10, 12)),
    ]


@pytest.mark.parametrize("end", [1, 7, 199, 200, 201, 12_345])
def test_slices_have_each_message_once(end: int) -> None:
    extents = [Extent(SEALED, 0, end // 2, end // 2 + 1), Extent(UNSEALED, end // 2 + 1, end - 1, end - end // 2 - 1)]
    divided = divide_into_slices([item for item in extents if item.messages], [], 0, end)
    assert len(divided) == min(end, 200)
    assert [item.first for item in divided[1:]] == [item.last + 1 for item in divided[:-1]]
    assert (divided[0].first, divided[-1].last) == (0, end - 1)
    assert sum(sum(item.messages.values()) for item in divided) == pytest.approx(end)


def test_marks_are_at_their_offsets_and_in_the_numbers_of_their_slices() -> None:
    marks = [Mark(CURSOR, 100, "y"), Mark(HORIZON, 50, "the <horizon> & more", "up to 49")]
    picture = draw_picture([Extent(SEALED, 0, 99, 100)], marks, 100, 50)
    root = ElementTree.fromstring(picture.svg)
    assert [(line.get("class"), line.get("x1")) for line in root.iter("line")] == [
        (HORIZON, "50.00%"),
        (CURSOR, "100.00%"),
    ]
    labels = [(label.text, label.get("text-anchor"), label.get("y")) for label in root.iter("text")]
    assert labels == [("up to 49", "start", "15"), ("y", "end", "35")]
    assert titles(picture.svg)[50] == "Offset 50: 1 sealed; the <horizon> & more; not compacted yet"
    assert titles(picture.svg)[99] == "Offset 99: 1 sealed; y; not compacted yet"
    assert str(root.get("aria-label")).endswith("; the <horizon> & more; y")


def test_some_lines_have_labels_and_all_are_drawn() -> None:
    marks = [Mark(CURSOR, number, f"s{number}") for number in range(20)] + [Mark(HORIZON, 9, "h")]
    root = ElementTree.fromstring(draw_picture([Extent(SEALED, 0, 99, 100)], marks, 100, 9).svg)
    assert len(list(root.iter("line"))) == 21
    assert [label.text for label in root.iter("text")] == ["h", "s0", "s1", "s2", "s3", "s4"]


@pytest.mark.parametrize(
    ("horizon_end", "hatch"), [(None, ("0.00%", "100.00%")), (80, ("80.00%", "20.00%")), (100, None)]
)
def test_messages_that_no_compaction_has_read_are_hatched(
    horizon_end: int | None, hatch: tuple[str, str] | None
) -> None:
    picture = draw_picture([Extent(SEALED, 0, 99, 100)], [], 100, horizon_end)
    assert hatched(picture.svg, BEHIND) == ([] if hatch is None else [hatch])
    assert (BEHIND in dict(picture.legend)) is (hatch is not None)
    notes = [text.partition("; ")[2] for text in picture.texts]
    assert notes == ["none left by compaction"] * (horizon_end or 0) + ["not compacted yet"] * (
        100 - (horizon_end or 0)
    )


def test_a_compacted_ledger_that_cannot_be_read_is_not_drawn_as_removed_messages() -> None:
    picture = draw_picture([Extent(SEALED, 0, 99, 100)], [], 100, 80, range(80))
    root = ElementTree.fromstring(picture.svg)
    assert hatched(picture.svg, UNREADABLE) == [("0.00%", "80.00%")]
    assert hatched(picture.svg, BEHIND) == [("80.00%", "20.00%")]
    assert [label.text for label in root.iter("text")] == ["cannot be read"]
    assert str(root.get("aria-label")).endswith("; the compacted ledger cannot be read")
    assert (UNREADABLE, "compacted ledger that cannot be read") in picture.legend
    assert picture.texts[79:81] == [
        "Offset 79: 1 sealed; compacted: cannot be read",
        "Offset 80: 1 sealed; not compacted yet",
    ]


PHONE = 358
"""The width of a picture on a phone."""


def extents_of_labels(root: ElementTree.Element) -> dict[str, tuple[float, float, float]]:
    """Return the left and right end and the row of each label on a phone, in pixels."""
    extents = {}
    for label in root.iter("text"):
        x, width = float(label.get("x", "")[:-1]) * PHONE / 100, 7.5 * len(str(label.text))
        left = x - {"start": 0, "end": width, "middle": width / 2}[label.get("text-anchor", "")]
        extents[label.get("class", "")] = left, left + width, float(label.get("y", ""))
    return extents


def test_no_line_crosses_a_label_on_a_phone() -> None:
    """The marks of the picture that the docs show: the line of the reader crossed the label of the subscription."""
    marks = [
        Mark(HORIZON, 20_000, "", "compacted up to 19,999"),
        Mark(READER, 9_183, "", "reader cache at 9,183"),
        Mark(CURSOR, 400, "", "crm-sync at 400"),
    ]
    root = ElementTree.fromstring(draw_picture([Extent(SEALED, 0, 24_299, 24_300)], marks, 24_300, 20_000).svg)
    for kind, (left, right, y) in extents_of_labels(root).items():
        above = [line for line in root.iter("line") if line.get("class") != kind and float(line.get("y1", "")) < y]
        assert [line for line in above if left < float(line.get("x1", "")[:-1]) * PHONE / 100 < right] == []


@pytest.mark.parametrize("offset", range(0, 101, 10))
def test_no_label_is_cut_off_on_a_phone(offset: int) -> None:
    marks = [Mark(READER, offset, "", "reader a-name-of-tw… at 12,000")]
    root = ElementTree.fromstring(draw_picture([Extent(SEALED, 0, 99, 100)], marks, 100, 100).svg)
    ((left, right, _),) = extents_of_labels(root).values()
    assert -10 <= left < right <= PHONE + 10


def test_the_legend_has_what_the_picture_has() -> None:
    marks = [Mark(READER, 5, "r")]
    picture = draw_picture([Extent(SEALED, 0, 99, 100), Extent(LIVE, 0, 99, 5)], marks, 100, 100)
    assert [kind for kind, _ in picture.legend] == [SEALED, LIVE, READER]
    assert (picture.offsets_per_slice, picture.texts[0]) == (1, titles(picture.svg)[0])


def test_a_trimmed_topic_begins_where_its_messages_do() -> None:
    picture = draw_picture([Extent(SEALED, 5_000, 5_999, 1_000)], [Mark(START, 5_000, "s")], 6_000)
    assert (picture.first, picture.end) == (5_000, 6_000)
    assert len(heights(picture.svg, SEALED)) == 200


def test_an_empty_topic_has_a_picture() -> None:
    picture = draw_picture([], [], 0)
    assert picture.slice_count == 1
    assert "no messages" in str(ElementTree.fromstring(picture.svg).get("aria-label"))


def test_few_messages_among_many_offsets_can_be_seen() -> None:
    extents = [Extent(SEALED, 0, 9_999_999, 10_000_000), Extent(LIVE, 0, 9_999_999, 2)]
    assert set(heights(draw_picture(extents, [], 10_000_000).svg, LIVE).values()) == {1}
