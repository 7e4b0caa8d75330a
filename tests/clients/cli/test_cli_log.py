"""`log dump`, `log seal`, `topics roll`, `topics stats` of a topic with a tail: the log by hand, also a damaged one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.cli.conftest import BASE64, write_lines
from tests.program import Program

HEADER, FRAME = 64, 9


@pytest.fixture
def data(folder: Path) -> Path:
    return folder.parent / "data"


@pytest.fixture
def segment(program: Program, folder: Path, data: Path) -> Path:
    """Four messages in three entries: one, a batch of two, one whose key is no text."""
    write_lines(folder / "a.jsonl", {"key": "a", "value": "1", "publish_time": 1})
    write_lines(
        folder / "b.jsonl",
        {"key": "b", "value": "2", "publish_time": 2, "properties": {"p": "q"}},
        {"key": None, "value": None, "publish_time": 2},
    )
    write_lines(folder / "c.jsonl", {"key": "/w==", "value": "//4=", "publish_time": 3})
    program("produce", "t", "a.jsonl").done()
    program("produce", "t", "b.jsonl", "--batch", "2").done()
    program("produce", "t", "c.jsonl", *BASE64).done()
    (file,) = data.glob("log/*/*.log")
    assert file.name == f"{0:020d}.log"
    return file


def stats(program: Program, topic: str = "t") -> Any:
    return program.json("topics", "stats", topic)


def positions(dumped: list[dict[str, Any]]) -> list[int]:
    """The positions at which the frames begin."""
    return sorted({line["position"] for line in dumped})


def test_a_segment_is_shown_message_by_message(program: Program, segment: Path) -> None:
    dumped = program("log", "dump", str(segment)).done()
    assert dumped.stderr == f"{segment}: ledger 1 from offset 0\n"
    first, second, third, fourth = dumped.messages
    assert first == {
        "position": HEADER,
        "length": first["length"],
        "frame": "ok",
        "slot": "message",
        "message_id": "1:0:-1",
        "offset": 0,
        "key": "a",
        "publish_time": 1,
        "value": "1",
        "properties": {},
    }
    assert second["position"] == third["position"] == HEADER + FRAME + first["length"]
    assert [(item["message_id"], item["offset"], item["key"], item["value"]) for item in (second, third)] == [
        ("1:1:-1:0", 1, "b", "2"),
        ("1:1:-1:1", 2, None, None),
    ]
    assert second["properties"] == {"p": "q"}
    assert (fourth["key"], fourth["value"]) == ("\\xff", "\\xff\\xfe"), "a dump does not fail for what is no text"
    assert fourth["position"] + FRAME + fourth["length"] == segment.stat().st_size
    fourth = program("log", "dump", str(segment), *BASE64).done().messages[3]
    assert (fourth["key"], fourth["value"]) == ("/w==", "//4=")


def test_keys_only(program: Program, segment: Path) -> None:
    for line in program("log", "dump", str(segment), "--keys-only").done().messages:
        assert "key" in line
        assert not {"value", "properties"} & set(line)


def test_by_its_id_a_segment_and_the_ledger_that_it_becomes(program: Program, segment: Path) -> None:
    """The same messages by the same ids, open, rolled and sealed; the file's own partition is not known."""
    frames = program("log", "dump", str(segment)).done().messages
    fields = ("message_id", "offset", "key", "publish_time", "value", "properties", "slot")
    messages = [{name: line[name] for name in fields} for line in frames]
    for state in ("open", "rolled", "sealed"):
        dumped = program("log", "dump", "1").done().messages
        assert [{name: line[name] for name in fields} for line in dumped] == messages, state
        assert all(line["frame"] == "ok" for line in dumped)
        program("topics", "roll", "t", *(["--seal"] if state == "rolled" else [])).done()
    assert {line["row_group"] for line in dumped} == {0}


