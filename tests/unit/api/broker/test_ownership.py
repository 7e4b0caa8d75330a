"""Ownership: the service that executes a request for a topic, by live services, log directories and leases."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from api.broker.ownership import TopicOwnership
from api.broker.refusals import NotTheOwner, WriterElsewhere
from storage.environment import Environment
from storage.log.directory import LogDirectory
from storage.metadata.records import SERVICE_DEAD_MS, ServiceRecord, TopicRecord
from storage.model import EARLIEST, LATEST, TopicName
from storage.owner import Owner
from storage.positions import StartOffset, StartPosition, StartTime
from storage.topic import Topic
from tests.entries import NOW, produce, single
from tests.workbench import Workbench, content


@pytest.fixture
def logs(tmp_path: Path) -> dict[str, LogDirectory]:
    """The log directories of services a and b, and of one that has none of a topic's messages."""
    created = {name: LogDirectory(tmp_path / name) for name in "abc"}
    for log in created.values():
        log.uid  # noqa: B018  something was written to it
    return created


@pytest.fixture
def two_logs(bench: Workbench, logs: dict[str, LogDirectory]) -> TopicRecord:
    """Offset 0 is sealed, 1 rolled in a's log directory, 2 open in b's."""
    topic = bench.topic()
    bench.append(topic, [content((b"k", b"0"))])
    for name in "ab":
        writer = Topic(Environment(bench.metadata, bench.store, bench.clock, logs[name]), topic.record)
        produce(writer, [single(b"k", name.encode())])
        if name == "a":
            writer.log_manager().roll(topic.record)
    return topic.record


@pytest.mark.parametrize(
    ("alive", "start", "expected"),
    [
        # first, all live: a read goes where the first messages are that it comes to, another request to the newest
        ("ab", EARLIEST, {"a": "a", "b": "a", "c": "a"}),
        ("ab", StartOffset(1), {"a": "a", "b": "a", "c": "a"}),
        ("ab", StartOffset(2), {"a": "b", "b": "b", "c": "b"}),
        ("ab", LATEST, {"a": "b", "b": "b", "c": "b"}),
        ("ab", StartTime(NOW), {"a": "a", "b": "a", "c": "a"}),
        ("ab", StartTime(NOW + 1), {"a": "b", "b": "b", "c": "b"}),
        ("ab", None, {"a": "b", "b": "b", "c": "b"}),
        # then a's machine is away, or b's: each gives what it has
        ("b", EARLIEST, {"b": "b", "c": "c"}),
        ("b", StartOffset(2), {"b": "b", "c": "b"}),
        ("b", None, {"b": "b", "c": "b"}),
        ("a", StartOffset(2), {"a": "a", "c": "c"}),
        ("a", None, {"a": "a", "c": "a"}),
        ("", EARLIEST, {"c": "c"}),
        ("", None, {"c": "c"}),
    ],
)
def test_a_request_goes_to_a_service_that_lives_and_has_what_it_needs(
    bench: Workbench,
    logs: dict[str, LogDirectory],
    two_logs: TopicRecord,
    alive: str,
    start: StartPosition | None,
    expected: dict[str, str],
) -> None:
    """And who was asked asks no other."""
    for name in alive:
        bench.metadata.services.heartbeat(ServiceRecord(name, f"http://{name}", logs[name].uid, 0, 0))
    owners = {}
    for name in expected:
        ownership = TopicOwnership(bench.metadata, bench.clock, logs[name])
        try:
            ownership.check_for_reading(two_logs, start)
            owners[name] = name
        except NotTheOwner as other:
            owners[name] = other.service.name
    assert owners == expected


def test_a_log_disk_that_hangs_keeps_no_request_from_where_it_belongs(
    bench: Workbench, logs: dict[str, LogDirectory], two_logs: TopicRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This runs in the threads that wait for the database."""
    assert LogDirectory(logs["a"].path.with_name("new")).known_uid is None
    second_log = LogDirectory(logs["b"].path)
    assert second_log.known_uid == logs["b"].uid
    monkeypatch.setattr(Path, "read_text", lambda _: pytest.fail("the disk is asked"))
    ownership = TopicOwnership(bench.metadata, bench.clock, second_log)
    ownership.check_for_reading(two_logs)
    ownership.check_for_writing(two_logs)


def test_a_process_of_the_same_host_and_pid_is_another_one(bench: Workbench, logs: dict[str, LogDirectory]) -> None:
    """Containers share a host name, and all run as pid 1."""
    topic = bench.topic().record
    ownership = TopicOwnership(bench.metadata, bench.clock, logs["a"])
    this_process = Owner.current()
    lease = bench.metadata.leases.acquire(topic.id, str(this_process), 15_000)
    ownership.check_for_writing(topic)
    bench.metadata.leases.release(lease)
    twin = replace(this_process, machine="0a0a0a0a")
    bench.metadata.leases.acquire(topic.id, str(twin), 15_000)
    with pytest.raises(WriterElsewhere, match="is writing to"):
        ownership.check_for_writing(topic)
    bench.metadata.services.heartbeat(ServiceRecord(str(twin), "http://twin", None, 0, 0))
    with pytest.raises(NotTheOwner):
        ownership.check_for_writing(topic)


def test_a_log_directory_without_a_service_is_listed_with_the_topics_that_wait(
    bench: Workbench, logs: dict[str, LogDirectory], two_logs: TopicRecord
) -> None:
    ownership = TopicOwnership(bench.metadata, bench.clock, logs["c"])
    services = {name: ServiceRecord(name, f"http://{name}", logs[name].uid, 0, 0) for name in "ab"}

    def unserved() -> dict[str | None, tuple[str | None, list[TopicName]]]:
        return {
            log.log_uid: (log.service and log.service.name, list(log.topics))
            for log in ownership.unserved_log_directories()
        }

    waiting = [two_logs.name]
    assert unserved() == {logs["a"].uid: (None, waiting), logs["b"].uid: (None, waiting)}
    for record in services.values():
        bench.metadata.services.heartbeat(record)
    assert unserved() == {}
    bench.advance(SERVICE_DEAD_MS)
    bench.metadata.services.heartbeat(services["a"])
    assert unserved() == {logs["b"].uid: ("b", waiting)}
    bench.metadata.services.heartbeat(replace(services["b"], name="b, started again"))
    assert unserved() == {}
