"""The tests' workbench: when a topic is copied, and when it is built."""

from __future__ import annotations

from pathlib import Path

from storage.metadata.policy_store import BROKER
from storage.topic import Topic
from tests.workbench import Workbench, content, raw


def test_a_topic_is_copied_to_a_new_bench_of_that_time_and_built_on_others(tmp_path: Path) -> None:
    built: list[int] = []

    def build(bench: Workbench) -> Topic:
        built.append(bench.clock.now_ms())
        topic = bench.topic()
        bench.append(topic, [content((b"k", b"v"))])
        return topic

    def new(name: str) -> Workbench:
        (tmp_path / name).mkdir()
        return Workbench.embedded(tmp_path / name)

    first, second, later, changed = map(new, ("first", "second", "later", "changed"))
    assert raw(first.built(build)) == raw(second.built(build))
    assert len(built) == 1

    later.advance(1)
    later.built(build)
    assert built[1:] == [built[0] + 1]

    changed.metadata.policies.change([BROKER], {"compaction.threshold.messages": 7})
    stored = changed.metadata.policies.of_scope(BROKER)
    topic = changed.built(build)
    assert len(built) == 3
    assert changed.metadata.policies.of_scope(BROKER) == stored
    assert changed.built(build).record.uid == topic.record.uid, "it has a topic already: no copy replaces it"
    assert len(built) == 4
    for bench in (first, second, later, changed):
        bench.metadata.close()