@pytest.mark.parametrize(
    ("damage", "left", "lost_position"),
    [
        ("a byte of the batch", [("a", 0), ("\\xff", 3)], 1),
        ("a block of zeros over the first entry", [("b", None), (None, None), ("\\xff", None)], 0),
        ("the end is cut off", [("a", 0), ("b", 1), (None, 2)], 2),
    ],
)
def test_a_damaged_segment_shows_what_is_left(
    program: Program, segment: Path, damage: str, left: list[tuple[str, int]], lost_position: int
) -> None:
    """Nothing is changed, and the exit code says it. Behind zeros nothing says how many entries were there."""
    at = positions(program("log", "dump", str(segment)).messages)
    content = bytearray(segment.read_bytes())
    if damage == "a byte of the batch":
        content[at[2] - 1] ^= 1
    elif damage == "the end is cut off":
        del content[-3:]
    else:
        content[at[0] : at[1]] = bytes(at[1] - at[0])
    segment.write_bytes(content)
    for what in (str(segment), "1"):
        dumped = program("log", "dump", what)
        assert dumped.exit_code == 7
        assert "Traceback" not in dumped.stderr
        good = [line for line in dumped.messages if "key" in line]
        assert [(line["key"], line["offset"]) for line in good] == left
        placed = {"ok"} if left[0][1] is not None else {"place unknown, entry ok"}
        assert {line["frame"] for line in good} == placed
        bad = [line for line in dumped.messages if line["frame"] == "damaged"]
        assert len(bad) == 1
        assert bad[0]["position"] == at[lost_position]
        assert bad[0]["problem"]
    assert segment.read_bytes() == content


def test_a_damaged_ledger(program: Program, segment: Path, data: Path) -> None:
    program("topics", "roll", "t", "--seal").done()
    (rows,) = data.glob("objects/**/*.parquet")
    content = bytearray(rows.read_bytes())
    content[20] ^= 1
    rows.chmod(0o644)
    rows.write_bytes(content)
    dumped = program("log", "dump", "1")
    assert dumped.exit_code == 7
    assert [line["frame"] for line in dumped.messages] == ["damaged"]
    rows.write_bytes(content[:-8] + bytes(8))
    dumped = program("log", "dump", "1")
    assert (dumped.exit_code, dumped.messages[0]["frame"]) == (7, "damaged")
    rows.unlink()
    dumped = program("log", "dump", "1")
    assert (dumped.exit_code, dumped.messages[0]["frame"]) == (7, "damaged")


def test_what_is_no_segment(program: Program, folder: Path) -> None:
    (folder / "other.log").write_bytes(b"something else" * 20)
    dumped = program("log", "dump", "other.log")
    assert dumped.exit_code == 7
    assert dumped.messages[0]["problem"] == "it does not begin as a segment does"


def test_roll_and_seal(program: Program, segment: Path) -> None:
    name = "persistent://public/default/t"
    assert stats(program)["tail"].items() >= {"segments": 1, "messages": 4}.items()
    rolled = program("topics", "roll", "t").done()
    assert rolled.stdout == f"Topic {name} rolled, 1 segment to be sealed\n"
    again = program("topics", "roll", "t").done()
    assert again.stdout == f"Topic {name} rolled, 1 segment to be sealed\n", "there was nothing to roll"
    program("produce", "t", stdin=b'{"key":"d","value":"5"}\n').done()
    topic_stats = stats(program)
    assert (topic_stats["tail"]["segments"], topic_stats["tail"]["messages"]) == (2, 5)
    in_tail = {"messages": 5, "logical_bytes": topic_stats["tail"]["logical_bytes"]}
    assert in_tail["logical_bytes"] > 0
    assert topic_stats["backlog"] == {"ledgers": 0} | in_tail
    assert (topic_stats["raw"]["ledgers"], topic_stats["raw"]["messages"]) == (0, 0)
    assert (topic_stats["raw"]["start_offset"], topic_stats["raw"]["next_offset"]) == (0, 5)
    before = program("read", "t", "--value-encoding", "base64", "--key-encoding", "base64").done().stdout

    sealed = program("log", "seal", "t").done()
    assert sealed.raw_stdout == b""
    message = sealed.stderr.splitlines()
    assert message[0] == f"{name}: segment 1 sealed, 4 messages"
    assert message[1] == "0 segment files removed", "their time is not over"
    assert segment.exists()
    topic_stats = stats(program)
    assert (topic_stats["tail"]["segments"], topic_stats["tail"]["messages"]) == (1, 1)
    assert (topic_stats["raw"]["ledgers"], topic_stats["raw"]["messages"], topic_stats["raw"]["next_offset"]) == (
        1,
        4,
        5,
    )
    assert (topic_stats["backlog"]["ledgers"], topic_stats["backlog"]["messages"]) == (1, 5)

    rolled = program("topics", "roll", "t", "--seal").done()
    assert rolled.stdout == f"Topic {name} rolled, 1 segment sealed, 0 segments to be sealed\n"
    assert stats(program)["tail"] == {"segments": 0, "messages": 0, "logical_bytes": 0, "given_up": 0}
    after = program("read", "t", "--value-encoding", "base64", "--key-encoding", "base64").done().stdout
    assert after == before


