"""An entry that is sent again is not stored again, and one that was not stored never counts as stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise

import pytest

from api.broker.serving import deduplication
from api.broker.serving.deduplication import NOT_STORED, Deduplication
from api.broker.serving.publishing import QueuedEntry
from compactor.maintenance.retention import Retention
from compactor.maintenance.truncation import truncate
from storage.errors import CompactorError, InvalidRecord, ObjectMissing, Unavailable
from storage.log.group_commit import AppendOutcome
from storage.log.segment import AppendResult
from storage.metadata.producer_sequences import ProducerSequences
from storage.model import EARLIEST, SourcePosition, SourceProgress
from storage.topic import Topic
from tests.pulsar_entries import entry, metadata
from tests.unit.api.broker.serving.deduplicated import Log, publish, queued, replicate
from tests.workbench import Workbench, content


@pytest.fixture
def log(bench: Workbench, topic: Topic) -> Iterator[Log]:
    with closing(Log(bench, topic)) as opened:
        yield opened


def stored(bench: Workbench, topic: Topic) -> dict[str, int]:
    sequences = bench.metadata.producer_sequences.of_topic(topic.record.id)
    assert sequences is not None
    assert sequences.highest is not None
    return dict(sequences.highest)


def test_what_is_sent_again_is_a_duplicate(log: Log) -> None:
    assert log.append(("a", 0), ("a", 1), ("b", 0)) == [True, True, True]
    assert log.append(("a", 1), ("a", 0), ("b", 1), ("b", 1)) == [False, False, True, False]
    assert (log.known.last_sequence_id("a"), log.known.last_sequence_id("c")) == (1, -1)


@pytest.mark.parametrize("written", [True, False])
def test_it_is_known_after_the_service_died(log: Log, written: bool) -> None:
    log.append(("a", 5))
    if written:
        log.known.store()
    log.append(("b", 7))
    again = log.reopened()
    assert (again.known.last_sequence_id("a"), again.known.last_sequence_id("b")) == (5, 7)
    assert again.append(("a", 5), ("a", 6), ("b", 7)) == [False, True, False]


def test_it_is_due_to_be_written_after_some_entries(
    log: Log, bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deduplication, "STORE_ENTRIES", 3)
    log = log.reopened()
    log.append(("a", 0), ("a", 1))
    assert not log.known.claim_due_store()
    log.append(("a", 2))
    assert log.known.claim_due_store()
    assert not log.known.claim_due_store(), "one that fails is tried again after as many entries"
    log.known.store()
    assert stored(bench, topic) == {"a": 2}


def test_a_topic_begins_at_its_end_when_deduplication_is_switched_on(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    with topic.append_log() as log:
        log.append(publish("a", 5).entry)
    read: list[int] = []
    sequences = topic.producer_sequences
    monkeypatch.setattr(topic, "producer_sequences", lambda offset: read.append(offset) or sequences(offset))
    with closing(Log(bench, topic)) as opened:
        assert opened.known.last_sequence_id("a") == -1
        assert opened.append(("a", 5), ("a", 6)) == [True, True]
        opened.reopened()
        assert opened.known.last_sequence_id("a") == 6
        opened.reopened()
    assert read == [1, 1, 3], "each load reads what was appended since the one before"


@pytest.mark.parametrize("how", ["trim", "trim compacted", "truncate"])
@pytest.mark.parametrize("same_process", [True, False])
def test_it_is_known_of_removed_messages_after_the_service_died(
    bench: Workbench, topic: Topic, how: str, same_process: bool
) -> None:
    with closing(Log(bench, topic)) as log:
        log.append(("a", 8), ("a", 9), ("b", 3))
        log.roll()
        if not same_process:
            log.close()
        if how == "truncate":
            truncate(bench, [topic.record])
        elif how == "trim":
            bench.set_policies(topic, **{"cleanup.policy": ["delete"]})
            assert Retention(bench).trim(topic.record, 3, force=True).plan.candidates
        else:
            bench.set_policies(topic, **{"cleanup.policy": ["compact"]})
            bench.compact(topic)
            assert Retention(bench).trim(topic.record).plan.candidates
        if not same_process:
            log.open()
        log.append(("b", 4))
        log.reopened()
        assert not list(topic.messages())[1:], "what they sent is removed"
        assert log.append(("a", 9), ("a", 10), ("b", 4)) == [False, True, False]


def test_what_another_process_has_stored_of_later_entries_is_kept(log: Log, bench: Workbench, topic: Topic) -> None:
    log.append(("a", 1), ("b", 1))
    log.append_unchecked([publish("b", 2), publish("c", 3)])  # not through this service's producers
    log.roll()
    truncate(bench, [topic.record])
    log.known.store()
    assert stored(bench, topic) == {"a": 1, "b": 2, "c": 3}


def test_messages_of_an_import_are_passed_over(bench: Workbench, topic: Topic) -> None:
    with closing(Log(bench, topic)) as log:
        log.append(("a", 1))
        log.close()
        bench.append(topic, [content((b"k", b"v"), (b"l", b"v"))])
        log.open()
        assert log.known.last_sequence_id("a") == 1
        sequences = bench.metadata.producer_sequences.of_topic(topic.record.id)
        assert sequences is not None
        assert sequences.end_offset == 3


def failing_from(number: int, error: CompactorError, log: Log) -> list[object]:
    """Publish a:0 to a:2, then all again, in one group of which the entry of that number fails."""

    def append(entries: Sequence[QueuedEntry]) -> list[AppendOutcome]:
        return [*log.append_unchecked(entries[:number]), *[error for _ in entries[number:]]]

    group = [publish("a", sequence_id) for sequence_id in (0, 1, 2, 0, 1, 2)]
    return list(log.answers(group, append))


def test_a_duplicate_fails_with_what_it_repeats_and_not_with_a_later_entry(log: Log) -> None:
    error = Unavailable("the disk is full", "make room")
    answers = failing_from(1, error, log)
    assert isinstance(answers[0], AppendResult)
    assert answers[1:4] == [error, error, EARLIEST]
    assert [isinstance(answer, Unavailable) for answer in answers[4:]] == [True, True]
    assert log.append(("a", 0), ("a", 1)) == [False, True]


def test_a_duplicate_of_what_can_never_be_stored_may_be_sent_again(log: Log) -> None:
    answers = failing_from(2, InvalidRecord("an entry cannot be taken", "send another one"), log)
    assert isinstance(answers[2], InvalidRecord)
    assert isinstance(answers[5], Unavailable)


def test_a_duplicate_of_what_was_stored_before_never_fails(log: Log) -> None:
    log.append(("a", 0))
    answers = failing_from(0, Unavailable("the disk is full", "make room"), log)
    assert (answers[0], answers[3]) == (EARLIEST, EARLIEST)


def test_entries_of_a_replicator_of_any_name_are_refused(log: Log) -> None:
    """Their sequence ids are those of several producers: an entry would count as a duplicate of another producer's."""
    described = metadata(producer_name="original", sequence_id=3, replicated_from="us-east")
    replicated = queued("custom.prefix.us-east", 3, entry(described, b"v"))
    first, second = log.answers([publish("a", 0), replicated], log.append_unchecked)
    assert isinstance(first, AppendResult)
    assert isinstance(second, InvalidRecord)
    assert "us-east" in second.message


