"""`log dump`, `log seal`, `topics roll`, `topics stats` of a topic with a tail: the log by hand, also a damaged one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.cli.conftest import Compactor, write_lines

HEADER, FRAME = 64, 9


@pytest.fixture
def data(folder: Path) -> Path:
    return folder.parent / "data"


@pytest.fixture
def segment(compactor_command: Compactor, folder: Path, data: Path) -> Path:
    """Four messages in three entries: one, a batch of two, one whose key is no text."""
    write_lines(folder / "a.jsonl", {"key": "a", "value": "1", "publish_time": 1})
    write_lines(
        folder / "b.jsonl",
        {"key": "b", "value": "2", "publish_time": 2, "properties": {"p": "q"}},
        {"key": None, "value": None, "publish_time": 2},
    )
    write_lines(folder / "c.jsonl", {"key": "/w==", "value": "//4=", "publish_time": 3})
    compactor_command("produce", "t", "a.jsonl").done()
    compactor_command("produce", "t", "b.jsonl", "--batch", "2").done()
    compactor_command("produce", "t", "c.jsonl", "--key-encoding", "base64", "--value-encoding", "base64").done()
    (file,) = data.glob("log/*/*.log")
    assert file.name == f"{0:020d}.log"
    return file


def stats(compactor_command: Compactor, topic: str = "t") -> Any:
    return json.loads(compactor_command("topics", "stats", topic, "--output", "json").done().stdout)


def positions(dumped: list[dict[str, Any]]) -> list[int]:
    """Where the frames begin."""
    return sorted({line["position"] for line in dumped})


def test_a_segment_is_shown_message_by_message(compactor_command: Compactor, segment: Path) -> None:
    dumped = compactor_command("log", "dump", str(segment)).done()
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
    encoded = ("--key-encoding", "base64", "--value-encoding", "base64")
    fourth = compactor_command("log", "dump", str(segment), *encoded).done().messages[3]
    assert (fourth["key"], fourth["value"]) == ("/w==", "//4=")


def test_keys_only(compactor_command: Compactor, segment: Path) -> None:
    for line in compactor_command("log", "dump", str(segment), "--keys-only").done().messages:
        assert "key" in line
        assert not {"value", "properties"} & set(line)


def test_by_its_id_a_segment_and_the_ledger_that_it_becomes(compactor_command: Compactor, segment: Path) -> None:
    """The same messages by the same ids, open, rolled and sealed; the file's own partition is not known."""
    shown = compactor_command("log", "dump", str(segment)).done().messages
    fields = ("message_id", "offset", "key", "publish_time", "value", "properties", "slot")
    messages = [{name: line[name] for name in fields} for line in shown]
    for state in ("open", "rolled", "sealed"):
        dumped = compactor_command("log", "dump", "1").done().messages
        assert [{name: line[name] for name in fields} for line in dumped] == messages, state
        assert all(line["frame"] == "ok" for line in dumped)
        compactor_command("topics", "roll", "t", *(["--seal"] if state == "rolled" else [])).done()
    assert {line["row_group"] for line in dumped} == {0}
    compactor_command("log", "dump", "2").refused(3, "ledger 2")
    for odd in ("²", "9" * 30):
        compactor_command("log", "dump", odd).refused(2, "no ledger's id")


@pytest.mark.parametrize(
    ("damage", "left", "lost_position"),
    [
        ("a byte of the batch", [("a", 0), ("\\xff", 3)], 1),
        ("a block of zeros over the first entry", [("b", None), (None, None), ("\\xff", None)], 0),
        ("the end is cut off", [("a", 0), ("b", 1), (None, 2)], 2),
    ],
)
def test_a_damaged_segment_shows_what_is_left(
    compactor_command: Compactor, segment: Path, damage: str, left: list[tuple[str, int]], lost_position: int
) -> None:
    """Nothing is changed, and the exit code says it. Behind zeros nothing says how many entries were there."""
    at = positions(compactor_command("log", "dump", str(segment)).messages)
    content = bytearray(segment.read_bytes())
    if damage == "a byte of the batch":
        content[at[2] - 1] ^= 1
    elif damage == "the end is cut off":
        del content[-3:]
    else:
        content[at[0] : at[1]] = bytes(at[1] - at[0])
    segment.write_bytes(content)
    for what in (str(segment), "1"):
        dumped = compactor_command("log", "dump", what)
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


