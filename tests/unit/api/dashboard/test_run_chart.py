"""The chart of runs: a column for each in three panels, numbers in words, and reasons of those that ended early."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import pytest

from api.dashboard.run_chart import (
    LEAST_COLUMNS,
    EarlyEndReason,
    Panel,
    draw_chart,
    early_end_reasons,
    messages_in_and_out,
    run_text,
)

STATISTICS = {
    "messages_before": 5_000,
    "messages_in": 4_000,
    "messages_out": 4_500,
    "bytes_read": 2_048,
    "bytes_written": 1_024,
    "snapshot_ms": 100,
    "phase_one_ms": 400,
    "phase_two_ms": 400,
    "verify_ms": 60,
    "publish_ms": 40,
}


def run(number: int, state: str = "SUCCESS", error: str | None = None, **statistics: int) -> dict[str, Any]:
    """Return the document of a run that began at second `number` and took a second."""
    return {
        "run": number,
        "state": state,
        "cause": "manual",
        "started_at": number * 1000,
        "finished_at": None if state == "RUNNING" else number * 1000 + 1000,
        "error": error,
        "statistics": statistics,
    }


def success(number: int, **changes: int) -> dict[str, Any]:
    return run(number, **{**STATISTICS, **changes})


def panels(*runs: dict[str, Any]) -> dict[str, Panel]:
    """Return the panels of runs, the newest first, by title."""
    return {panel.title: panel for panel in draw_chart(runs).panels}


def boxes(panel: Panel, kind: str) -> list[tuple[float, float, float]]:
    """Return left side, bottom and height of the boxes of a kind."""
    paths = [item for item in ElementTree.fromstring(panel.svg).iter("path") if item.get("class") == kind]
    return [
        (float(left), float(bottom), float(height))
        for path in paths
        for left, bottom, height in re.findall(r"M([\d.]+) ([\d.]+)v-([\d.]+)", path.get("d", ""))
    ]


def test_a_run_has_its_messages_in_beside_those_it_left() -> None:
    messages = panels(success(1))["Messages"]
    ((left, bottom, before),) = boxes(messages, "before")
    ((same_left, above, new),) = boxes(messages, "new")
    ((right, _, out),) = boxes(messages, "out")
    assert messages.highest == "9,000"
    assert (left, bottom) == (same_left, 100)
    assert above == pytest.approx(bottom - before, abs=0.1)
    assert new / before == pytest.approx(4 / 5, abs=0.01)
    assert out == pytest.approx((before + new) / 2, abs=0.1)
    assert right > left


def test_runs_share_the_scale_of_a_panel_and_the_newest_is_at_the_right() -> None:
    panel = panels(success(2, bytes_read=1_024), success(1))["Stored bytes"]
    (first, _, high), (second, _, low) = boxes(panel, "new")
    assert first < second
    assert low == pytest.approx(high / 2, abs=0.1)
    assert panel.highest == "2.0 KiB"


def test_phases_are_stacked_up_to_the_top_of_the_panel() -> None:
    duration = panels(success(1))["Duration"]
    drawn = [boxes(duration, kind)[0] for kind in ("snapshot", "one", "two", "publish")]
    assert sum(height for _, _, height in drawn) == pytest.approx(95, abs=0.5)
    assert [bottom for _, bottom, _ in drawn] == sorted((bottom for _, bottom, _ in drawn), reverse=True)
    assert [word for _, word in duration.legend][-1] == "verify and publish"


def test_a_failed_run_is_marked_and_its_duration_drawn() -> None:
    runs = run(3, "RUNNING"), run(2, "ERROR", "lost"), success(1)
    assert draw_chart(runs).marks == ["ERROR", "RUNNING"]
    drawn = panels(*runs)
    for panel in drawn.values():
        rects = list(ElementTree.fromstring(panel.svg).iter("rect"))
        marks = [(item.get("class"), int(float(item.get("x", "")))) for item in rects if item.get("class") != "slice"]
        assert marks == [("strip error", 1), ("strip running", 2)]
    assert boxes(drawn["Duration"], "vain")[0][2] == pytest.approx(95, abs=0.5)


@pytest.mark.parametrize("number", [0, 1, LEAST_COLUMNS, 50])
def test_each_run_has_a_column_with_its_numbers(number: int) -> None:
    drawn = draw_chart([success(item) for item in range(number, 0, -1)])
    for panel in drawn.panels:
        root = ElementTree.fromstring(panel.svg)
        assert root.get("viewBox", "").split()[2] == str(number), "the slider is as wide as the columns"
        assert [item.text for item in root.iter("title")] == list(drawn.texts)
    assert len(drawn.texts) == number


@pytest.mark.parametrize(("number", "width"), [(1, 0.8 / 12), (6, 0.4), (12, 0.8), (50, 0.8)])
def test_few_columns_are_spread_and_no_wider_than_a_twelfth(number: int, width: float) -> None:
    panel = panels(*(success(item) for item in range(number, 0, -1)))["Duration"]
    path = next(item for item in ElementTree.fromstring(panel.svg).iter("path") if item.get("class") == "one")
    sizes = [float(drawn) for drawn in re.findall(r"h([\d.]+)", path.get("d", ""))]
    assert sizes == pytest.approx([width] * number, abs=0.006)
    lefts = [left for left, _, _ in boxes(panel, "one")]
    assert lefts == pytest.approx([index + (1 - width) / 2 for index in range(number)], abs=0.006)


@pytest.mark.parametrize(
    ("number", "numbered"),
    [
        (0, []),
        (1, ["1"]),
        (6, ["1", "2", "3", "4", "5", "6"]),
        (7, ["1", "3", "5", "7"]),
        (50, ["5", "14", "23", "32", "41", "50"]),
    ],
)
def test_a_few_runs_have_their_number_below_the_axis_and_the_newest_always(number: int, numbered: list[str]) -> None:
    drawn = draw_chart([success(item) for item in range(number, 0, -1)])
    labels = list(ElementTree.fromstring(drawn.axis).iter("text"))
    assert [item.text for item in labels] == numbered
    assert all(
        float(str(item.get("x")).rstrip("%")) == pytest.approx(100 * (int(str(item.text)) - 0.5) / number, abs=0.006)
        for item in labels
    )


def test_a_panel_of_zeros_is_left_out() -> None:
    instant = {**success(1, **{**dict.fromkeys(STATISTICS, 0), "messages_in": 1}), "finished_at": 1000}
    assert list(panels(instant)) == ["Messages"]
    assert draw_chart([run(1, "RUNNING")]).panels == []


def test_messages_in_and_out_of_a_run() -> None:
    assert messages_in_and_out(success(1)) == (9_000, 4_500)
    assert messages_in_and_out(run(1, "ERROR", "x")) == (None, None)


def test_the_kinds_of_a_panel_have_different_classes() -> None:
    assert [kind for kind, _ in panels(success(1))["Messages"].legend] == ["before", "new", "out"]


def test_the_numbers_of_a_run_are_in_words() -> None:
    assert run_text(success(61)) == (
        "Run 61, success, 1970-01-01 00:01:01; 4,000 new and 5,000 compacted messages in, 4,500 out; "
        "2.0 KiB read, 1.0 KiB written; took 1.0 s: snapshot 100 ms, phase one 400 ms, phase two 400 ms, "
        "verify and publish 100 ms"
    )
    assert run_text(run(1, "RUNNING")) == "Run 1, running, 1970-01-01 00:00:01"
    assert run_text(run(1, "ERROR", "x")) == "Run 1, error, 1970-01-01 00:00:01; took 1.0 s"


def test_a_reason_is_listed_once_with_its_count_and_last_time() -> None:
    runs = [
        run(6, "ERROR", "taken over by run 7"),
        run(5, "CANCELLED", "by hand"),
        run(4, "ERROR", "taken over by run 5"),
        success(3),
        run(2, "ERROR", "the manifest is lost"),
    ]
    assert early_end_reasons(runs) == [
        EarlyEndReason("ERROR", "taken over by run 7", 2, 6, 7_000),
        EarlyEndReason("CANCELLED", "by hand", 1, 5, 6_000),
        EarlyEndReason("ERROR", "the manifest is lost", 1, 2, 3_000),
    ]
