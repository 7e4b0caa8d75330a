"""Topic names by Pulsar's rules, message ids by Pulsar's order, and what a tombstone is."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from storage.errors import InvalidMessageId, InvalidTopicName
from storage.model import EARLIEST, LATEST, LogPosition, Message, MessageId, TopicName

NUMBERS = st.integers(0, 2**63 - 1)
INT32 = st.integers(0, 2**31 - 1)


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("orders", "persistent://public/default/orders"),
        ("lab/rest/t1", "persistent://lab/rest/t1"),
        ("persistent://lab/rest/t1", "persistent://lab/rest/t1"),
        ("persistent://t-e=n:a.n_t/n.s/x", "persistent://t-e=n:a.n_t/n.s/x"),
    ],
)
def test_a_topic_has_a_full_name_and_short_ones(text: str, full: str) -> None:
    name = TopicName.parse(text)
    assert str(name) == full
    assert TopicName.parse(full) == name


@pytest.mark.parametrize("local", ["bad name", "\U0001f600", "b@d", "ü", "a:b", "persistent", "%2F", "-", "."])
def test_a_local_name_may_hold_what_pulsar_lets_it_hold(local: str) -> None:
    name = TopicName.parse(f"persistent://lab/rest/{local}")
    assert name.topic == local
    assert TopicName.parse(str(name)) == name


@pytest.mark.parametrize(
    "text",
    [
        "",
        "lab/b@d/t",
        "lab/bad ns/t",
        "b@d/rest/t",
        "lab/ü/t",
        "lab//t",
        "/rest/t",
        "lab/rest/",
        "lab/t",
        "persistent://t",
        "persistent://lab/rest/a/b",
        "persistent://lab/rest/a\nb",
        "persistent://lab/rest/\ud800",
        "persistent://lab/rest\n/t",
        f"lab/rest/{'x' * 256}",
        f"lab/rest/{'ü' * 128}",
        f"{'x' * 256}/rest/t",
    ],
)
def test_other_names_are_refused(text: str) -> None:
    with pytest.raises(InvalidTopicName):
        TopicName.parse(text)


@pytest.mark.parametrize(("text", "part"), [("lab//t", "namespace"), ("persistent:///rest/t", "tenant")])
def test_an_empty_part_is_named(text: str, part: str) -> None:
    with pytest.raises(InvalidTopicName, match=f"the {part} of a topic name is empty"):
        TopicName.parse(text)


@pytest.mark.parametrize("text", [".", "..", "./rest/t", "lab/../t"])
def test_a_new_topic_has_no_name_that_paths_lose(text: str) -> None:
    with pytest.raises(InvalidTopicName, match="paths"):
        TopicName.parse(text).check_new()


@pytest.mark.parametrize("domain", ["non-persistent", "topic", "", "Persistent"])
def test_only_persistent_topics_exist(domain: str) -> None:
    with pytest.raises(InvalidTopicName, match="not a persistent topic"):
        TopicName.parse(f"{domain}://lab/rest/t")


def test_a_slash_in_the_local_name_is_refused_where_no_parsing_stands_before_it() -> None:
    with pytest.raises(InvalidTopicName, match="slash"):
        TopicName("lab", "rest", "a/b")


@pytest.mark.parametrize(
    ("local", "partition"),
    [
        ("t", -1),
        ("t-partition-0", 0),
        ("t-partition-17", 17),
        ("t-partition-1-partition-2", 2),
        ("a b-partition-3", 3),
        ("-partition-3", -1),
        ("t-partition-", -1),
        ("t-partition-x", -1),
        ("t-partition--1", -1),
        ("t-partition-007", -1),
        ("t-partition-٣", -1),
        ("t-partition-1x", -1),
    ],
)
def test_a_partition_is_known_by_its_name(local: str, partition: int) -> None:
    assert TopicName.parse(f"lab/rest/{local}").partition == partition


@given(NUMBERS, NUMBERS, INT32 | st.just(-1), INT32 | st.just(-1))
def test_a_message_id_is_read_back_whole(ledger: int, entry: int, partition: int, index: int) -> None:
    message_id = MessageId(ledger, entry, partition, index)
    again = MessageId.parse(str(message_id))
    assert (again.ledger_id, again.entry_id, again.partition, again.batch_index) == (ledger, entry, partition, index)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("12:3", (12, 3, -1, -1)),
        ("12:3:0", (12, 3, 0, -1)),
        ("12:3:-1", (12, 3, -1, -1)),
        ("12:3:-1:4", (12, 3, -1, 4)),
        ("-1:-1", (-1, -1, -1, -1)),
        ("9223372036854775807:0", (2**63 - 1, 0, -1, -1)),
    ],
)
def test_a_message_id_has_two_to_four_numbers(text: str, parts: tuple[int, int, int, int]) -> None:
    message_id = MessageId.parse(text)
    assert (message_id.ledger_id, message_id.entry_id, message_id.partition, message_id.batch_index) == parts


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        ":",
        "1:",
        "1:2:3:4:5",
        "1:2:3:4:",
        " 1:2",
        "1:2\n",
        "a:b",
        "1,2",
        "+1:2",
        "1:٣",
        "-2:0",
        "1:-2",
        "1:2:-2",
        "1:2:3:-2",
        "9223372036854775808:0",
        "0:9223372036854775808",
        "99999999999999999999:0",
    ],
)
def test_other_texts_are_no_message_ids(text: str) -> None:
    with pytest.raises(InvalidMessageId):
        MessageId.parse(text)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(-1, 12)), min_size=2))
def test_message_ids_are_ordered_by_number(triples: list[tuple[int, int, int]]) -> None:
    ids = [MessageId(ledger, entry, 3, index) for ledger, entry, index in triples]
    assert [item.sort_key for item in sorted(ids)] == sorted(triples)


def test_nine_comes_before_ten_and_the_batch_index_decides_last() -> None:
    assert MessageId(9, 10) < MessageId(10, 9)
    assert MessageId(1, 9) < MessageId(1, 10)
    assert MessageId(1, 1, batch_index=9) < MessageId(1, 1, batch_index=10)
    assert not MessageId(1, 1) < MessageId(1, 1)


def test_the_partition_is_no_part_of_the_order() -> None:
    assert MessageId(1, 2, 3) == MessageId(1, 2, 4)
    assert len({MessageId(1, 2, 3), MessageId(1, 2, 4)}) == 1


def test_everything_lies_between_earliest_and_latest() -> None:
    assert EARLIEST < MessageId(0, 0) < LATEST
    assert str(EARLIEST) == "-1:-1:-1"


def test_positions_are_ordered_by_offset_first() -> None:
    assert LogPosition(1, MessageId(9, 9)) < LogPosition(2, MessageId(1, 1))


@pytest.mark.parametrize(
    ("key", "payload", "expected"),
    [
        (b"k", None, True),
        (b"k", b"", True),
        (b"", b"", True),
        (b"k", b"0", False),
        (None, None, False),
        (None, b"", False),
    ],
)
def test_a_tombstone_has_a_key_and_no_payload(key: bytes | None, payload: bytes | None, expected: bool) -> None:
    assert Message(MessageId(1, 1), 0, key, payload, 0).is_tombstone is expected