def test_a_damaged_ledger(compactor_command: Compactor, segment: Path, data: Path) -> None:
    compactor_command("topics", "roll", "t", "--seal").done()
    (rows,) = data.glob("objects/**/*.parquet")
    content = bytearray(rows.read_bytes())
    content[20] ^= 1
    rows.chmod(0o644)
    rows.write_bytes(content)
    dumped = compactor_command("log", "dump", "1")
    assert dumped.exit_code == 7
    assert [line["frame"] for line in dumped.messages] == ["damaged"]
    rows.write_bytes(content[:-8] + bytes(8))
    dumped = compactor_command("log", "dump", "1")
    assert (dumped.exit_code, dumped.messages[0]["frame"]) == (7, "damaged")
    rows.unlink()
    dumped = compactor_command("log", "dump", "1")
    assert (dumped.exit_code, dumped.messages[0]["frame"]) == (7, "damaged")


def test_what_is_no_segment(compactor_command: Compactor, folder: Path) -> None:
    compactor_command("log", "dump", "nosuch.log").refused(2, "nosuch.log")
    compactor_command("log", "dump", str(folder)).refused(2, "give the path of a .log file")
    compactor_command("log", "dump", "77").refused(3, "ledger 77")
    (folder / "other.log").write_bytes(b"something else" * 20)
    dumped = compactor_command("log", "dump", "other.log")
    assert dumped.exit_code == 7
    assert dumped.messages[0]["problem"] == "it does not begin as a segment does"


def test_roll_and_seal(compactor_command: Compactor, segment: Path) -> None:
    name = "persistent://public/default/t"
    assert stats(compactor_command)["tail"].items() >= {"segments": 1, "messages": 4}.items()
    rolled = compactor_command("topics", "roll", "t").done()
    assert rolled.stdout == f"Topic {name} rolled, 1 segment to be sealed\n"
    again = compactor_command("topics", "roll", "t").done()
    assert again.stdout == f"Topic {name} rolled, 1 segment to be sealed\n", "there was nothing to roll"
    compactor_command("produce", "t", stdin=b'{"key":"d","value":"5"}\n').done()
    shown = stats(compactor_command)
    assert (shown["tail"]["segments"], shown["tail"]["messages"]) == (2, 5)
    in_tail = {"messages": 5, "logical_bytes": shown["tail"]["logical_bytes"]}
    assert in_tail["logical_bytes"] > 0
    assert shown["backlog"] == {"ledgers": 0} | in_tail
    assert (shown["raw"]["ledgers"], shown["raw"]["messages"]) == (0, 0)
    assert (shown["raw"]["start_offset"], shown["raw"]["next_offset"]) == (0, 5)
    before = compactor_command("read", "t", "--value-encoding", "base64", "--key-encoding", "base64").done().stdout

    sealed = compactor_command("log", "seal", "t").done()
    assert sealed.raw_stdout == b""
    message = sealed.stderr.splitlines()
    assert message[0] == f"{name}: segment 1 sealed, 4 messages"
    assert message[1] == "0 segment files removed", "their time is not over"
    assert segment.exists()
    shown = stats(compactor_command)
    assert (shown["tail"]["segments"], shown["tail"]["messages"]) == (1, 1)
    assert (shown["raw"]["ledgers"], shown["raw"]["messages"], shown["raw"]["next_offset"]) == (1, 4, 5)
    assert (shown["backlog"]["ledgers"], shown["backlog"]["messages"]) == (1, 5)

    rolled = compactor_command("topics", "roll", "t", "--seal").done()
    assert rolled.stdout == f"Topic {name} rolled, 1 segment sealed, 0 segments to be sealed\n"
    assert stats(compactor_command)["tail"] == {"segments": 0, "messages": 0, "logical_bytes": 0, "given_up": 0}
    after = compactor_command("read", "t", "--value-encoding", "base64", "--key-encoding", "base64").done().stdout
    assert after == before
    compactor_command("topics", "roll", "nosuch").refused(3, "nosuch")
    compactor_command("log", "seal", "nosuch").refused(3, "nosuch")


