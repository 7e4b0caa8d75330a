"""Sweeping a log directory: files go late, rows after them, and nothing that is not ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.environment import Environment
from storage.errors import ErrorText, Unavailable
from storage.failpoints import Failpoint
from storage.log.directory import LogDirectory
from storage.log.log_manager import LogManager
from storage.model import Message
from storage.topic import Topic
from tests.dying import dying_at
from tests.entries import produce, single
from tests.workbench import Workbench, content, raw


def test_files_go_after_the_delay_and_rows_after_them(bench: Workbench, topic: Topic) -> None:
    produce(topic, [single(b"a", b"1")])
    topic.log_manager().roll_and_seal(topic.record)
    folder = bench.folder(topic)
    before = raw(topic)
    assert topic.log_manager().remove_sealed_files() == 0
    assert {file.suffix for file in folder.iterdir()} == {".log", ".end", ".index"}
    bench.clock.advance(60_000)
    assert topic.log_manager().remove_sealed_files() == 1
    assert list(folder.iterdir()) == []
    assert bench.segment_states(topic) == []
    assert raw(topic) == before
    assert topic.log_manager().remove_sealed_files() == 0


def test_files_of_no_row_go_and_what_a_writer_makes_stays(bench: Workbench, topic: Topic) -> None:
    with dying_at(Failpoint.SEGMENT_FILE_CREATED):
        produce(topic, [single(b"a", b"1")])
    assert topic.log_manager().remove_sealed_files() == 0, "it is at the topic's end, where a writer may be at work"
    bench.append(topic, [content((b"x", b"1"))])
    assert topic.log_manager().remove_sealed_files() == 1
    produce(topic, [single(b"b", b"2")])
    assert topic.log_manager().remove_sealed_files() == 0
    assert [m.key for m in raw(topic)] == [b"x", b"b"]


def test_a_sweep_of_one_topic_looks_at_no_other(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made every second by each writer's sealer."""
    other = bench.topic("other")
    for one_topic in (topic, other):
        produce(one_topic, [single(b"a", b"1")])
        one_topic.log_manager().roll_and_seal(one_topic.record)
    bench.clock.advance(60_000)
    with monkeypatch.context() as patched:
        patched.setattr(bench.metadata.topics, "all", lambda: pytest.fail("it lists all topics"))
        assert topic.log_manager().remove_sealed_files(topic.record) == 1
        assert topic.log_manager().remove_sealed_files(topic.record) == 0
    assert (bench.segment_states(topic), bench.segment_states(other)) == ([], ["SEALED"])
    assert topic.log_manager().remove_sealed_files() == 1


def test_a_file_that_cannot_be_removed_holds_up_no_other(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither of its topic, nor of others, nor of topics that were deleted; each case is reported."""
    other, deleted = bench.topic("other"), bench.topic("was-deleted")
    for each in (topic, topic, other, deleted, deleted):
        produce(each, [single(b"k", b"v")])
        each.log_manager().roll_and_seal(each.record)
    bench.metadata.tenancy.delete_topic(deleted.record.id)
    bench.clock.advance(bench.metadata.policies.effective(topic.record).file_delete_delay_ms)
    stuck = {bench.folder(each) / f"{0:020}.log" for each in (topic, deleted)}
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path in stuck:
            raise PermissionError(1, "Operation not permitted", str(path))
        unlink(path, missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        failing: dict[str, ErrorText] = {}
        assert topic.log_manager().remove_sealed_files(errors=failing) == 3
        assert failing.keys() == {str(topic.name), deleted.record.uid}
        assert str(failing[str(topic.name)]).endswith(f"{0:020}.log: Operation not permitted")
        assert len(bench.metadata.segments.of_topic(topic.record.id)) == 1
        assert bench.metadata.segments.of_topic(other.record.id) == []
        for swept_topic in (None, topic.record):
            with pytest.raises(Unavailable, match=r"are not swept: .* not permitted"):
                topic.log_manager().remove_sealed_files(swept_topic)
    assert topic.log_manager().remove_sealed_files() == 2
    assert not any(file.exists() for file in stuck)


def test_another_directory_sweeps_nothing_of_ours(bench: Workbench, topic: Topic, tmp_path: Path) -> None:
    produce(topic, [single(b"a", b"1")])
    topic.log_manager().roll_and_seal(topic.record)
    bench.clock.advance(10**9)
    other = LogManager(Environment(bench.metadata, bench.store, bench.clock, LogDirectory(tmp_path / "other")), "other")
    assert other.remove_sealed_files() == 0
    assert bench.segment_states(topic) == ["SEALED"]


def test_a_reader_goes_on_when_its_segment_is_sealed_and_swept(bench: Workbench, topic: Topic) -> None:
    """L4: a consistent list of segments and ledgers while both change."""
    bench.metadata.policies.change(["broker"], {"segment.bytes": 1 << 14})
    produce(topic, [single(b"k%d" % number, b"x" * 9000) for number in range(9)])
    expected = raw(topic)
    assert len(topic.snapshot().segments) > 3
    reading = topic.messages()
    messages: list[Message] = [next(reading)]
    topic.log_manager().roll_and_seal(topic.record)
    bench.clock.advance(60_000)
    assert topic.log_manager().remove_sealed_files() > 3
    messages += reading
    assert messages == expected


def test_looking_after_a_topic_without_a_log_makes_no_directory(bench: Workbench, topic: Topic, tmp_path: Path) -> None:
    bench.append(topic, [content((b"a", b"1"))])
    bench.compact(topic)
    topic.log_manager().remove_sealed_files()
    assert not (tmp_path / "log").exists()
