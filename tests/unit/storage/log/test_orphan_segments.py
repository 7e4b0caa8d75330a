"""Files that no row names: a database that was restored is older than the log, and nothing of the log is destroyed."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from storage.errors import CompactorError, ErrorText, Fenced, Misconfigured, Unavailable
from storage.log.directory import LogDirectory
from storage.log.segment import SegmentPaths
from storage.model import Message
from storage.topic import Topic
from tests.entries import produce, single
from tests.segments import flip
from tests.workbench import Workbench, content, raw


def backed_up(bench: Workbench) -> Callable[[], None]:
    """A backup of the database as it is now; call it to bring it back."""
    database = bench.log.path.parent / "metadata.db"
    backup = database.with_suffix(".backup")
    source, copy = sqlite3.connect(database), sqlite3.connect(backup)
    source.backup(copy)
    source.close()
    copy.close()

    def restore() -> None:
        bench.metadata.close()
        for extra in ("-wal", "-shm"):
            Path(f"{database}{extra}").unlink(missing_ok=True)
        shutil.copy(backup, database)

    return restore


def kept_aside(bench: Workbench, topic: Topic) -> list[str]:
    return sorted(file.name for file in bench.folder(topic).iterdir() if ".aside-" in file.name)


def segments_of(topic: Topic, *keys: bytes) -> list[Message]:
    """One segment a key, all rolled but the last; the messages as they can be read."""
    for number, key in enumerate(keys):
        if number:
            topic.log_manager().roll(topic.record)
        produce(topic, [single(key, b"acknowledged")])
    return raw(topic)


def test_what_a_restored_database_has_lost_is_taken_up_again(bench: Workbench, topic: Topic) -> None:
    """The open segment continues, those that were opened later come behind it: ids and offsets are as they were."""
    produce(topic, [single(b"a", b"1")])
    restore = backed_up(bench)
    produce(topic, [single(b"b", b"2")])
    before = segments_of(topic, b"c", b"d", b"e")
    restore()
    assert [m.key for m in raw(topic)] == [b"a", b"b", b"c"], "what the database knows to be open"
    produce(topic, [single(b"f", b"new")])
    after = raw(topic)
    assert after[:-1] == before
    assert after[-1].offset == len(before)
    other = bench.topic("other")
    produce(other, [single(b"x", b"1")])
    assert raw(other)[0].message_id.ledger_id > after[-1].message_id.ledger_id, "no id is given twice"


@pytest.mark.parametrize("by", ["roll", "import", "sweep", "compaction"])
def test_others_than_a_writer_take_it_up_too(bench: Workbench, topic: Topic, by: str) -> None:
    restore = backed_up(bench)
    before = segments_of(topic, b"a", b"b")
    restore()
    assert raw(topic) == []
    if by == "roll":
        topic.log_manager().roll(topic.record)
    elif by == "import":
        bench.append(topic, [content((b"new", b"1"))])
    elif by == "sweep":
        failing: dict[str, ErrorText] = {}
        topic.log_manager().remove_sealed_files(errors=failing)
        assert not failing
    else:
        bench.compact(topic)
    assert raw(topic)[:2] == before


def test_a_gap_before_what_was_lost_refuses_appends_until_the_loss_is_accepted(bench: Workbench, topic: Topic) -> None:
    bench.append(topic, [content((b"a", b"1"))])
    restore = backed_up(bench)
    segments_of(topic, b"b", b"c")
    topic.log_manager().roll_and_seal(topic.record)
    produce(topic, [single(b"d", b"4")])
    bench.clock.advance(60_000)
    topic.log_manager().remove_sealed_files(
        topic.record
    )  # b and c are in ledgers alone, which the backup does not know
    restore()
    refusal = r"00000000000000000003\.log holds messages .* the topic ends at offset 1 in the database"
    with pytest.raises(Misconfigured, match=refusal):
        produce(topic, [single(b"new", b"1")])
    with pytest.raises(Misconfigured, match=refusal):
        bench.append(topic, [content((b"new", b"1"))])
    failing: dict[str, ErrorText] = {}
    topic.log_manager().remove_sealed_files(errors=failing)
    assert "the topic ends at offset 1" in str(failing[str(topic.name)])
    assert kept_aside(bench, topic) == []
    topic.log_manager().roll(topic.record, accept_loss=True)
    assert kept_aside(bench, topic) == [f"{3:020d}.aside-1.{kind}" for kind in ("end", "index", "log")]
    produce(topic, [single(b"new", b"1")])
    assert [m.key for m in raw(topic)][-1] == b"new"


def test_what_another_machine_has_given_the_id_of_is_not_taken_up(
    bench: Workbench, topic: Topic, tmp_path: Path
) -> None:
    restore = backed_up(bench)
    segments_of(topic, b"a")
    restore()
    other = replace(bench, log=LogDirectory(tmp_path / "elsewhere")).topic("other")
    produce(other, [single(b"x", b"1")])
    with pytest.raises(Misconfigured, match=r"its ledger id \d+ was given to another ledger: restore a database"):
        produce(topic, [single(b"new", b"1")])
    topic.log_manager().roll(topic.record, accept_loss=True)
    produce(topic, [single(b"new", b"1")])
    assert [m.key for m in raw(topic)] == [b"new"]


@pytest.mark.parametrize("by", ["writer", "import", "compaction"])
def test_a_process_gives_no_other_topic_the_ids_of_what_was_lost(bench: Workbench, topic: Topic, by: str) -> None:
    """Whichever topic comes first after the restore; a folder of a topic that the database has lost, too."""
    other = bench.topic("other")
    bench.append(other, [content((b"x", b"1"))])
    restore = backed_up(bench)
    before = segments_of(topic, b"a", b"b")
    newer = ledger_id_of(bench.topic("newer"))
    restore()
    started = replace(bench, log=LogDirectory(bench.log.path))
    other = started.topic("other")
    if by == "writer":
        produce(other, [single(b"x", b"2")])
    elif by == "import":
        started.append(other, [content((b"x", b"2"))])
    else:
        started.compact(other)
    assert started.metadata.ledgers.allocate_ids(1) > newer
    produce(started.topic(), [single(b"new", b"1")])
    assert raw(started.topic())[:2] == before


def ledger_id_of(topic: Topic) -> int:
    """The ledger id of a message that is appended."""
    produce(topic, [single(b"k", b"v")])
    return raw(topic)[0].message_id.ledger_id


def test_what_keeps_no_id_is_logged_and_stops_no_other_topic(
    bench: Workbench, topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    restore = backed_up(bench)
    segments_of(topic, b"a")
    restore()
    file = bench.files(topic).log
    flip(file, 20)
    started = replace(bench, log=LogDirectory(bench.log.path))
    produce(started.topic("other"), [single(b"x", b"1")])
    assert f"the ledger id of {file}, which has no row in the database, is not known" in caplog.text


def test_damage_in_what_was_lost_is_set_aside_only_if_that_is_accepted(bench: Workbench, topic: Topic) -> None:
    restore = backed_up(bench)
    segments_of(topic, b"a")
    restore()
    file = bench.files(topic).log
    flip(file, 20)
    damaged = file.read_bytes()
    with pytest.raises(Misconfigured, match="the header's checksum is wrong"):
        produce(topic, [single(b"new", b"1")])
    topic.log_manager().roll(topic.record, accept_loss=True)
    assert (bench.folder(topic) / f"{0:020d}.aside-1.log").read_bytes() == damaged


@pytest.mark.parametrize("error", [Fenced("overtaken", "stop"), Misconfigured("read-only", "use another")])
def test_what_has_nothing_to_do_with_the_file_sets_nothing_aside(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch, error: CompactorError
) -> None:
    restore = backed_up(bench)
    before = segments_of(topic, b"a")
    restore()

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(bench.metadata.segments, "restore", fail)
        with pytest.raises(type(error), match=error.message):
            topic.log_manager().roll(topic.record, accept_loss=True)
    assert kept_aside(bench, topic) == []
    topic.log_manager().roll(topic.record)
    assert raw(topic) == before


def test_a_sweep_sets_messages_below_the_end_aside(bench: Workbench, topic: Topic) -> None:
    """Another machine has gone on where the restored database said that the topic ends."""
    restore = backed_up(bench)
    segments_of(topic, b"a", b"b")
    restore()
    folder = bench.folder(topic)
    hidden = folder.rename(folder.with_name("away"))
    bench.append(topic, [content((b"x", b"1"), (b"y", b"2"), (b"z", b"3"))])
    shutil.rmtree(folder, ignore_errors=True)
    hidden.rename(folder)
    lost = (folder / f"{1:020d}.log").read_bytes()
    failing: dict[str, ErrorText] = {}
    assert topic.log_manager().remove_sealed_files(errors=failing) == 0
    assert "holds messages and has no row" in str(failing[str(topic.name)])
    assert (folder / f"{1:020d}.aside-1.log").read_bytes() == lost
    failing.clear()
    assert topic.log_manager().remove_sealed_files(errors=failing) == 0
    assert not failing
    assert [m.key for m in raw(topic)] == [b"x", b"y", b"z"]


def test_a_new_segment_takes_no_name_of_a_file_that_holds_something(bench: Workbench, topic: Topic) -> None:
    folder = bench.folder(topic)
    folder.mkdir(parents=True)
    files = SegmentPaths(folder, 0)
    header = bytes(64)
    for number in (1, 2):
        files.log.write_bytes(header + b"%d" % number)
        with pytest.raises(Misconfigured, match="it does not begin as a segment does"):
            produce(topic, [single(b"new", b"1")])
        topic.log_manager().roll(topic.record, accept_loss=True)
        assert (folder / f"{0:020d}.aside-{number}.log").read_bytes() == header + b"%d" % number
    produce(topic, [single(b"new", b"1")])
    assert [m.key for m in raw(topic)] == [b"new"]


def test_a_file_that_cannot_be_read_is_named(bench: Workbench, topic: Topic) -> None:
    produce(topic, [single(b"a", b"1")])
    folder = bench.files(topic, 1).log  # a file root may always read
    folder.mkdir()
    for number in range(9):
        (folder / str(number)).touch()
    with pytest.raises(Unavailable, match=rf"cannot read the segment {bench.folder(topic)}/0+1\.log, .*: check"):
        produce(topic, [single(b"new", b"1")])


def test_with_its_topic_what_was_set_aside_goes(bench: Workbench, topic: Topic) -> None:
    produce(topic, [single(b"a", b"1")])
    folder = bench.folder(topic)
    SegmentPaths(folder, 1).log.write_bytes(bytes(99))
    topic.log_manager().roll(topic.record, accept_loss=True)
    assert len(kept_aside(bench, topic)) == 1
    bench.metadata.tenancy.delete_topic(topic.record.id)
    bench.clock.advance(60_000)
    topic.log_manager().remove_sealed_files()
    assert not folder.exists()