def test_seal_all_topics(compactor_command: Compactor) -> None:
    assert compactor_command("log", "seal").done().stderr == "", "there is nothing"
    for topic in ("t", "u", "v"):
        compactor_command("produce", topic, stdin=b'{"key":"k","value":"1"}\n').done()
    for topic in ("t", "u"):
        compactor_command("topics", "roll", topic).done()
    message = compactor_command("log", "seal").done().stderr.splitlines()
    sealed = [
        f"persistent://public/default/{topic}: segment {number} sealed, 1 message"
        for number, topic in ((1, "t"), (2, "u"))
    ]
    assert message == [*sealed, "0 segment files removed"]
    assert [stats(compactor_command, topic)["tail"]["messages"] for topic in ("t", "u", "v")] == [0, 0, 1]


def test_a_topic_that_is_named_is_sealed_or_it_is_said_why(compactor_command: Compactor, segment: Path) -> None:
    """Its segments may be on another machine; of all topics that is no error."""
    compactor_command("topics", "roll", "t").done()
    elsewhere = ("--log", str(segment.parent.parent.parent / "elsewhere"))
    assert compactor_command(*elsewhere, "log", "seal").done().stderr == "0 segment files removed\n"
    refused = compactor_command(*elsewhere, "log", "seal", "t")
    assert refused.exit_code == 5
    assert "is in the log directory" in refused.stderr.splitlines()[-1]
    compactor_command("log", "seal", "t").done()


def test_what_lies_on_another_machine_is_left_out_of_stats_and_named(
    compactor_command: Compactor, segment: Path, folder: Path
) -> None:
    compactor_command("import", "t", "a.jsonl").done()
    compactor_command("produce", "t", "b.jsonl").done()
    elsewhere = ("--log", str(segment.parent.parent.parent / "elsewhere"))
    shown = compactor_command(*elsewhere, "topics", "stats", "t", "--output", "json").done()
    document = json.loads(shown.stdout)
    assert document["raw"]["next_offset"] is None
    assert document["last_message_id"] is None
    assert document["raw"]["messages"] == 1
    assert "are in the log directory" in shown.stderr
    assert compactor_command(*elsewhere, "topics", "list", "--output", "json").exit_code == 0
    refused = compactor_command(*elsewhere, "get", "t", "a")
    assert (refused.exit_code, refused.stdout) == (5, "")
    found = compactor_command(*elsewhere, "get", "t", "a", "--sealed-only").done()
    assert json.loads(found.stdout)["value"] == "1"
    compactor_command("cursor", "create", "t", "c", "--at", "earliest").done()
    assert (
        json.loads(compactor_command(*elsewhere, "cursor", "list", "t", "--output", "json").done().stdout)[0]["backlog"]
        is None
    )


def test_each_damaged_topic_is_said_once(compactor_command: Compactor, segment: Path) -> None:
    compactor_command("produce", "u", stdin=b'{"key":"k","value":"1"}\n').done()
    for topic in ("t", "u"):
        compactor_command("topics", "roll", topic).done()
    files = list(segment.parent.parent.glob("*/*.log"))
    for file in files:
        file.unlink()
    refused = compactor_command("log", "seal")
    assert refused.exit_code == 7
    assert [sum(str(file) in line for line in refused.stderr.splitlines()) for file in files] == [1, 1]


def test_files_go_after_their_delay(compactor_command: Compactor, segment: Path) -> None:
    compactor_command("topics", "policies", "t", "--set", "file.delete.delay.ms=0").done()
    compactor_command("topics", "roll", "t", "--seal").done()
    assert segment.exists()
    assert compactor_command("log", "seal").done().stderr == "1 segment file removed\n"
    assert not list(segment.parent.glob("*.log"))
    assert len(compactor_command("read", "t", "--limit", "3").done().messages) == 3


