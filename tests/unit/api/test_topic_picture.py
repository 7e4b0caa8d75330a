"""The picture of a topic: boxes and marks where their offsets are, with their numbers for those who cannot see them."""

from __future__ import annotations

from xml.etree import ElementTree

from api.dashboard.topic_picture import Extent, Mark, draw


def parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


def boxes(picture: ElementTree.Element, kind: str) -> list[tuple[float, float]]:
    """Left edge and width."""
    found = [box for box in picture.iter("rect") if box.get("class") == kind]
    return [(float(box.get("x", "")), float(box.get("width", ""))) for box in found]


def test_boxes_are_as_wide_as_their_offsets() -> None:
    raw = [Extent("ledger", 0, 249, "a"), Extent("ledger", 250, 499, "b"), Extent("open", 500, 999, "c")]
    picture = parsed(draw(raw, [Extent("part", 0, 499, "d", garbage=0.25)], [], 1000))
    (first, second), (opened,) = boxes(picture, "ledger"), boxes(picture, "open")
    assert first == (90, 225)
    assert second == (315, 225)
    assert opened == (540, 450)
    assert boxes(picture, "part") == [(90, 450)]
    garbage = next(box for box in picture.iter("rect") if box.get("class") == "garbage")
    assert float(garbage.get("height", "")) == 8.5


def test_marks_are_at_their_offsets_and_say_what_they_are() -> None:
    picture = parsed(draw([Extent("ledger", 0, 99, "x")], [], [Mark("horizon", 50, "the <horizon> & more")], 100))
    line = next(item for item in picture.iter("line"))
    assert (line.get("class"), float(line.get("x1", ""))) == ("horizon", 540)
    assert [item.text for item in picture.iter("title")] == ["x", "the <horizon> & more"]
    assert all(item.get("tabindex") == "0" and item.get("aria-label") for item in picture.iter("g"))


def test_a_trimmed_topic_begins_where_its_messages_do() -> None:
    picture = parsed(draw([Extent("ledger", 5_000, 5_999, "x")], [], [Mark("start", 5_000, "s")], 6_000))
    assert boxes(picture, "ledger") == [(90, 900)]


def test_an_empty_topic_has_a_picture() -> None:
    assert "0 raw ledgers" in str(parsed(draw([], [], [], 0)).get("aria-label"))


def test_a_small_ledger_beside_large_ones_can_be_seen() -> None:
    picture = parsed(draw([Extent("ledger", 0, 0, "x"), Extent("ledger", 1, 9_999_999, "y")], [], [], 10_000_000))
    assert boxes(picture, "ledger")[0][1] == 1.5
