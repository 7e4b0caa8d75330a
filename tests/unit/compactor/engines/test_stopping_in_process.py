"""Tasks that run in the service itself are stopped inside: by a cancel, a pause, and the end of the service."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from compactor.engines.engine import Engine, InProcessEngineProvider
from compactor.scheduling.control_loop import ControlLoop
from storage.metadata.records import RunState
from storage.objects.throttled import RateLimits
from storage.topic import Topic
from tests.unit.compactor.scheduling.stage import SETTINGS, Engines, Stage, until

FOR_YEARS = RateLimits(read=1)
"""A byte a second: a task that would end long after the test."""


class WithoutMachinery(Engines):
    """Those of a service with `spark-master=in-process`."""

    def open(self, *, large: bool = True, kind: str | None = None) -> Engine:
        return InProcessEngineProvider().open()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    for loop in stage.loops:
        loop.drain(0)
    stage.metadata.close()


def cancel(stage: Stage, loop: ControlLoop, topic: Topic) -> None:
    (run,) = stage.metadata.runs.of_topic(topic.record.id, 9)
    stage.metadata.runs.cancel(run.run_id, "ann wanted it")


def pause(stage: Stage, loop: ControlLoop, topic: Topic) -> None:
    assert stage.control.pause([topic.record.id])[0].aborting


def end(stage: Stage, loop: ControlLoop, topic: Topic) -> None:
    loop.drain(0)
    assert loop.worker.busy_slots() == (0, 0), "nothing continues in a process that ends"
    assert [request.name for request, _ in stage.control.requests()] == [topic.name], "another service makes it again"


@pytest.mark.parametrize("stop", [cancel, pause, end])
def test_a_task_in_the_middle_of_its_reading_is_stopped(
    stage: Stage,
    stop: Callable[[Stage, ControlLoop, Topic], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    worker = replace(SETTINGS.worker, run_dead_ms=300, rates=FOR_YEARS)
    loop = stage.service(replace(SETTINGS, worker=worker), WithoutMachinery())
    loop.heartbeat()
    topic = stage.topic("t")
    loop.trigger(topic.record)
    loop.poll()
    assert until(lambda: [run.phase for run in stage.metadata.runs.of_topic(topic.record.id, 9)] == ["phase one"])
    stop(stage, loop, topic)
    assert until(lambda: loop.worker.busy_slots() == (0, 0))
    assert stage.runs(topic) == [RunState.CANCELLED]
    assert not stage.control.get(topic.record.id).aborting
    begun, stopped = (record.message for record in caplog.records if record.message.startswith("compaction "))
    assert begun == "compaction begun"
    assert stopped.startswith("compaction stopped: run 1 of persistent://public/default/t is CANCELLED already: ")
