"""Pages of a read, each in a process of its own: tokens, and chunked messages that are across pages."""

from __future__ import annotations

import pytest

from api.formats.position_text import parse_start
from compactor.maintenance.garbage import GarbageCollector
from compactor.maintenance.grace import GRACE_MS
from compactor.maintenance.retention import Retention
from storage.errors import StateMayBeStale
from storage.metadata.policy_store import topic_scope
from storage.model import Message
from storage.positions import ContinuationToken
from storage.reading.page_reader import CHUNK_EXPIRY_MS, ReadLimits
from storage.topic import Topic
from tests.chunked import Row, append, message, whole
from tests.workbench import Workbench, content, view

TOKENS = [
    "earliest", "latest", "17", "3:4:-1", "3:4:-1:2", "@1700000000000",
    "17.29", "17~5", "17~5e", "17~5r", "17~5er", "17~r", "17.29~5e", "17~", "17~5h103", "17.29~5h103e",
]  # fmt: skip


@pytest.mark.parametrize("token", TOKENS)
def test_a_state_is_its_token(token: str) -> None:
    assert state_of(token).to_token() == token


def state_of(token: str) -> ContinuationToken:
    return ContinuationToken.from_token(token, parse_start)


def all_messages(topic: Topic, read_compacted: bool, messages: int) -> list[Message]:
    """All messages, by pages that know nothing of each other but the token."""
    token, collected = "earliest", list[Message]()
    while True:
        page = topic.reader(state_of(token), read_compacted).messages(ReadLimits(messages))
        if not page.messages:
            return collected
        assert len(page.messages) <= messages
        collected += page.messages
        token = page.next.to_token()


def spread() -> list[Row]:
    """Two chunked messages whose chunks are between each other's and those of plain messages."""
    long, short = whole("u", b"long", b"01", b"23", b"45"), whole("v", b"short", b"ab", b"cd")
    plain = [message(b"p%d" % number, b"x") for number in range(6)]
    return [plain[0], long[0], plain[1], short[0], plain[2], long[1], short[1], plain[3], long[2], *plain[4:]]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_chunked_message_is_whole_wherever_pages_end(bench: Workbench, size: int) -> None:
    topic = bench.topic()
    append(bench, topic, spread())
    expected = list(topic.messages())
    assert [item.payload for item in expected if item.key in (b"long", b"short")] == [b"abcd", b"012345"]
    assert all_messages(topic, False, size) == expected
    bench.compact(topic)
    append(bench, topic, [message(b"p0", b"y")])
    assert all_messages(topic, True, size) == list(topic.messages(read_compacted=True))


@pytest.mark.parametrize("size", [1, 4, 10, 40, 41, 100])
def test_a_read_that_begins_behind_a_forced_trim_ends_wherever_pages_do(bench: Workbench, size: int) -> None:
    """Messages after the horizon that were trimmed before the read are no gap, also if a page ends at the horizon."""
    topic = bench.topic()
    bench.append(topic, [content(*[(b"%d" % number, b"x") for number in range(40)])])
    bench.compact(topic)
    bench.append(topic, [content(*[(b"later", b"%d" % number) for number in range(6)])])
    Retention(bench).trim(topic.record, 44, force=True)
    messages = all_messages(topic, True, size)
    assert [item.offset for item in messages] == [*range(40), 44, 45]


def test_bytes_of_a_page(bench: Workbench) -> None:
    topic = bench.topic()
    append(bench, topic, spread())
    expected, state, messages = list(topic.messages()), state_of("earliest"), list[Message]()
    while page := topic.reader(state).messages(ReadLimits(bytes=7)).messages:
        assert len(page) == 1 or sum(len(item.key or b"") + len(item.payload or b"") for item in page) <= 7
        messages += page
        state = topic.reader(state).messages(ReadLimits(bytes=7)).next
    assert messages == expected


def test_rows_are_as_they_are_stored(bench: Workbench) -> None:
    topic = bench.topic()
    append(bench, topic, spread())
    page = topic.reader(state_of("earliest")).rows(ReadLimits(messages=2))
    assert [offset for batch in page.batches for offset in batch.column("offset").to_pylist()] == [0, 1]
    assert page.next.to_token() == "2"


@pytest.mark.parametrize(("late", "expected"), [(0, "0.2"), (CHUNK_EXPIRY_MS + 1, "3")])
def test_one_that_stays_incomplete_holds_pages_for_a_while(bench: Workbench, late: int, expected: str) -> None:
    topic = bench.topic()
    begun = whole("u", b"k", b"1", b"2")[0]
    times = (1_000, 1_000 + late, 1_000 + late)
    rows = [begun, message(b"a", b"x"), message(b"b", b"x")]
    append(bench, topic, [{**row, "publish_time": time} for row, time in zip(rows, times, strict=True)])
    page = topic.reader(state_of("earliest")).messages(ReadLimits(100))
    assert [item.key for item in page.messages] == [b"a", b"b"]
    assert page.next.to_token() == expected
    again = topic.reader(page.next).messages(ReadLimits(100))
    assert again.messages == []
    append(bench, topic, [{**whole("u", b"k", b"1", b"2")[1], "publish_time": times[2]}])
    rest = topic.reader(again.next).messages(ReadLimits(100)).messages
    assert [item.payload for item in rest] == ([] if late else [b"12"])


