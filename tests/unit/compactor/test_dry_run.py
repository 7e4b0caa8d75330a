"""A dry run says what the run after it does, and leaves no trace."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from compactor.run.plan import RunPolicies
from storage.errors import Unavailable
from storage.metadata.records import RunState
from storage.topic import Topic
from tests.workbench import HookedEngine, Workbench, content, two_generations


def estimate(bench: Workbench, topic: Topic, policies: RunPolicies | None = None) -> dict[str, object]:
    return bench.compactor().dry_run(topic.name, policies or RunPolicies())


def traces(bench: Workbench, topic: Topic) -> tuple[object, ...]:
    """All that a dry run might leave behind."""
    unfinished = [
        attempt for attempt in bench.metadata.attempts.of_topic(topic.record.id) if attempt.finished_at is None
    ]
    return topic.snapshot(), sorted(info.name for info in bench.store.list()), unfinished


POLICIES = [
    RunPolicies(),
    RunPolicies(retain_null_key=True),
    RunPolicies(tombstone_retention_ms=10_000, key_ttl_ms=3_600_000),
    RunPolicies(event_time_order=True),
]


@pytest.mark.parametrize("policies", POLICIES, ids=["plain", "null keys", "by time", "by event time"])
def test_a_dry_run_says_what_the_run_after_it_does_and_leaves_nothing(bench: Workbench, policies: RunPolicies) -> None:
    topic = bench.topic()
    history = [
        content((b"a", b"1"), (b"b", b"2"), (None, b"n"), (b"b", b""), (b"d", b"")),
        content((b"a", b"3"), (b"c", b"4"), (None, b"m")),
        content((b"c", b"")),
    ]
    for table in history:
        bench.append(topic, [table])
        before = traces(bench, topic)
        answer = estimate(bench, topic, policies)
        assert traces(bench, topic) == before
        outcome = bench.compactor().compact(topic.name, policies)
        assert outcome.run is not None
        did = outcome.run.statistics
        for name in ("messages_in", "messages_before", "messages_out", "tombstones_removed", "tombstones_kept"):
            assert answer[name] == did[name], name
        assert (answer["expired"], answer["null_keys_kept"]) == (did["expired"], did["null_keys_kept"])
        assert answer["parts_kept"] == did["parts_kept"]
        # a task that finds no survivor in its share of a ledger writes no part, which is not known before
        assert int(str(answer["parts_to_write"])) >= int(str(did["parts_written"]))
        assert answer["messages_dropped"] == int(str(did["messages_in"])) + int(str(did["messages_before"])) - int(
            str(did["messages_out"])
        )


def test_a_dry_run_of_an_empty_topic_has_nothing_to_say(bench: Workbench) -> None:
    topic = bench.topic()
    before = traces(bench, topic)
    assert set(estimate(bench, topic).values()) == {0}
    assert traces(bench, topic) == before


def test_a_dry_run_works_beside_a_running_compaction(bench: Workbench) -> None:
    """It claims nothing; its objects are its own, and they have a heartbeat row as long as they are there."""
    topic = two_generations(bench)
    answer: list[dict[str, object]] = []

    engine = HookedEngine(lambda _: answer.append(estimate(bench, topic)))
    outcome = replace(bench, engine=engine).compact(topic)
    assert outcome.run is not None
    assert outcome.run.state is RunState.SUCCESS
    assert [item["messages_out"] for item in answer] == [outcome.run.statistics["messages_out"]] * 2


@pytest.mark.parametrize(
    "error", [Unavailable("the store is away", "wait"), KeyboardInterrupt()], ids=["store", "ctrl-c"]
)
def test_a_dry_run_that_fails_leaves_nothing_either(bench: Workbench, error: BaseException) -> None:
    topic = two_generations(bench)
    before = traces(bench, topic)

    def fail(_: list[Any]) -> list[Any]:
        raise error

    with pytest.raises(type(error)):
        estimate(replace(bench, engine=HookedEngine(after=fail)), topic)
    assert traces(bench, topic) == before
