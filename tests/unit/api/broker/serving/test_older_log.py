"""A log that lacks acknowledged entries of a source cluster: they are sent again in order, or the gap is accepted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from api.broker.serving.publishing import QueuedEntry
from compactor.maintenance.retention import Retention
from storage.errors import InvalidRecord, Unavailable
from storage.metadata.producer_sequences import ProducerSequences
from storage.model import SourcePosition, SourceProgress
from storage.topic import Topic
from tests.unit.api.broker.serving.deduplicated import Log, replicate
from tests.workbench import Workbench


def lose(bench: Workbench, topic: Topic, *clusters: str) -> None:
    """Let the database know entries up to 5:1 of source clusters, as after a restore of the log alone."""
    later = {name: SourceProgress(SourcePosition(5, 1), 200) for name in clusters}
    bench.metadata.producer_sequences.store(topic.record.id, ProducerSequences(9, None, later))


def missing(bench: Workbench, topic: Topic) -> dict[str, SourcePosition]:
    """Return what SQL has as missing."""
    stored = bench.metadata.producer_sequences.of_topic(topic.record.id)
    assert stored is not None
    return dict(stored.missing)


def refusal(log: Log, *sent: QueuedEntry) -> str:
    """Return the reason for which the first entry is refused; no later one is taken."""
    log.known.mark_replicated_and_end_accepted_gaps()
    before = log.payloads()
    first, *later = log.answers(sent, log.append_unchecked)
    assert isinstance(first, InvalidRecord)
    assert all(isinstance(answer, Unavailable) for answer in later)
    assert log.payloads() == before
    return first.message


@pytest.fixture
def older(bench: Workbench, topic: Topic) -> Iterator[Log]:
    """A log with 3:7 and 3:8 of the cluster us, of which the source has receipts up to 5:1."""
    with closing(Log(bench, topic, of_producers=False)) as log:
        log.replicate(replicate("us", 3, 7), replicate("us", 3, 8))
        log.close()
        lose(bench, topic, "us")
        log.open()
        yield log


def test_a_source_is_refused_until_it_begins_again(
    older: Log, bench: Workbench, topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    logged = "\n".join(record.getMessage() for record in caplog.get_records("setup"))
    assert "ends at offset 2" in logged
    assert "after position 3:8 up to position 5:1 are missing" in logged
    for start in ((5, 2), (4, 0), (3, 10)):
        reason = refusal(older, replicate("us", *start), replicate("us", 9, 9))
        assert "after position 3:8 up to position 5:1 are missing" in reason
        assert f"it continues at position {start[0]}:{start[1]}" in reason
        older.reopened()
    assert not caplog.records, "the older log is noticed once"
    sent = [replicate("us", *place) for place in ((3, 7), (3, 8), (3, 9), (5, 1), (5, 2))]
    assert older.replicate(*sent) == [False, False, True, True, True]
    assert missing(bench, topic) == {"us": SourcePosition(5, 1)}
    assert older.known.claim_due_store()
    older.known.store()
    assert missing(bench, topic) == {}
    assert not older.known.claim_due_store()
    older.reopened()
    assert older.replicate(replicate("us", 5, 2), replicate("us", 6, 0)) == [False, True]
    assert older.payloads() == [b"3:7", b"3:8", b"3:9", b"5:1", b"5:2", b"6:0"]


@pytest.mark.parametrize("is_filled", [True, False])
def test_a_gap_that_was_filled_has_ended_after_a_crash_before_it_was_stored(
    older: Log, bench: Workbench, topic: Topic, is_filled: bool
) -> None:
    older.replicate(replicate("us", 3, 9), *[replicate("us", 5, 1)] * is_filled)
    older.reopened()
    if is_filled:
        assert missing(bench, topic) == {}
        assert older.replicate(replicate("us", 5, 3)) == [True], "5:2 may be a marker"
    else:
        assert "after position 3:9 up to position 5:1 are missing" in refusal(older, replicate("us", 5, 3))


def test_the_end_of_a_gap_is_due_to_be_stored_at_once(older: Log, bench: Workbench, topic: Topic) -> None:
    older.replicate(replicate("us", 3, 9))
    assert older.known.claim_due_store()
    assert not older.known.claim_due_store(), "one that fails is tried again after as many entries"
    older.known.store()
    stored = bench.metadata.producer_sequences.of_topic(topic.record.id)
    assert stored == ProducerSequences(3, None, {"us": SourceProgress(SourcePosition(3, 9), 200)})


def test_a_policy_that_the_database_did_not_note_is_stored_later(
    older: Log, bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise Unavailable("the database is away", "try again")

    bench.set_policies(topic, **{"replication.accept-gaps": True})
    with monkeypatch.context() as patched:
        patched.setattr(bench.metadata.producer_sequences, "store", away)
        with pytest.raises(Unavailable):
            older.known.mark_replicated_and_end_accepted_gaps()
    assert older.known.claim_due_store()
    older.known.store()
    assert missing(bench, topic) == {}


def test_the_entry_after_the_last_one_begins_again_too(older: Log) -> None:
    assert older.replicate(replicate("us", 3, 9), replicate("us", 5, 2)) == [True, True]


def test_other_senders_go_on(older: Log) -> None:
    assert older.replicate(replicate("eu", 6, 6)) == [True]


def test_a_policy_accepts_the_gap(older: Log, bench: Workbench, topic: Topic, caplog: pytest.LogCaptureFixture) -> None:
    refusal(older, replicate("us", 5, 2))
    bench.set_policies(topic, **{"replication.accept-gaps": True})
    caplog.clear()
    assert older.replicate(replicate("us", 5, 2)) == [True]
    assert "goes on without the entries up to position 5:1" in caplog.text
    assert missing(bench, topic) == {}
    bench.set_policies(topic, **{"replication.accept-gaps": False})
    older.reopened()
    assert older.replicate(replicate("us", 3, 9), replicate("us", 5, 3)) == [False, True]


def test_a_log_without_an_entry_of_a_cluster_takes_all_again(bench: Workbench, topic: Topic) -> None:
    with closing(Log(bench, topic, of_producers=False)) as log:
        log.replicate(replicate("us", 3, 7))
        log.close()
        lose(bench, topic, "eu")
        log.open()
        for start in ((5, 1), (5, 2), (6, 0)):
            assert "source cluster eu, entries up to position 5:1 are missing" in refusal(log, replicate("eu", *start))
        (error,) = log.answers([replicate("eu", 2, 3)], log.append_unchecked)
        assert isinstance(error, InvalidRecord)
        assert "position 2:3 is that of the first entry that it has for this cluster" in error.remedy
        assert log.replicate(replicate("eu", 2, 0), replicate("eu", 5, 1)) == [True, True]
        assert log.replicate(replicate("us", 3, 8)) == [True]


@pytest.mark.parametrize("clusters", [["us"], ["us", "eu"]])
def test_a_trimmed_log_begins_at_the_horizon_of_the_only_cluster(
    bench: Workbench, topic: Topic, clusters: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """With several clusters it is not known which entries are missing: the log says so, and they go on."""
    bench.set_policies(topic, **{"cleanup.policy": ["compact"]})
    with closing(Log(bench, topic, of_producers=False)) as log:
        log.replicate(*(replicate("us", 3, number, partition_key=b"k") for number in (7, 8)))
        log.roll()
        bench.compact(topic)
        assert Retention(bench).trim(topic.record).plan.candidates
        log.close()
        lose(bench, topic, *clusters)
        log.open()
        if len(clusters) > 1:
            assert all(f"cluster {name}, so entries up to position 5:1 may be missing" in caplog.text
                       for name in clusters)  # fmt: skip
            assert log.replicate(replicate("us", 5, 1), replicate("us", 5, 2)) == [False, True]
            return
        assert "after position 3:8 up to position 5:1 are missing" in refusal(log, replicate("us", 5, 2))
        assert log.replicate(replicate("us", 3, 8), replicate("us", 3, 9)) == [False, True]


def test_a_trimmed_entry_that_is_sent_again_is_of_no_cluster_that_was_built_again(
    bench: Workbench, topic: Topic
) -> None:
    """Its publish time is later than that of every entry that the log has."""
    bench.set_policies(topic, **{"cleanup.policy": ["delete"]})
    with closing(Log(bench, topic, of_producers=False)) as log:
        log.replicate(replicate("us", 3, 7, publish_time=300))
        log.roll()
        log.replicate(replicate("us", 3, 8))
        log.close()
        assert Retention(bench).trim(topic.record, 1, force=True).plan.candidates
        lose(bench, topic, "us")
        log.open()
        sent = [replicate("us", 3, 7, publish_time=300), replicate("us", 3, 8), replicate("us", 3, 9)]
        assert log.replicate(*sent) == [False, False, True]
        assert "was built again" in refusal(log, replicate("us", 3, 8, publish_time=301))
