"""The losses that reads of a process have met, as the pages of topics keep them."""

from __future__ import annotations

import gc
import weakref

import pytest

from api.dashboard import lost_objects
from api.dashboard.lost_objects import LossCache
from storage.errors import ObjectMissing
from storage.topic import Topic
from tests.workbench import Workbench, compacted_only, content


class Rows:
    """Stands for what a read has in memory."""


def with_lost_part(bench: Workbench, name: str) -> Topic:
    topic = bench.topic(name)
    bench.append(topic, [content((b"a", b"1"))])
    bench.compact(topic)
    bench.store.delete(bench.manifest(topic).parts[0].rows.stored.name)
    return topic


def note_loss(losses: LossCache, topic: Topic) -> weakref.ref[Rows]:
    """Note the error of a compacted read; return what the read had in memory."""

    def read() -> None:
        rows = Rows()
        kept.append(weakref.ref(rows))
        compacted_only(topic)

    kept = list[weakref.ref[Rows]]()
    try:
        read()
    except ObjectMissing as error:
        losses.record_losses(topic.record.id, [error])
    return kept[0]


def is_kept(losses: LossCache, bench: Workbench, topic: Topic) -> bool:
    return losses.current_compacted_loss(bench.store, topic.snapshot(), bench.manifest(topic)) is not None


def test_a_loss_keeps_nothing_of_the_read_that_met_it(bench: Workbench) -> None:
    """It may be kept for as long as the process lives."""
    losses, topic = LossCache(), with_lost_part(bench, "t")
    rows = note_loss(losses, topic)
    assert is_kept(losses, bench, topic)
    gc.collect()  # frames refer to each other
    assert rows() is None


def test_the_losses_that_were_met_last_are_kept(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_objects, "MOST_TOPICS", 2)
    losses, topics = LossCache(), [with_lost_part(bench, name) for name in "tuv"]
    for topic in (*topics[:2], topics[0], topics[2]):
        note_loss(losses, topic)
    assert [is_kept(losses, bench, topic) for topic in topics] == [True, False, True]