def test_a_loss_is_accepted_only_by_hand(compactor_command: Compactor, segment: Path) -> None:
    """`topics roll --accept-loss`: what is damaged goes; before, nothing can be appended."""
    at = positions(compactor_command("log", "dump", str(segment)).messages)
    before = len(
        compactor_command("read", "t", "--key-encoding", "base64", "--value-encoding", "base64").done().messages
    )
    content = bytearray(segment.read_bytes())
    content[at[1] + 20] ^= 1
    segment.write_bytes(content)
    line = b'{"key":"d","value":"5"}\n'
    refused = compactor_command("produce", "t", stdin=line)
    assert refused.exit_code == 7
    assert str(segment) in refused.stderr
    assert f"byte {at[1]}" in refused.stderr
    compactor_command("topics", "roll", "t").refused(7, segment.name, f"byte {at[1]}")
    assert segment.read_bytes() == content
    rolled = compactor_command("topics", "roll", "t", "--accept-loss").done()
    assert " rolled, 1 segment sealed, 0 segments to be sealed" in rolled.stdout
    assert "lost" in rolled.stderr
    lost = set(range(before)) - {
        message["offset"]
        for message in compactor_command("read", "t", "--key-encoding", "base64", "--value-encoding", "base64")
        .done()
        .messages
    }
    assert 1 in lost
    compactor_command("produce", "t", stdin=line).done()
    again = compactor_command("topics", "roll", "t", "--accept-loss").done()
    assert " rolled, 1 segment sealed, 0 segments" in again.stdout
    assert "lost" not in again.stderr
    read = compactor_command("read", "t", "--key-encoding", "base64", "--value-encoding", "base64").done().messages
    assert [item["offset"] for item in read] == [offset for offset in range(before + 1) if offset not in lost]
    assert read[-1]["key"] == "ZA=="


def test_what_is_left_of_a_damaged_rolled_segment_is_sealed_by_hand(
    compactor_command: Compactor, segment: Path
) -> None:
    """`log seal --accept-loss`; without it what is behind the damage is sealed all the same."""
    compactor_command("topics", "roll", "t").done()
    at = positions(compactor_command("log", "dump", str(segment)).messages)
    content = bytearray(segment.read_bytes())
    content[at[1] + 20] ^= 1
    segment.write_bytes(content)
    compactor_command("produce", "t", stdin=b'{"key":"d","value":"5"}\n').done()
    compactor_command("topics", "roll", "t").done()
    name = "persistent://public/default/t"
    compactor_command("log", "seal", "--accept-loss").refused(2, "name the TOPIC")
    refused = compactor_command("log", "seal", "t")
    assert refused.exit_code == 7
    sealed, removed, error = refused.stderr.splitlines()
    assert (sealed, removed) == (f"{name}: segment 2 sealed, 1 message", "0 segment files removed")
    for part in (str(segment), f"byte {at[1]}", "compactor log dump 1", f"compactor log seal {name} --accept-loss"):
        assert part in error
    accepted = compactor_command("log", "seal", "t", "--accept-loss").done().stderr.splitlines()
    assert accepted[0] == f"{name}: segment 1 sealed, 2 messages, 2 messages lost"
    read = compactor_command("read", "t", "--key-encoding", "base64", "--value-encoding", "base64").done().messages
    assert [(item["offset"], item["message_id"]) for item in read] == [(0, "1:0:-1"), (3, "1:2:-1"), (4, "2:0:-1")]


def test_stats_of_a_topic_that_was_trimmed(compactor_command: Compactor, segment: Path) -> None:
    compactor_command("topics", "roll", "t", "--seal").done()
    compactor_command("produce", "t", stdin=b'{"key":"d","value":"5"}\n{"key":"d","value":"6"}\n').done()
    compactor_command("topics", "trim", "t", "--before", "4").done()
    shown = stats(compactor_command)
    assert shown["raw"]["start_offset"] == 4
    assert shown["raw"]["ledgers"] == 0
    assert shown["tail"] == {"segments": 1, "messages": 2, "logical_bytes": 2, "given_up": 0}
    assert shown["last_message_id"] == "2:1:-1"
    table = compactor_command("topics", "stats", "t").done().stdout
    rows = dict(line.split() for line in table.splitlines() if len(line.split()) == 2)
    assert (rows["raw.start_offset"], rows["raw.next_offset"]) == ("4", "6")
    assert (rows["tail.segments"], rows["tail.messages"]) == ("1", "2")
