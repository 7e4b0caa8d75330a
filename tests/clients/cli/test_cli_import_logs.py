"""`compactor import` of Kafka's segments and Pulsar's offloaded ledgers, from a disk and from S3, and its refusals."""

from __future__ import annotations

from pathlib import Path

import boto3
import pytest

from tests.clients.cli.conftest import content
from tests.entries import batch, single
from tests.kafka_batches import ABORT, TRANSACTIONAL, ZSTD, Batch, Record, encode, marker
from tests.offloaded_objects import data_object, index_object
from tests.program import Program
from tests.servers.fixtures_s3 import MotoServer, use_credentials

TIME = 1_700_000_000_000
KAFKA = ("--input-format", "kafka-segments")
PULSAR = ("--format", "pulsar-offload")
SEGMENT = "00000000000000000000.log"


def segment(folder: Path, *batches: bytes, name: str = SEGMENT) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_bytes(b"".join(batches))
    return file


def record(offset: int, key: bytes | None = b"a", value: bytes | None = b"1", **more: object) -> bytes:
    return encode(Batch([Record(offset, TIME + offset, key, value, **more)]))  # type: ignore[arg-type]


def two_segments(folder: Path) -> None:
    segment(
        folder,
        encode(Batch([Record(0, TIME, b"a", b"1", [(b"trace", b"x"), (b"raw", b"\xff")]), Record(1, TIME + 1)], ZSTD)),
        record(5, b"a", None),
    )
    segment(folder, record(9, None, b"n"), name="00000000000000000009.log")
    (folder / "00000000000000000009.index").write_bytes(bytes(16))
    (folder / "leader-epoch-checkpoint").write_text("0\n")


MESSAGES = [
    {
        "key": "a",
        "value": "1",
        "publish_time": TIME,
        "event_time": TIME,
        "properties": {"trace": "x", "raw;base64": "/w=="},
    },
    {"key": "k", "value": "v", "publish_time": TIME + 1, "event_time": TIME + 1},
    {"key": "a", "value": None, "publish_time": TIME + 5, "event_time": TIME + 5},
    {"key": None, "value": "n", "publish_time": TIME + 9, "event_time": TIME + 9},
]


def test_the_segments_of_a_partition(program: Program, folder: Path) -> None:
    two_segments(folder / "users-0")
    result = program("import", "users", "users-0", *KAFKA).done()
    assert result.stderr.startswith("users-0: 4 messages, ")
    assert content(program("read", "users").done().messages) == MESSAGES
    program("import", "again", f"users-0/{SEGMENT}", "--format", "kafka-segments").done()
    assert content(program("read", "again").messages) == MESSAGES[:3]


def test_the_partitions_of_a_topic_go_to_those_of_the_same_number(program: Program, folder: Path) -> None:
    for number in (0, 2):
        segment(folder / "logs" / f"users-{number}", record(number, value=b"%d" % number))
    line = program("import", "users", "logs", *KAFKA).refused(2, "the paths have 2 partitions")
    assert "compactor topics create persistent://public/default/users --partitions 3" in line
    program("topics", "create", "users", "--partitions", "2").done()
    program("import", "users", "logs", *KAFKA).refused(2, "have partition 2", "has 2 partitions")
    program("topics", "create", "more", "--partitions", "3").done()
    result = program("import", "more", "logs", *KAFKA).done()
    assert [text.split(":")[0] for text in result.stderr.splitlines()] == ["users-0", "users-2"]
    for number, values in enumerate((["0"], [], ["2"])):
        messages = program("read", f"more-partition-{number}").done().messages
        assert [message["value"] for message in messages] == values
    segment(folder / "unnamed", record(0))
    program("import", "more", "unnamed", *KAFKA).refused(2, "unnamed", "name the partition")
    program("import", "more-partition-1", "unnamed", *KAFKA).done()
    assert len(program("read", "more-partition-1").messages) == 1


def test_the_result_says_what_was_left_out(program: Program, folder: Path) -> None:
    def transactional(offset: int, producer_id: int) -> bytes:
        rows = [Record(offset, TIME), Record(offset + 1, TIME)]
        return encode(Batch(rows, attributes=TRANSACTIONAL, producer_id=producer_id))

    segment(folder / "t-0", transactional(0, 7), marker(2, 7, ABORT), record(3), name=SEGMENT)
    last = segment(
        folder / "t-0",
        record(4),
        transactional(5, 8),
        record(7),
        record(8)[:20],
        name="00000000000000000004.log",
    )
    lines = program("import", "t", "t-0", *KAFKA).done().stderr.splitlines()
    assert lines[0].startswith("t-0: 2 messages, ")
    assert lines[1] == "t-0: left out 2 records of aborted transactions"
    assert lines[2].startswith("t-0: left out 3 records from offset 5 on: a transaction of producer id 8 is open there")
    assert lines[3].startswith(
        f"t-0: left out the last 20 B of t-0/{last.name}, from position {last.stat().st_size - 20}"
    )
    assert len(program("read", "t").done().messages) == 2