def test_seal_all_topics(program: Program) -> None:
    program("topics", "create", "empty").done()
    assert program("log", "seal").done().stderr == "", "there is nothing"
    for topic in ("t", "u", "v"):
        program("produce", topic, stdin=b'{"key":"k","value":"1"}\n').done()
    for topic in ("t", "u"):
        program("topics", "roll", topic).done()
    message = program("log", "seal").done().stderr.splitlines()
    sealed = [
        f"persistent://public/default/{topic}: segment {number} sealed, 1 message"
        for number, topic in ((1, "t"), (2, "u"))
    ]
    assert message == [*sealed, "0 segment files removed"]
    assert [stats(program, topic)["tail"]["messages"] for topic in ("t", "u", "v")] == [0, 0, 1]


def test_a_topic_that_is_named_is_sealed_or_it_is_said_why(program: Program, segment: Path) -> None:
    """Its segments may be on another machine; of all topics that is no error."""
    program("topics", "roll", "t").done()
    elsewhere = ("--log", str(segment.parent.parent.parent / "elsewhere"))
    assert program(*elsewhere, "log", "seal").done().stderr == "0 segment files removed\n"
    refused = program(*elsewhere, "log", "seal", "t")
    assert refused.exit_code == 5
    assert "is in the log directory" in refused.stderr.splitlines()[-1]
    program("log", "seal", "t").done()


def test_what_lies_on_another_machine_is_left_out_of_stats_and_named(
    program: Program, segment: Path, folder: Path
) -> None:
    program("import", "t", "a.jsonl").done()
    program("produce", "t", "b.jsonl").done()
    elsewhere = ("--log", str(segment.parent.parent.parent / "elsewhere"))
    result = program(*elsewhere, "topics", "stats", "t", "--output", "json").done()
    document = json.loads(result.stdout)
    assert document["raw"]["next_offset"] is None
    assert document["last_message_id"] is None
    assert document["raw"]["messages"] == 1
    assert "are in the log directory" in result.stderr
    assert program(*elsewhere, "topics", "list", "--output", "json").exit_code == 0
    refused = program(*elsewhere, "get", "t", "a")
    assert (refused.exit_code, refused.stdout) == (5, "")
    result = program(*elsewhere, "get", "t", "a", "--sealed-only").done()
    assert json.loads(result.stdout)["value"] == "1"
    program("cursor", "create", "t", "c", "--at", "earliest").done()
    assert program.json(*elsewhere, "cursor", "list", "t")[0]["backlog"] is None


def test_each_damaged_topic_is_said_once(program: Program, segment: Path) -> None:
    program("produce", "u", stdin=b'{"key":"k","value":"1"}\n').done()
    for topic in ("t", "u"):
        program("topics", "roll", topic).done()
    files = list(segment.parent.parent.glob("*/*.log"))
    for file in files:
        file.unlink()
    refused = program("log", "seal")
    assert refused.exit_code == 7
    assert [sum(str(file) in line for line in refused.stderr.splitlines()) for file in files] == [1, 1]


def test_files_go_after_their_delay(program: Program, segment: Path) -> None:
    program("topics", "policies", "t", "--set", "file.delete.delay.ms=0").done()
    program("topics", "roll", "t", "--seal").done()
    assert segment.exists()
    assert program("log", "seal").done().stderr == "1 segment file removed\n"
    assert not list(segment.parent.glob("*.log"))
    assert len(program("read", "t", "--limit", "3").done().messages) == 3


