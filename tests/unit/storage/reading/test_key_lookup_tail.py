"""Point reads of keys whose newest message is in an unsealed segment (T4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactor.run.plan import RunPolicies
from tests.entries import batch, produce, single
from tests.workbench import Workbench, content


@pytest.mark.parametrize("order", ["offset", "event time"])
def test_a_key_in_the_hot_tail(tmp_path: Path, order: str) -> None:
    """T4: compacted part and tail together; a segment has no index, and counts all the same."""
    bench = Workbench.embedded(tmp_path)
    topic = bench.topic()
    produce(
        topic, [single(b"a", b"1", event_time=9), single(b"b", b"1", event_time=1), single(b"c", b"1", event_time=1)]
    )
    assert topic.newest_value(b"a") is not None
    bench.compactor().compact(topic.name, RunPolicies(event_time_order=order == "event time"))
    produce(
        topic, [single(b"a", b"2", event_time=5), single(b"b", None, event_time=5), batch((b"c", b"2"), (b"c", b"3"))]
    )
    bench.append(topic, [content((b"d", b"1"))])
    produce(topic, [single(b"d", b"2"), single(b"e", b"1")])
    messages = {key: topic.newest_value(key) for key in (b"a", b"b", b"c", b"d", b"e", b"f")}
    values = {key: message.payload for key, message in messages.items() if message is not None}
    by_offset = {b"a": b"2", b"c": b"3", b"d": b"2", b"e": b"1"}
    assert values == (by_offset if order == "offset" else by_offset | {b"a": b"1", b"c": b"1"})
    whole = {message.offset: message for message in topic.messages()}
    assert all(message == whole[message.offset] for message in messages.values() if message is not None)
    bench.metadata.close()


def test_a_trimmed_message_of_a_later_event_hides_none_that_is_left(tmp_path: Path) -> None:
    """A ledger's index names one message a key: where a trim cut that off, those behind it count."""
    bench = Workbench.embedded(tmp_path)
    topic = bench.topic()
    produce(topic, [single(b"z", b"0", event_time=1)])
    bench.compactor().compact(topic.name, RunPolicies(event_time_order=True))
    produce(
        topic, [single(b"a", b"late", event_time=9), single(b"a", b"1", event_time=5), single(b"a", b"2", event_time=3)]
    )
    topic.log_manager().roll_and_seal(topic.record)
    expected = {1: b"late", 2: b"1", 3: b"2", 4: None}
    for start, value in expected.items():
        bench.metadata.trimming.trim(topic.record.id, start, [], force=True)
        message = topic.newest_value(b"a")
        assert (message and message.payload) == value
    bench.metadata.close()