def test_empty_values_are_refused_unless_they_may_delete(program: Program, folder: Path) -> None:
    segment(folder / "t-0", record(0), record(1, b"a", b""))
    line = program("import", "t", "t-0", *KAFKA).refused(2, f"t-0/{SEGMENT}: the record at offset 1 has a key")
    assert "--empty-values delete" in line
    assert program("topics", "list").stdout.count("persistent://") == 0
    program("import", "t", "t-0", *KAFKA, "--empty-values", "delete").done()
    assert [message["value"] for message in program("read", "t").done().messages] == ["1", ""]
    segment(folder / "keyless-0", record(0, None, b""))
    program("import", "keyless", "keyless-0", *KAFKA).done()
    (folder / "x.jsonl").touch()
    program("import", "t", "x.jsonl", "--separator", ",").refused(2, "--separator does not apply to the format jsonl")


def damaged(batch: bytes) -> bytes:
    return batch[:-1] + bytes([batch[-1] ^ 1])


def test_damage_names_file_and_place_and_nothing_is_kept(program: Program, folder: Path) -> None:
    good, later = record(0), "00000000000000000001.log"
    cases = {
        "checksum": (
            [good, damaged(record(1))],
            [],
            f"the batch at position {len(good)}, offset 1, has the checksum",
        ),
        "torn": ([good, record(1)[:30]], [record(2)], f"inside the batch at position {len(good)}"),
        "order": (
            [record(5), record(3)],
            [],
            "begins with offset 3, and batches up to offset 5 come before it",
        ),
        "garbage": ([b"no segment at all, but text"], [], "the batch at position 0 has the format"),
    }
    for name, (first, second, message) in cases.items():
        file = segment(folder / f"{name}-0", *first)
        if second:
            segment(folder / f"{name}-0", *second, name=later)
        program("import", name, f"{name}-0", *KAFKA).refused(2, f"{name}-0/{file.name}: ", message)
    assert program("topics", "list").stdout.count("persistent://") == 0


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["missing"], "the file missing does not exist"),
        (["-"], "cannot be read from standard input"),
        (["empty"], "empty has no files"),
        (["other.txt"], "other.txt is no segment of Kafka"),
        (["others"], "none of the paths has a segment of Kafka"),
        (["a-0", "b-0"], "partitions of several topics"),
        (["a-0", "copy/a-0"], "the paths have a-0 twice"),
        (["a-0", f"a-0/{SEGMENT}"], "twice"),
    ],
)
def test_paths_that_are_no_partitions(program: Program, folder: Path, paths: list[str], message: str) -> None:
    (folder / "empty").mkdir()
    (folder / "other.txt").write_text("x")
    (folder / "others").mkdir()
    (folder / "others" / "other.txt").write_text("x")
    for name in ("a-0", "b-0", "copy/a-0"):
        segment(folder / name, record(0))
    program("import", "t", *paths, *KAFKA).refused(2, message)


def test_encodings_do_not_apply(program: Program, folder: Path) -> None:
    segment(folder / "a-0", record(0))
    program("import", "t", "a-0", *KAFKA, "--key-encoding", "base64").refused(
        2, "does not apply to the format kafka-segments"
    )


def upload(server: MotoServer, folder: Path) -> str:
    """A new bucket with the files below a folder."""
    bucket = server.make_bucket()
    client = boto3.client("s3", endpoint_url=server.endpoint)
    for file in folder.rglob("*"):
        if file.is_file():
            client.upload_file(str(file), bucket, f"deep/prefix/{file.relative_to(folder)}")
    return f"s3://{bucket}/deep/prefix"


