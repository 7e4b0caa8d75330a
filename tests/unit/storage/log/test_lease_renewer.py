"""One watch over many open logs: few statements, and what one log fails in is its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

import pytest
from sqlalchemy import event

from storage.errors import Fenced, TopicNotFound, Unavailable
from storage.log import lease_renewer as watching
from storage.log.lease_renewer import TICKS, LeaseRenewer
from storage.log.log_manager import LogManager
from storage.log.segment_lifecycle import SegmentLifecycle
from storage.log.segment_writer import SegmentWriter
from storage.log.topic_log import TopicLog
from storage.metadata.leases import UnrenewedLeases
from storage.metadata.liveness import LEASE_TTL_MS
from storage.metadata.policy_store import topic_scope
from storage.metadata.records import Lease, SegmentContent, SegmentRecord, SegmentState
from storage.metadata.segments import RollRequestsAndDeletions
from storage.topic import Topic
from tests.entries import single
from tests.workbench import Workbench, raw


@pytest.fixture
def watch(bench: Workbench) -> Iterator[LeaseRenewer]:
    """A renewer that polls and renews when a test calls it."""
    with LeaseRenewer(bench.metadata, poll_seconds=3600.0, renew_seconds=3600.0) as created:
        yield created


Logs = list[tuple[Topic, TopicLog]]


@contextmanager
def opened(bench: Workbench, watch: LeaseRenewer, count: int) -> Iterator[Logs]:
    """Open logs, each with a message."""
    with ExitStack() as stack:
        created = []
        for number in range(count):
            topic = bench.topic(f"t{number}")
            log = stack.enter_context(topic.append_log(0, renewer=watch))
            log.append(single(b"a", b"1"))
            created.append((topic, log))
        yield created


@pytest.fixture
def logs(bench: Workbench, watch: LeaseRenewer) -> Iterator[Logs]:
    with opened(bench, watch, 8) as created:
        yield created


def statements(bench: Workbench) -> list[str]:
    """Return a list to which each later statement of the database is added."""
    seen: list[str] = []

    def note(*arguments: object) -> None:
        if not str(arguments[2]).startswith("BEGIN"):
            seen.append(str(arguments[2]))

    event.listen(bench.metadata.database.engine, "before_cursor_execute", note)
    return seen


def renew(watch: LeaseRenewer) -> list[Future[object]]:
    """Let an interval of renewal pass; return the work that begins for lost leases."""
    return [work for _ in range(TICKS) for work in watch.renew_due_leases()]


def rolled(bench: Workbench, logs: Logs) -> list[int]:
    """The numbers of those whose first segment is rolled."""
    states = [bench.metadata.segments.of_topic(topic.record.id)[0].state for topic, _ in logs]
    return [number for number, state in enumerate(states) if state is SegmentState.ROLLED]


@pytest.mark.slow
def test_a_look_and_a_renewal_take_a_handful_of_statements_and_no_threads(
    bench: Workbench, watch: LeaseRenewer
) -> None:
    before = set(threading.enumerate())  # threads of tests before this one may still end
    with opened(bench, watch, 50) as logs:
        assert not [thread for thread in set(threading.enumerate()) - before if thread.name == "heartbeat"]
        seen = statements(bench)
        assert watch.poll_logs() == []
        assert [statement.split()[0] for statement in seen] == ["SELECT"]
        bench.clock.advance(10_000)
        seen.clear()
        assert renew(watch) == []
        assert [statement.split()[0] for statement in seen] == ["SELECT", "UPDATE", "INSERT"], "they have new entries"
        assert renew(watch) == []
        seen.clear()
        assert renew(watch) == []
        assert [statement.split()[0] for statement in seen] == ["SELECT", "UPDATE"]
        bench.clock.advance(10_000)
        assert all(bench.metadata.leases.current(topic.record.id) for topic, _ in logs), "taken longer than a term ago"


def test_many_leases_are_renewed_in_batches(
    bench: Workbench, watch: LeaseRenewer, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.metadata.queries.AT_ONCE", 3)
    monkeypatch.setattr(watching, "AT_ONCE", 3)
    seen = statements(bench)
    watch.poll_logs()
    assert len(seen) == 1
    bench.metadata.segments.request_roll(logs[-1][0].record.id)
    wait(watch.poll_logs())
    assert rolled(bench, logs) == [7]
    seen.clear()
    assert renew(watch) == []
    assert len(seen) == 9, "of them 3 because the logs have new entries"


def test_a_lease_that_is_lost_fences_its_own_log(bench: Workbench, watch: LeaseRenewer, logs: Logs) -> None:
    """The file is released at once; no other log is affected."""
    bench.clock.advance(60_000)
    topic, log = logs[7]
    bench.metadata.leases.acquire(topic.record.id, "other:1:ab", 15_000)
    wait(begun := renew(watch))
    assert len(begun) == 1
    with pytest.raises(Fenced, match="has lost the lease"):
        log.append(single(b"b", b"2"))
    assert renew(watch) == [], "reported once"
    for number, (other, goes_on) in enumerate(logs):
        if number != 7:
            goes_on.append(single(b"b", b"2"))
            lease = bench.metadata.leases.current(other.record.id)
            assert lease is not None
            assert lease.expires_at == bench.clock.now_ms() + 15_000
    bench.clock.advance(20_000)
    with topic.append_log(0, renewer=watch) as successor:
        successor.append(single(b"c", b"3"))
    assert [message.key for message in raw(topic)] == [b"a", b"c"]


def test_a_topic_that_was_deleted_is_told_to_its_log(bench: Workbench, watch: LeaseRenewer, logs: Logs) -> None:
    for number, answer, parts in (
        (3, watch.poll_logs, 1),
        (4, partial(renew, watch), 2),
    ):  # the lease of the first one, too
        topic, log = logs[number]
        bench.metadata.tenancy.delete_topic(topic.record.id)
        wait(begun := answer())
        assert len(begun) == parts
        with pytest.raises(TopicNotFound):
            log.append(single(b"b", b"2"))
    wait([*watch.poll_logs(), *renew(watch)])
    logs[5][1].append(single(b"b", b"2"))


def test_those_that_are_old_or_asked_to_roll(bench: Workbench, watch: LeaseRenewer, logs: Logs) -> None:
    bench.metadata.segments.request_roll(logs[2][0].record.id)
    wait(watch.poll_logs())
    assert rolled(bench, logs) == [2]
    for number in (2, 4):  # policies are read when a segment is opened
        topic, log = logs[number]
        bench.metadata.policies.change([topic_scope(topic.record)], {"segment.ms": 60_000})
        log.roll()
        log.append(single(b"b", b"2"))
    assert watch.poll_logs() == []
    bench.clock.advance(60_000)
    wait(begun := watch.poll_logs())
    assert len(begun) == 2
    assert bench.metadata.segments.find_open(logs[4][0].record.id) is None
    assert watch.poll_logs() == []


def test_one_that_fails_or_takes_long_to_roll_holds_up_no_other(
    bench: Workbench,
    watch: LeaseRenewer,
    logs: Logs,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    go_on, begun = threading.Event(), threading.Event()
    rolls = bench.metadata.segments.roll

    def held(lease: Lease, ledger_id: int, content: SegmentContent) -> SegmentRecord:
        if lease.topic_id == logs[0][0].record.id:
            begun.set()
            assert go_on.wait(30)
        return rolls(lease, ledger_id, content)

    def fails(lease: Lease, ledger_id: int, content: SegmentContent) -> SegmentRecord:
        if lease.topic_id == logs[1][0].record.id:
            raise Unavailable("no database", "try again")
        return held(lease, ledger_id, content)

    monkeypatch.setattr(bench.metadata.segments, "roll", held)
    with monkeypatch.context() as patched:
        patched.setattr(bench.metadata.segments, "roll", fails)
        for number in (0, 1, 2):
            bench.metadata.segments.request_roll(logs[number][0].record.id)
        works = watch.poll_logs()
        assert begun.wait(30)
        wait(works[1:])
        assert rolled(bench, logs) == [2]
        assert "cannot be rolled now: no database" in caplog.text
    bench.clock.advance(10_000)
    assert renew(watch) == [], "renewals do not wait for rolls"
    wait(watch.poll_logs())
    assert rolled(bench, logs) == [1, 2], "tried again; what is under way is not begun twice"
    lease = bench.metadata.leases.current(logs[0][0].record.id)
    assert lease is not None
    assert lease.expires_at == bench.clock.now_ms() + 15_000
    go_on.set()
    wait(works)
    assert rolled(bench, logs) == [0, 1, 2]


def test_who_leaves_waits_for_what_was_begun(
    bench: Workbench, watch: LeaseRenewer, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, begun = threading.Event(), threading.Event()
    with topic.append_log(0, renewer=watch) as log:
        log.append(single(b"a", b"1"))
        real = SegmentLifecycle.roll

        def held(segments: SegmentLifecycle, writer: SegmentWriter | None) -> SegmentRecord | None:
            begun.set()
            assert go_on.wait(30)
            return real(segments, writer)

        monkeypatch.setattr(SegmentLifecycle, "roll", held)
        bench.metadata.segments.request_roll(topic.record.id)
        (work,) = watch.poll_logs()
        assert begun.wait(30)
        leaves = threading.Thread(target=log.__exit__, args=(None, None, None))
        leaves.start()
        go_on.set()
        leaves.join(30)
        assert work.done()
        assert bench.metadata.leases.current(topic.record.id) is None
        assert watch.poll_logs() == []
        assert renew(watch) == [], "a lease that was released is not lost"


def test_a_watch_by_itself_rolls_and_renews(bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its threads work without a call, also after a poll and a renewal that failed."""
    renewed, rolled_one = threading.Event(), threading.Event()
    segments, leases = bench.metadata.segments, bench.metadata.leases
    ask, renew = segments.roll_requests_and_deletions, leases.renew_many
    failures = {"poll", "renewal"}

    def fails_once(kind: str) -> None:
        if kind in failures:
            failures.remove(kind)
            raise Unavailable("no database", "try again")

    def asking() -> RollRequestsAndDeletions:
        fails_once("poll")
        return ask()

    def renewing(held: Sequence[Lease], ttl_ms: int) -> UnrenewedLeases:
        fails_once("renewal")
        answer = renew(held, ttl_ms)
        renewed.set()
        return answer

    monkeypatch.setattr(segments, "roll_requests_and_deletions", asking)
    monkeypatch.setattr(leases, "renew_many", renewing)
    with (
        LeaseRenewer(bench.metadata, poll_seconds=0.001, renew_seconds=0.01) as watch,
        topic.append_log(0, rolled_one.set, watch) as log,
    ):
        log.append(single(b"a", b"1"))
        bench.metadata.segments.request_roll(topic.record.id)
        assert rolled_one.wait(30)
        assert renewed.wait(30)
        assert not failures
    with pytest.raises(Unavailable, match="is ending"), topic.append_log(0, renewer=watch):
        pass
    assert bench.metadata.leases.current(topic.record.id) is None


