"""Worked example 12 of the page that `test_worked_examples.py` names: the log file, its readers, and damage to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from storage.entries.chunk_assembler import assemble_messages
from storage.errors import ObjectDamaged
from storage.log.segment import SegmentPaths
from storage.positions import StartOffset
from storage.reading.page_reader import ReadLimits
from storage.topic import Topic
from tests.conformance.test_worked_examples import at
from tests.entries import produce, single
from tests.workbench import Workbench, raw


def log_file(bench: Workbench, topic: Topic, first_offset: int) -> Path:
    return SegmentPaths(bench.log.topic_folder(topic.record.uid), first_offset).log


def test_worked_example_12_the_log_file(bench: Workbench, topic: Topic) -> None:
    """Named by its first offset; after the header an entry is a 4-byte length N, 5 bytes that prove it, and N bytes."""
    for begin in (0, 3, 7):
        sent = [single(b"k", b"%d" % offset) for offset in range(begin, begin + 3 + begin // 3)]
        produce(topic, sent)
        file = log_file(bench, topic, begin)
        assert file.name == f"{begin:020d}.log"
        data = file.read_bytes()
        position = 64
        for entry in sent:
            assert int.from_bytes(data[position : position + 4], "big") == len(entry)
            assert data[position + 9 : position + 9 + len(entry)] == entry
            position += 9 + len(entry)
        assert position == len(data)
        topic.log_manager().roll(topic.record)
        assert raw(topic)[begin].offset == begin
    assert [segment.first_offset for segment in topic.snapshot().segments] == [0, 3, 7]


def test_worked_example_12_a_reader_finds_the_segment_of_an_offset(bench: Workbench, topic: Topic) -> None:
    """A reader uses the list of first offsets alone. It does not read the other segments, so they may be missing."""
    for begin in (0, 4, 8):
        produce(topic, [single(b"k", b"%d" % offset) for offset in range(begin, begin + 4)])
        topic.log_manager().roll(topic.record)
    everything = raw(topic)
    for begin in (0, 4, 8):
        hidden = [log_file(bench, topic, other) for other in (0, 4, 8) if other != begin]
        for file in hidden:
            file.rename(file.with_suffix(".hidden"))
        for offset in range(begin, begin + 4):
            result = list(assemble_messages(topic.read(StartOffset(offset), max_messages=begin + 4 - offset), -1))
            assert result == everything[offset : begin + 4]
        for file in hidden:
            file.with_suffix(".hidden").rename(file)


@pytest.mark.parametrize("size", [10, 5_000, 300_000, 4_000_000])
def test_worked_example_12_a_read_grows_for_a_message_that_does_not_fit(topic: Topic, size: int) -> None:
    """A read grows up to the message limit, both for a page of 100 bytes and for the reader's own buffer."""
    payloads = [b"a", os.urandom(size), b"b", os.urandom(size)]
    produce(topic, [single(b"k", payload) for payload in payloads])
    reader = topic.reader()
    pages = []
    while some := reader.poll(ReadLimits(bytes=100)):
        pages.append([message.payload for message in assemble_messages(iter(some), -1)])
    if size > 100:
        assert pages == [[payload] for payload in payloads]
    else:
        assert pages == [payloads]


@pytest.mark.parametrize(
    "damage",
    [b"\x00" * 4096, os.urandom(4096), b"\x00\x00\x10\x00\x01", b"\x7f\xff\xff\xff" + b"\x01" * 40, b"\x00"],
    ids=["a block never written", "a block of nonsense", "a length alone", "a length beyond the file", "one byte"],
)
def test_worked_example_12_after_a_crash_the_log_is_cut_after_the_last_whole_entry(
    bench: Workbench, topic: Topic, damage: bytes
) -> None:
    produce(topic, [single(b"a", b"0"), single(b"b", b"1")])
    file = log_file(bench, topic, 0)
    whole = file.stat().st_size
    with file.open("ab") as log:
        log.write(damage)
    assert at(raw(topic)) == [0, 1], "no reader sees what was not acknowledged"
    produce(topic, [])
    assert file.stat().st_size == whole
    produce(topic, [single(b"c", b"2")])
    assert [(message.offset, message.key) for message in raw(topic)] == [(0, b"a"), (1, b"b"), (2, b"c")]


def test_worked_example_12_an_entry_that_is_cut_short_goes(bench: Workbench, topic: Topic) -> None:
    """The end file is lost, too: then the walk alone decides, and each cut leaves the entries that are whole."""
    entries = [single(b"k", b"%d" % number * 9) for number in range(3)]
    produce(topic, entries)
    files = SegmentPaths(log_file(bench, topic, 0).parent, 0)
    data = files.log.read_bytes()
    ends = [64]
    for entry in entries:
        ends.append(ends[-1] + 9 + len(entry))
    assert ends[-1] == len(data)
    for size in range(len(data), 63, -1):
        files.log.write_bytes(data[:size])
        files.high_watermark.unlink(missing_ok=True)
        files.index.unlink(missing_ok=True)
        produce(topic, [])
        remaining = max(number for number, end in enumerate(ends) if end <= size)
        assert (at(raw(topic)), files.log.stat().st_size) == (list(range(remaining)), ends[remaining])


@pytest.mark.parametrize("kind", ["a block never written", "a block of nonsense"])
def test_worked_example_12_damage_in_a_closed_segment_is_an_error_with_its_place(
    bench: Workbench, topic: Topic, kind: str
) -> None:
    """L2: never a silent gap."""
    entries = [single(b"k", os.urandom(5000)) for _ in range(4)]
    produce(topic, entries)
    topic.log_manager().roll(topic.record)
    produce(topic, [single(b"k", b"4")])
    file = log_file(bench, topic, 0)
    second = 64 + 9 + len(entries[0])
    with file.open("r+b") as log:
        log.seek(second + 100)
        log.write(b"\x00" * 4096 if kind == "a block never written" else os.urandom(4096))
    with pytest.raises(ObjectDamaged, match=rf"{file.name} is damaged at byte {second} \(entry 1, offset 1\)"):
        raw(topic)
    assert at(list(topic.messages(StartOffset(4)))) == [4]
    with pytest.raises(ObjectDamaged, match=file.name):
        topic.log_manager().roll_and_seal(topic.record)
