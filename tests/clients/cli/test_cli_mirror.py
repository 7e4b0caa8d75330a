"""`compactor mirror`, with a broker of Kafka in a thread: what is added, run, stopped and resumed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from api.broker.mirroring.source import SASL_MECHANISMS
from api.cli.local.mirror_commands import SaslName
from tests.kafka_batches import TRANSACTIONAL, Batch, Record
from tests.kafka_server import FakeKafka, FakeTopic, Log, fake_kafka
from tests.program import Program


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    with fake_kafka(FakeTopic("users", [Log(), Log()])) as broker:
        yield broker


def records(first: int, count: int, **fields: object) -> list[Record]:
    return [Record(offset, 1_700_000_000_000 + offset, b"k%d" % (offset % 3), b"%d" % offset, **fields)  # type: ignore[arg-type]
            for offset in range(first, first + count)]  # fmt: skip


def add(program: Program, kafka: FakeKafka, *options: str) -> None:
    program("mirror", "add", kafka.url, "--as", "users", *options).done()


def values(program: Program, partition: int = 0) -> list[str | None]:
    return [message["value"] for message in program("read", f"users-partition-{partition}").done().messages]


def run(program: Program, exit_code: int = 0) -> str:
    answer = program("mirror", "run", "users", "--to-end")
    assert answer.exit_code == exit_code, answer.stderr
    return answer.stderr


def test_records_come_once_from_life_to_life(program: Program, kafka: FakeKafka) -> None:
    """Committed ones, with their headers and times; a fetch begins inside a batch; a new partition comes, too."""
    topic = kafka.topic
    topic.append(0, Batch(records(5, 4, headers=[(b"a", b"b")])))
    topic.append(0, Batch(records(9, 2), attributes=TRANSACTIONAL, producer_id=3))
    topic.abort(0, 3, 9)
    topic.append(0, Batch(records(20, 2)))
    topic.append(1, Batch(records(0, 3)))
    add(program, kafka)
    assert "9 records mirrored" in run(program)
    messages = program("read", "users-partition-0").done().messages
    assert [message["value"] for message in messages] == ["5", "6", "7", "8", "20", "21"]
    assert (messages[0]["event_time"], messages[0]["properties"]) == (1_700_000_000_005, {"a": "b"})
    assert messages[0]["key"] == "k2"
    topic.partitions[0].batches[-1:] = []
    topic.append(0, Batch(records(20, 5)))
    topic.partitions.append(Log())
    topic.append(2, Batch(records(0, 1)))
    kafka.fetches.clear()
    assert "4 records mirrored" in run(program)
    assert kafka.fetches[0][0] == 22, "the position is the offset of the last message here"
    assert values(program) == ["5", "6", "7", "8", "20", "21", "22", "23", "24"]
    assert (values(program, 1), values(program, 2)) == (["0", "1", "2"], ["0"])


@pytest.mark.slow
def test_the_position_outlives_raw_messages_and_the_mirror(program: Program, kafka: FakeKafka) -> None:
    kafka.topic.append(0, Batch(records(0, 4)))
    add(program, kafka)
    run(program)
    program("topics", "roll", "users-partition-0").done()
    program("log", "seal", "users-partition-0").done()
    program("topics", "trim", "users-partition-0", "--before", "4", "--force", "--yes").done()
    assert values(program) == []
    program("mirror", "remove", "users").done()
    assert program.json("mirror", "list") == []
    kafka.topic.append(0, Batch(records(4, 1)))
    add(program, kafka)
    run(program)
    assert values(program) == ["4"]


def test_a_gap_stops_it_until_it_is_accepted(program: Program, kafka: FakeKafka) -> None:
    topic = kafka.topic
    topic.append(0, Batch(records(0, 2)))
    add(program, kafka)
    run(program)
    topic.append(0, Batch(records(2, 8)))
    topic.append(0, Batch(records(10, 1)))
    topic.partitions[0].start = 10
    error = run(program, 4)
    assert "users-0: Kafka has removed the records from offset 2 to 9 before they were mirrored" in error
    assert "--accept-gaps" in error
    document = program.json("mirror", "show", "users")
    assert (document["state"], document["partitions"][0]["gap_end"]) == ("failed", 10)
    assert run(program, 4) == error, "it stays so"
    program("mirror", "resume", "users", "--accept-gaps").done()
    run(program)
    assert values(program) == ["0", "1", "10"]
    topic.partitions[0].batches.clear()
    topic.partitions[0].start = 12
    assert "from offset 11 to 11" in run(program, 4), "no later gap is accepted"


@pytest.mark.slow
@pytest.mark.parametrize(("change", "reason"), [
    ({"topic_id": b"\x02" * 16}, "users in Kafka was deleted and created again"),
    ({"cluster_id": "another"}, "is the cluster another now"),
    ({"partitions": [Log(), Log()]}, "users-0: the records up to offset 1 are here, and Kafka ends before offset 0"),
])  # fmt: skip
def test_another_source_stops_it(program: Program, kafka: FakeKafka, change: dict[str, object], reason: str) -> None:
    kafka.topic.append(0, Batch(records(0, 2)))
    add(program, kafka)
    run(program)
    for name, value in change.items():
        setattr(kafka.topic, name, value)
    assert reason in run(program, 4)
    assert values(program) == ["0", "1"]


@pytest.mark.slow
def test_an_empty_value_stops_it_until_it_may_delete(program: Program, kafka: FakeKafka) -> None:
    kafka.topic.append(0, Batch([Record(0, value=b"v"), Record(1, value=b""), Record(2, key=None, value=b"")]))
    add(program, kafka)
    assert "users-0: the record at offset 1 has a key and an empty value" in run(program, 4)
    assert values(program) == []
    program("mirror", "resume", "users", "--empty-values", "delete").done()
    run(program)
    assert values(program) == ["v", "", ""]


@pytest.mark.slow
def test_a_record_that_is_too_large_stops_it_and_none_after_it_is_stored(program: Program, kafka: FakeKafka) -> None:
    kafka.topic.append(0, Batch([Record(0), Record(1, value=b"x" * (6 << 20)), Record(2)]))
    add(program, kafka)
    error = run(program, 4)
    assert "users-0: the records from offset 1 on cannot be appended" in error
    assert values(program) == ["v"]


@pytest.mark.slow
def test_a_broker_that_does_not_answer_is_asked_again(program: Program, kafka: FakeKafka) -> None:
    kafka.topic.append(0, Batch(records(0, 2)))
    add(program, kafka)
    kafka.refusals = 2
    run(program)
    assert (kafka.refusals, values(program)) == (0, ["0", "1"])
    document = program.json("mirror", "show", "users")
    assert (document["state"], document["error"]) == ("running", None)


@pytest.mark.slow
def test_a_paused_mirror_does_not_run(program: Program, kafka: FakeKafka) -> None:
    add(program, kafka)
    program("mirror", "pause", "users").done()
    assert "the mirror persistent://public/default/users is paused: resume it" in run(program, 4)
    program("mirror", "resume", "users").done()
    run(program)


@pytest.mark.slow
def test_a_topic_that_says_nothing_about_the_source_stops_it(program: Program, kafka: FakeKafka) -> None:
    """Messages of others alone: the mirror must not begin at the earliest record."""
    add(program, kafka)
    Path("other.jsonl").write_text('{"key": "a", "value": "1"}\n')
    program("import", "users-partition-0", "other.jsonl").done()
    kafka.topic.append(0, Batch(records(0, 2)))
    assert "users-partition-0 has messages, and none says up to which offset" in run(program, 4)


def test_what_cannot_be_mirrored(program: Program, kafka: FakeKafka) -> None:
    add(program, kafka)
    user = ("--sasl", "PLAIN", "--username", "u", "--password-from")
    for source, options, exit_code, reason in (
        ("kafka://user:secret@host/users", (), 2, "has a user or password"),
        (kafka.url, (*user, "secret"), 2, "neither a variable nor a file"),
        (kafka.url, (*user, "env:NOT_SET"), 5, "NOT_SET of the environment"),
        (kafka.url, ("--tls", "--tls-ca", "/none"), 5, "the certificate authorities in /none cannot be read"),
        (f"kafka://{kafka.address}/others", (), 5, "the topic others does not exist in Kafka"),
        ("kafka://127.0.0.1:1/users", (), 6, "Kafka at 127.0.0.1:1 does not answer"),
    ):
        answer = program("mirror", "add", source, "--as", "others", *options)
        assert answer.exit_code == exit_code, answer.stderr
        assert reason in answer.stderr
        assert "secret" not in answer.stderr
    assert [mirror["source"] for mirror in program.json("mirror", "list")] == [kafka.url]


def test_an_existing_topic_must_fit(program: Program, kafka: FakeKafka) -> None:
    program("topics", "create", "plain").done()
    program("topics", "create", "larger", "--partitions", "3").done()
    for name, reason in (("plain", "exists already"), ("larger", "has 3 partitions, and users in Kafka has 2")):
        answer = program("mirror", "add", kafka.url, "--as", name)
        assert answer.exit_code == 4
        assert reason in answer.stderr
    add(program, kafka)
    assert "is a mirror of kafka://" in program("mirror", "add", kafka.url, "--as", "users").stderr


def test_the_names_of_mechanisms_are_those_of_the_source() -> None:
    assert get_args(SaslName) == SASL_MECHANISMS