def test_a_log_that_is_open_in_the_process_rolls_without_a_request(
    bench: Workbench, watch: LeaseRenewer, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[int] = []
    monkeypatch.setattr(bench.metadata.segments, "request_roll", requests.append)
    manager = LogManager(replace(bench, log=replace(bench.log, roll_open=watch.roll)), "a compaction")
    with topic.append_log(0, renewer=watch) as log:
        for value in (b"1", b"2"):
            log.append(single(b"a", value))
            manager.roll(topic.record)
            assert bench.metadata.segments.find_open(topic.record.id) is None
    assert requests == []
    rolled = manager.rolled_segments(topic.record)
    assert [segment.content.messages for segment in rolled if segment.content] == [1, 1]


def test_a_log_says_whether_it_rolled(bench: Workbench, watch: LeaseRenewer) -> None:
    failures: list[Exception] = [Unavailable("no disk", "try again"), RuntimeError("a defect")]
    began, end = threading.Event(), threading.Event()

    def roll() -> None:
        if failures:
            raise failures.pop()

    def hang() -> None:
        began.set()
        assert end.wait(30)

    def fenced() -> None:
        raise Fenced("another writer", "open it again")

    steps = {1: roll, 2: hang, 3: fenced}
    with ExitStack() as stack:
        for topic_id, step in steps.items():
            stack.enter_context(watch.rolling_when_due(topic_id, lambda: False, step, lambda: None))
        assert [watch.roll(1, 30_000) for _ in range(3)] == [False, False, True]
        assert [watch.roll(3, 30_000) for _ in range(2)] == [False, False], "a fenced log is not polled any more"
        assert not watch.roll(2, 1)
        assert began.wait(30)
        assert not watch.roll(2, 30_000), "it rolls already"
        end.set()
    assert not watch.roll(1, 30_000), "it is closed"


def test_a_lease_whose_row_is_locked_is_tried_again_soon(
    bench: Workbench, watch: LeaseRenewer, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[int]] = []
    locked = logs[3][0].record.id

    def renew_many(held: Sequence[Lease], _: int) -> UnrenewedLeases:
        calls.append([lease.topic_id for lease in held])
        return UnrenewedLeases([], [lease for lease in held if lease.topic_id == locked])

    monkeypatch.setattr(bench.metadata.leases, "renew_many", renew_many)
    assert renew(watch) == []
    assert [watch.renew_due_leases(), watch.renew_due_leases()] == [[], []]
    assert calls == [[topic.record.id for topic, _ in logs], [locked], [locked]]
    logs[3][1].append(single(b"b", b"2"))


def test_a_process_that_was_paused_renews_its_leases_at_once(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may have taken them meanwhile, and clients would be served by both until the next renewal."""
    renewed: list[int] = []

    def renew_many(held: Sequence[Lease], _: int) -> UnrenewedLeases:
        renewed.extend(lease.topic_id for lease in held)
        return UnrenewedLeases([], [])

    monkeypatch.setattr(bench.metadata.leases, "renew_many", renew_many)
    with LeaseRenewer(bench.metadata, 3600.0, 3600.0, bench.clock) as watch, topic.append_log(0, renewer=watch):
        assert watch.renew_due_leases() == []
        assert renewed == []
        bench.clock.advance(LEASE_TTL_MS)
        assert watch.renew_due_leases() == []
        assert renewed == [topic.record.id]
        for _ in range(TICKS - 3):
            watch.renew_due_leases()
        assert renewed == [topic.record.id], "not due again"
        watch.renew_due_leases()
        assert renewed == [topic.record.id] * 2, "the end of the interval"
