"""A reader of entries returns to an entry that it gave: what follows comes again, as if it had not been read."""

from __future__ import annotations

import pytest

from storage.entries.rebuild import DeliverableEntry
from storage.reading.entry_reader import EntryReader
from storage.topic import Topic
from tests.entries import batch, produce, single
from tests.workbench import Workbench, content

KEYS = [b"key-%02d" % number for number in range(20)]


@pytest.fixture
def topic(bench: Workbench) -> Topic:
    """A compacted ledger of several parts, a raw ledger after its horizon, and a segment of two tables."""
    return bench.built(_topic)


def _topic(bench: Workbench) -> Topic:
    topic = bench.topic()
    bench.append(topic, [content(*((key, b"first" * 9) for key in KEYS), (KEYS[3], b"2"), (KEYS[4], None))])
    bench.compact(topic)
    bench.append(topic, [content((b"tail", b"1"), (b"tail", b"2"))])
    produce(
        topic,
        [single(b"a", b"1"), batch((b"b", b"1"), (b"c", b"1")), single(b"d", b"x" * (2 << 20)), single(b"e", b"1")],
    )
    return topic


def pages(reader: EntryReader) -> list[list[DeliverableEntry]]:
    return list(iter(reader.read, []))


def starts(page: list[DeliverableEntry]) -> list[int]:
    """The offsets to which a reader may return after a page."""
    return [*(entry.offset for entry in page), page[-1].end]


@pytest.mark.slow
@pytest.mark.parametrize("read_compacted", [False, True])
def test_what_follows_comes_again(bench: Workbench, topic: Topic, read_compacted: bool) -> None:
    all_pages = pages(topic.entry_reader(read_compacted=read_compacted))
    assert len(all_pages) > (4 if read_compacted else 2)
    entries = [entry for page in all_pages for entry in page]
    for number, page in enumerate(all_pages):
        for offset in starts(page):
            reader = topic.entry_reader(read_compacted=read_compacted)
            for _ in range(number + 1):
                reader.read()
            reader.rewind_to(offset)
            assert bench.metadata.pins.gc_snapshot(topic.record.id).pins == ()
            following = [entry for page in pages(reader) for entry in page]
            assert following == [entry for entry in entries if entry.offset >= offset], (number, offset)
            reader.close()


@pytest.mark.slow
def test_a_compacted_read_continues_in_its_generation(bench: Workbench, topic: Topic) -> None:
    """R7: the generation that serves meanwhile lacks the deletions of keys that the read has delivered."""
    readers = [topic.entry_reader(read_compacted=True) for _ in range(6)]
    first_pages = [reader.read() for reader in readers]
    returns = starts(first_pages[0])[1:]
    assert 1 < len(returns) < len(readers)
    for reader, offset in zip(readers, returns, strict=False):
        reader.rewind_to(offset)
    with topic.append_log() as log:
        log.roll()
    bench.append(topic, [content(*((key, None) for key in KEYS))])
    bench.compact(topic)
    undisturbed = first_pages[-1] + [entry for page in pages(readers[-1]) for entry in page]
    for reader, offset in zip(readers, returns, strict=False):
        following = [(entry.offset, entry.live_mask) for page in pages(reader) for entry in page]
        assert following == [(entry.offset, entry.live_mask) for entry in undisturbed if entry.offset >= offset]
    assert len(undisturbed) > 2 * len(KEYS) - 2
    for reader in readers:
        reader.close()