def test_a_loss_is_accepted_only_by_hand(program: Program, segment: Path) -> None:
    """`topics roll --accept-loss`: what is damaged goes; before, nothing can be appended."""
    at = positions(program("log", "dump", str(segment)).messages)
    before = len(program("read", "t", *BASE64).done().messages)
    content = bytearray(segment.read_bytes())
    content[at[1] + 20] ^= 1
    segment.write_bytes(content)
    line = b'{"key":"d","value":"5"}\n'
    refused = program("produce", "t", stdin=line)
    assert refused.exit_code == 7
    assert str(segment) in refused.stderr
    assert f"byte {at[1]}" in refused.stderr
    program("topics", "roll", "t").refused(7, segment.name, f"byte {at[1]}")
    assert segment.read_bytes() == content
    rolled = program("topics", "roll", "t", "--accept-loss").done()
    assert " rolled, 1 segment sealed, 0 segments to be sealed" in rolled.stdout
    assert "lost" in rolled.stderr
    lost = set(range(before)) - {message["offset"] for message in program("read", "t", *BASE64).done().messages}
    assert 1 in lost
    program("produce", "t", stdin=line).done()
    again = program("topics", "roll", "t", "--accept-loss").done()
    assert " rolled, 1 segment sealed, 0 segments" in again.stdout
    assert "lost" not in again.stderr
    read = program("read", "t", *BASE64).done().messages
    assert [item["offset"] for item in read] == [offset for offset in range(before + 1) if offset not in lost]
    assert read[-1]["key"] == "ZA=="


def test_what_is_left_of_a_damaged_rolled_segment_is_sealed_by_hand(program: Program, segment: Path) -> None:
    """`log seal --accept-loss`; without it what is behind the damage is sealed all the same."""
    program("topics", "roll", "t").done()
    at = positions(program("log", "dump", str(segment)).messages)
    content = bytearray(segment.read_bytes())
    content[at[1] + 20] ^= 1
    segment.write_bytes(content)
    program("produce", "t", stdin=b'{"key":"d","value":"5"}\n').done()
    program("topics", "roll", "t").done()
    name = "persistent://public/default/t"
    refused = program("log", "seal", "t")
    assert refused.exit_code == 7
    sealed, removed, error = refused.stderr.splitlines()
    assert (sealed, removed) == (f"{name}: segment 2 sealed, 1 message", "0 segment files removed")
    for part in (str(segment), f"byte {at[1]}", "compactor log dump 1", f"compactor log seal {name} --accept-loss"):
        assert part in error
    accepted = program("log", "seal", "t", "--accept-loss").done().stderr.splitlines()
    assert accepted[0] == f"{name}: segment 1 sealed, 2 messages, 2 messages lost"
    read = program("read", "t", *BASE64).done().messages
    assert [(item["offset"], item["message_id"]) for item in read] == [(0, "1:0:-1"), (3, "1:2:-1"), (4, "2:0:-1")]


def test_stats_of_a_topic_that_was_trimmed(program: Program, segment: Path) -> None:
    program("topics", "roll", "t", "--seal").done()
    program("produce", "t", stdin=b'{"key":"d","value":"5"}\n{"key":"d","value":"6"}\n').done()
    program("topics", "trim", "t", "--before", "4", "--yes").done()
    topic_stats = stats(program)
    assert topic_stats["raw"]["start_offset"] == 4
    assert topic_stats["raw"]["ledgers"] == 0
    assert topic_stats["tail"] == {"segments": 1, "messages": 2, "logical_bytes": 4, "given_up": 0}
    assert topic_stats["last_message_id"] == "2:1:-1"
    table = program("topics", "stats", "t").done().stdout
    rows = dict(line.split() for line in table.splitlines() if len(line.split()) == 2)
    assert (rows["raw.start_offset"], rows["raw.next_offset"]) == ("4", "6")
    assert (rows["tail.segments"], rows["tail.messages"]) == ("1", "2")