def test_the_producers_that_are_known_have_a_bound(bench: Workbench, topic: Topic) -> None:
    with closing(Log(bench, topic, max_producers=2)) as log:
        log.append(("a", 0), ("b", 0))
        log.append(("a", 1), ("c", 0))
        assert [log.known.last_sequence_id(name) for name in "abc"] == [1, -1, 0]
        log.reopened()
        assert [log.known.last_sequence_id(name) for name in "abc"] == [1, -1, 0]


def test_a_load_that_failed_is_tried_again(
    bench: Workbench, topic: Topic, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append(("a", 1))
    known = Deduplication(bench.metadata, topic, 100)

    def lost(_: int) -> Iterator[object]:
        raise ObjectMissing("an object is missing", "restore it")

    with monkeypatch.context() as patched:
        patched.setattr(topic, "producer_sequences", lost)
        with pytest.raises(ObjectMissing):
            known.load()
    assert not known.is_loaded
    known.load()
    assert (known.is_loaded, known.last_sequence_id("a")) == (True, 1)


def test_ids_are_told_in_the_order_in_which_they_are_compared() -> None:
    """A chunk that is not the last comes before the message is whole, and after the message before it."""
    ascending = [(6, deduplication.WHOLE), (7, 0), (7, 1), (7, deduplication.WHOLE), (8, deduplication.WHOLE)]
    assert all(earlier < later for earlier, later in pairwise(ascending))
    assert [deduplication.last_complete_sequence_number(sequence) for sequence in ascending] == [6, 6, 6, 7, 8]


# Replicators


@pytest.fixture(params=[False, True])
def replicated(bench: Workbench, topic: Topic, request: pytest.FixtureRequest) -> Iterator[Log]:
    """A log, without and with the deduplication of producers."""
    with closing(Log(bench, topic, of_producers=request.param)) as opened:
        yield opened


def test_a_replicator_that_goes_back_repeats_nothing(replicated: Log) -> None:
    """Each source cluster for itself, and in one group as well as in several; a crash makes no difference."""
    assert replicated.replicate(*(replicate("us", *place) for place in ((3, 7), (3, 8), (3, 8), (3, 7)))) == [
        True, True, False, False,
    ]  # fmt: skip
    assert replicated.replicate(replicate("us", 3, 8), replicate("us", 4, 0), replicate("eu", 3, 7)) == [
        False, True, True,
    ]  # fmt: skip
    replicated.reopened()
    assert replicated.replicate(replicate("us", 4, 0), replicate("us", 4, 1), replicate("eu", 3, 7)) == [
        False, True, False,
    ]  # fmt: skip
    replicated.roll()
    replicated.reopened()
    assert replicated.replicate(replicate("us", 4, 1), replicate("eu", 3, 8)) == [False, True]
    assert replicated.payloads() == [b"3:7", b"3:8", b"4:0", b"3:7", b"4:1", b"3:8"]


def test_producers_of_the_same_name_here_and_there(bench: Workbench, topic: Topic) -> None:
    with closing(Log(bench, topic)) as log:
        log.replicate(replicate("us", 3, 7))
        log.reopened()
        assert log.known.last_sequence_id("a") == -1
        assert log.append(("a", 0), ("a", 0)) == [True, False]
        log.reopened()
        assert (log.known.last_sequence_id("a"), log.replicate(replicate("us", 3, 7))) == (0, [False])


def test_producers_beside_a_replicator_are_not_deduplicated_without_the_policy(bench: Workbench, topic: Topic) -> None:
    with closing(Log(bench, topic, of_producers=False)) as log:
        log.known.mark_replicated_and_end_accepted_gaps()
        group = [publish("a", 0), replicate("us", 3, 7), publish("a", 0), replicate("us", 3, 7), publish("b", 1)]
        answers = log.answers(group, log.append_unchecked)
        assert [isinstance(answer, AppendResult) for answer in answers] == [True, True, True, False, True]
        log.reopened()
        assert log.append(("a", 0), ("a", 0)) == [True, True]
        log.known.store()
        known = bench.metadata.producer_sequences.of_topic(topic.record.id)
        assert known == ProducerSequences(4, None, {"us": SourceProgress(SourcePosition(3, 7), 1)})


def test_positions_outlive_a_policy_that_is_switched_off_and_on(bench: Workbench, topic: Topic) -> None:
    """Producers are deduplicated from the end on then, as without a replicator."""
    with closing(Log(bench, topic)) as log:
        log.append(("a", 5))
        log.replicate(replicate("us", 3, 7))
        log.close()
        bench.metadata.producer_sequences.delete_sequence_ids(topic.record.id)
        log.of_producers = False
        log.open()
        assert log.append(("a", 9)) == [True]
        assert log.replicate(replicate("us", 3, 7), replicate("us", 3, 8)) == [False, True]
        log.of_producers = True
        log.reopened()
        assert stored(bench, topic) == {}
        assert (log.append(("a", 1)), log.replicate(replicate("us", 3, 8))) == ([True], [False])
        log.reopened()
        assert log.append(("a", 1), ("a", 2)) == [False, True]


def test_a_topic_that_a_replicator_has_connected_to_is_kept_without_an_entry(bench: Workbench, topic: Topic) -> None:
    """Its first entry may come while the process dies, and is not in SQL then."""
    with closing(Log(bench, topic, of_producers=False)) as log:
        assert bench.metadata.producer_sequences.of_topic(topic.record.id) is None
        log.replicate(replicate("us", 3, 7))
        log.close()
        bench.metadata.producer_sequences.delete_sequence_ids(topic.record.id)
        log.open()
        assert log.replicate(replicate("us", 3, 7)) == [False]


def test_messages_are_removed_and_their_positions_are_not(bench: Workbench, topic: Topic) -> None:
    with closing(Log(bench, topic, of_producers=False)) as log:
        log.replicate(replicate("us", 3, 7), replicate("us", 3, 8))
        log.close()
        truncate(bench, [topic.record])
        log.open()
        assert log.replicate(replicate("us", 3, 8), replicate("us", 3, 9)) == [False, True]


def test_a_cluster_that_was_built_again_is_refused(replicated: Log) -> None:
    """None of its entries is taken, none counts as stored, and other senders go on."""
    replicated.replicate(replicate("us", 9, 5, publish_time=100), replicate("us", 9, 6, publish_time=90))
    group = [
        replicate("us", 9, 6, publish_time=90),
        replicate("us", 2, 0, publish_time=101),
        replicate("us", 9, 7, publish_time=102),
        replicate("eu", 2, 0, publish_time=101),
    ]
    answers = replicated.answers(group, replicated.append_unchecked)
    assert answers[0] == EARLIEST
    assert isinstance(answers[1], InvalidRecord)
    assert "9:6" in answers[1].message
    assert "2:0" in answers[1].message
    assert isinstance(answers[2], Unavailable)
    assert isinstance(answers[3], AppendResult)
    assert replicated.payloads() == [b"9:5", b"9:6", b"2:0"]
    (again,) = replicated.reopened().answers([group[1]], replicated.append_unchecked)
    assert isinstance(again, InvalidRecord)


def test_a_replicator_that_sends_a_group_again_is_no_cluster_that_was_built_again(replicated: Log) -> None:
    group = [replicate("us", 9, 5, publish_time=100), replicate("us", 9, 6, publish_time=300)]
    assert replicated.replicate(*group, *group) == [True, True, False, False]
    assert replicated.replicate(*group) == [False, False]


def test_a_marker_is_acknowledged_and_not_stored(replicated: Log) -> None:
    replicated.known.mark_replicated_and_end_accepted_gaps()
    group = [replicate("us", 3, 7), replicate("us", 3, 8, marker_type=10), replicate("us", 3, 9)]
    answers = replicated.answers(group, replicated.append_unchecked)
    assert answers[1] == NOT_STORED
    assert NOT_STORED != EARLIEST
    assert replicated.payloads() == [b"3:7", b"3:9"]


def test_the_source_clusters_have_a_bound(replicated: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deduplication, "MAX_SOURCES", 1)
    replicated.replicate(replicate("us", 3, 7))
    (answer,) = replicated.answers([replicate("eu", 3, 7)], replicated.append_unchecked)
    assert isinstance(answer, InvalidRecord)
    assert "'eu'" in answer.message
    assert replicated.replicate(replicate("us", 3, 8)) == [True]


@pytest.mark.parametrize(
    ("sent", "is_gap"),
    [((3, 8), False), ((4, 0), False), ((3, 7), False), ((3, 9), True), ((4, 1), True)],
)
def test_a_gap_before_the_first_entry_of_a_connection_is_logged_once(
    replicated: Log, caplog: pytest.LogCaptureFixture, sent: tuple[int, int], is_gap: bool
) -> None:
    replicated.known.note_replicator_connected("pulsar.repl.us")
    replicated.replicate(replicate("us", 3, 7))
    replicated.known.note_replicator_connected("pulsar.repl.us")
    replicated.replicate(replicate("us", *sent), replicate("us", 9, 9))
    expected = [f"position {sent[0]}:{sent[1]} after position 3:7"] if is_gap else []
    assert [text for text in expected if text in caplog.text] == expected
    assert len(caplog.records) == len(expected)


def test_a_marker_before_the_first_entry_of_a_connection_is_no_gap(
    replicated: Log, caplog: pytest.LogCaptureFixture
) -> None:
    replicated.known.mark_replicated_and_end_accepted_gaps()
    group = [replicate("us", 3, 7), replicate("us", 3, 8, marker_type=10)]
    replicated.answers(group, replicated.append_unchecked)
    replicated.known.note_replicator_connected("pulsar.repl.us")
    replicated.replicate(replicate("us", 3, 9))
    assert not caplog.records