def test_segments_and_ledgers_on_s3(
    program: Program, folder: Path, moto_server: MotoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_credentials(monkeypatch, moto_server)
    monkeypatch.setenv("COMPACTOR_S3_ENDPOINT", moto_server.endpoint)
    two_segments(folder / "files" / "users-0")
    offloaded(folder / "files" / "offload", 746)
    url = upload(moto_server, folder / "files")
    program("import", "users", f"{url}/users-0", *KAFKA).done()
    assert content(program("read", "users").done().messages) == MESSAGES
    program("import", "single", f"{url}/users-0/{SEGMENT}", *KAFKA).done()
    assert len(program("read", "single").done().messages) == 3
    program("import", "pulsar", f"{url}/offload", *PULSAR).done()
    assert [message["message_id"] for message in program("read", "pulsar").done().messages] == OFFLOADED_IDS
    program("import", "t", f"{url}/nothing", *KAFKA).refused(2, "nothing has no files")
    program("import", "t", "s3://no-such-bucket/x", *KAFKA).refused(5, "bucket no-such-bucket")


OFFLOADED_IDS = ["746:0:-1", "746:1:-1:0", "746:1:-1:1", "746:2:-1"]


def offloaded(folder: Path, ledger_id: int, managed_ledger: str = "public/default/persistent/users") -> Path:
    """Data and index object of a ledger of three entries, one of them a batch."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = [single(b"a", b"1"), batch((b"b", b"2"), (b"c", b"3")), single(b"a", b"4")]
    data = data_object(entries, block_bytes=300)
    file = folder / f"uuid-ledger-{ledger_id}"
    file.write_bytes(data)
    (folder / f"{file.name}-index").write_bytes(index_object(len(data), len(entries) - 1, managed_ledger))
    return file


def test_offloaded_ledgers_keep_their_ids(program: Program, folder: Path) -> None:
    offloaded(folder / "o", 746)
    offloaded(folder / "o", 1000)
    result = program("import", "users", "o", *PULSAR).done()
    assert result.stderr.startswith("public/default/persistent/users: 8 messages, ")
    messages = program("read", "users").done().messages
    assert [message["message_id"] for message in messages[:4]] == OFFLOADED_IDS
    assert messages[4]["message_id"] == "1000:0:-1"
    assert [message["value"] for message in messages] == ["1", "2", "3", "4"] * 2


def test_a_ledger_id_that_is_passed_is_not_kept(program: Program, folder: Path) -> None:
    offloaded(folder / "o", 746)
    program("import", "users", "o", *PULSAR).done()
    lines = program("import", "users", "o", *PULSAR).done().stderr
    assert "1 ledger could not keep the id, which this database has passed: 746 is 747 here\n" in lines
    ids = [message["message_id"] for message in program("read", "users").messages]
    assert ids == OFFLOADED_IDS + [text.replace("746", "747") for text in OFFLOADED_IDS]


def test_a_damaged_ledger_names_object_and_place_and_nothing_is_kept(program: Program, folder: Path) -> None:
    file = offloaded(folder / "o", 746)
    data, index = file.read_bytes(), folder / "o" / f"{file.name}-index"

    def refused(*says: str) -> None:
        program("import", "users", "o", *PULSAR).refused(2, file.name, *says)
        assert program("topics", "list").stdout.count("persistent://") == 0

    file.write_bytes(data[:-1])
    refused(f"has {len(data) - 1} bytes, and its index states {len(data)}")
    file.write_bytes(data[:128] + bytes([data[128] ^ 0x7F]) + data[129:])
    refused("the entry at position 128 claims")
    file.write_bytes(data[:150] + bytes([data[150] ^ 1]) + data[151:])
    refused("entry 0, before position")
    file.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    refused("at position 0, where a block begins with 0xfbdbabcb")
    file.write_bytes(data)
    index.write_bytes(index_object(len(data), 3, "x"))
    refused("it ends with entry 2, and its index states that the last one is 3")
    index.write_bytes(b"\x3d\x1f\xb0\xbc" + index.read_bytes()[4:])
    refused("it is the index of a streaming offload")
    index.write_bytes(b"no index")
    refused("it has 8 bytes")
    index.unlink()
    refused("has no index object beside it")


def test_paths_that_are_no_ledgers(program: Program, folder: Path) -> None:
    offloaded(folder / "a", 1)
    offloaded(folder / "b", 1)
    offloaded(folder / "c", 2, "public/default/persistent/others")
    (folder / "other.txt").write_text("x")
    program("import", "t", "a", "b", *PULSAR).refused(2, "the paths have ledger 1 twice")
    program("import", "t", "a", "c", *PULSAR).refused(2, "ledgers of several topics", "others", "users")
    program("import", "t", "other.txt", *PULSAR).refused(2, "other.txt is no ledger")