def test_an_abandoned_chunk_does_not_lose_a_younger_message(bench: Workbench) -> None:
    topic = bench.topic()
    first, second = whole("v", b"b", b"y", b"z")
    late = CHUNK_EXPIRY_MS + 2
    rows = [(whole("u", b"a", b"1", b"2")[0], 0), (message(b"x", b"x"), late), (first, late)]
    append(bench, topic, [{**row, "publish_time": time} for row, time in rows])
    page = topic.reader(state_of("earliest")).messages(ReadLimits(100))
    assert page.next.to_token() == "2.2"
    append(bench, topic, [{**second, "publish_time": late}])
    rest = topic.reader(page.next).messages(ReadLimits(100)).messages
    assert [(item.key, item.payload) for item in rest] == [(b"b", b"yz")]


KEYS = [b"key-%02d" % number for number in range(20)]


def page_of(topic: Topic, token: str, messages: int) -> tuple[list[Message], str]:
    page = topic.reader(state_of(token), read_compacted=True).messages(ReadLimits(messages))
    return page.messages, page.next.to_token()


def churn(bench: Workbench, topic: Topic) -> None:
    """A key comes and goes, and another generation serves."""
    bench.append(topic, [content((b"brief", b"1"), (b"brief", None))])
    bench.compact(topic)


def collect(bench: Workbench, topic: Topic) -> int:
    bench.clock.advance(GRACE_MS)
    return GarbageCollector(bench).collect(topic.record).compacted_ledgers


@pytest.fixture
def begun(bench: Workbench, topic: Topic) -> tuple[list[Message], str]:
    """Two messages of a compacted ledger of twenty were read, and the token of the rest."""
    bench.append(topic, [content(*((key, b"x" * 60) for key in KEYS))])
    bench.compact(topic)
    return page_of(topic, "earliest", 2)


@pytest.mark.slow
def test_pages_stay_in_their_compacted_ledger_while_its_grace_lasts(
    bench: Workbench, topic: Topic, begun: tuple[list[Message], str]
) -> None:
    """R7: a reader that is slower than compactions comes to the end, and gets each key of its generation once."""
    messages, token = begun
    assert token == f"2~{topic.snapshot().compacted.ledger_id}h19"  # type: ignore[union-attr]
    while len(messages) < len(KEYS):
        churn(bench, topic)
        page, token = page_of(topic, token, 3)
        messages += page
    assert [item.key for item in messages] == KEYS
    assert bench.metadata.pins.gc_snapshot(topic.record.id).pins == (), (
        "between pages the grace holds it, and nothing else"
    )
    rest, _ = page_of(topic, token, 100)
    assert view([*messages, *rest]) == view(list(topic.messages()))


def test_a_page_that_ends_inside_the_last_table_knows_as_much_as_its_read(bench: Workbench, topic: Topic) -> None:
    """R7: also where the table ends at the horizon, but nothing of raw messages that it does not hold."""
    bench.append(topic, [content((b"a", b"1"), (b"b", b"1"), (b"c", b"1"))])
    bench.compact(topic)
    bench.append(topic, [content((b"a", b"2"), (b"b", b"2"), (b"a", b"3"))])
    _, token = page_of(topic, "earliest", 1)
    ledger_id = topic.snapshot().compacted.ledger_id  # type: ignore[union-attr]
    assert token == f"1~{ledger_id}h2"
    _, token = page_of(topic, token, 3)
    assert token == f"4~{ledger_id}r"


def test_pages_go_on_raw_when_their_compacted_ledger_is_collected(
    bench: Workbench, topic: Topic, begun: tuple[list[Message], str]
) -> None:
    messages, token = begun
    churn(bench, topic)
    assert collect(bench, topic) == 1
    page, token = page_of(topic, token, 3)
    assert [item.offset for item in page] == [2, 3, 4]
    assert token.endswith("r")
    rest, _ = page_of(topic, token, 100)
    assert view([*messages, *page, *rest]) == view(list(topic.messages()))


@pytest.mark.parametrize("misses", [False, True])
def test_pages_go_on_in_a_newer_compacted_ledger_when_raw_is_gone_too(
    bench: Workbench, topic: Topic, begun: tuple[list[Message], str], misses: bool
) -> None:
    """R7: unless something that was not read has left."""
    messages, token = begun
    bench.append(topic, [content((KEYS[0], None if misses else b"new"), (KEYS[7], b"new"))])
    bench.compact(topic)
    everything = view(list(topic.messages()))
    bench.metadata.policies.change([topic_scope(topic.record)], {"cleanup.policy": "compact"})
    Retention(bench).trim(topic.record)
    assert collect(bench, topic) == 1
    if misses:
        with pytest.raises(StateMayBeStale):
            page_of(topic, token, 100)
        return
    rest, token = page_of(topic, token, 3)
    while page := page_of(topic, token, 3):
        if not page[0]:
            break
        rest, token = rest + page[0], page[1]
    offsets = [item.offset for item in [*messages, *rest]]
    assert offsets == sorted(set(offsets))
    assert view([*messages, *rest]) == everything


@pytest.mark.parametrize("start", ["earliest", "latest", "0", "1:1:-1", "@1700000000000"])
def test_the_token_of_a_page_that_found_nothing_is_taken(bench: Workbench, topic: Topic, start: str) -> None:
    """Nothing was delivered: the next page begins as the first one did, and cannot miss anything."""
    for _ in range(2):
        page, token = page_of(topic, start, 5)
        assert page == []
        assert page_of(topic, token, 5) == ([], token)
    bench.append(topic, [content((b"k", None), (b"a", b"1"), (b"b", b"2"))])
    bench.metadata.trimming.truncate([topic.record.id])
    bench.append(topic, [content((b"k", b"v"))])
    assert [item.payload for item in page_of(topic, token, 5)[0]] == [b"v"]
