"""`compactor produce`: lines become messages of the log, one writer at a time, and nothing is said that is not so."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.clients.cli.conftest import BASE64, content, write_lines
from tests.clients.cli.processes import COMMAND, acknowledged, ended, send, started
from tests.program import Program

MESSAGES: list[dict[str, Any]] = [
    {"key": "a", "value": "1", "event_time": 5, "publish_time": 9, "properties": {"p": "q", "": "ü"}},
    {"key": None, "value": "no key", "publish_time": 9},
    {"key": "", "value": "empty key", "publish_time": 9},
    {"key": "a", "value": None, "publish_time": 9},
    {"key": "b", "value": "", "publish_time": 3},
    {"key": "line\nend \x00 \x1b[31m", "value": '"quoted" \\ 🎉', "publish_time": 4},
]


@pytest.mark.parametrize(
    ("compression", "options"),
    [
        ("none", []),
        ("lz4", ["--batch", "1"]),
        ("zlib", ["--batch", "2"]),
        ("zstd", ["--batch", "100"]),
        ("snappy", ["--batch", "2"]),
    ],
)
def test_lines_come_out_as_they_went_in(program: Program, folder: Path, options: list[str], compression: str) -> None:
    write_lines(folder / "in.jsonl", *MESSAGES)
    produced = program("produce", "t", "in.jsonl", "--compression", compression, *options).done()
    assert produced.raw_stdout == b"", "ids are shown only if they are asked for"
    assert produced.stderr.startswith("6 messages acknowledged in ")
    read = program("read", "t").done().messages
    assert content(read) == MESSAGES
    assert [message["offset"] for message in read] == list(range(6))


def test_standard_input_is_the_default_and_the_topic_is_gone_on_with(program: Program) -> None:
    program("produce", "t", stdin=b'{"key":"a","value":"1"}\n').done()
    program("produce", "t", "-", stdin=b'{"key":"b","value":"2"}').done()
    assert program("produce", "t", stdin=b"").done().stderr.startswith("0 messages acknowledged")
    read = program("read", "t").done().messages
    assert [(item["message_id"], item["offset"], item["key"]) for item in read] == [
        ("1:0:-1", 0, "a"),
        ("1:1:-1", 1, "b"),
    ]
    assert len({item["publish_time"] for item in read}) <= 2
    assert all(item["publish_time"] > 1_600_000_000_000 for item in read), "the time of producing, if a line has none"


def test_the_key_of_lines_that_have_none(program: Program) -> None:
    lines = b'{"value":"1"}\n{"key":null,"value":"2"}\n{"key":"own","value":"3"}\n'
    program("produce", "t", "--key", "given", stdin=lines).done()
    assert [message["key"] for message in program("read", "t").messages] == ["given", "given", "own"]
    without = program("produce", "t", stdin=b'{"value":"1"}\n')
    assert without.exit_code == 2
    assert "line 1" in without.stderr
    program("produce", "u", "--key", "/w==", *BASE64, stdin=b'{"value":"/w=="}').done()
    assert content(program("read", "u", *BASE64).messages)[0]["key"] == "/w=="


def test_ids_are_those_that_readers_see(program: Program, folder: Path) -> None:
    write_lines(folder / "in.jsonl", *MESSAGES)
    for options in ([], ["--batch", "4"]):
        before = len(program("read", "t").messages) if options else 0
        produced = program("produce", "t", "in.jsonl", "--ids", *options).done()
        read = program("read", "t").done().messages[before:]
        assert produced.stdout.splitlines() == [message["message_id"] for message in read]
    assert [item["message_id"] for item in read] == [
        "1:6:-1:0",
        "1:6:-1:1",
        "1:6:-1:2",
        "1:6:-1:3",
        "1:7:-1:0",
        "1:8:-1:0",
    ]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
@pytest.mark.parametrize("broken", ["full", "pipe"])
def test_ids_that_cannot_be_printed_are_an_error(program: Program, folder: Path, broken: str) -> None:
    """No acknowledged message is lost by it, or reported as missing."""
    write_lines(folder / "in.jsonl", *MESSAGES)
    if broken == "full":
        out = os.open("/dev/full", os.O_WRONLY)
    else:
        end, out = os.pipe()
        os.close(end)
    command = [*COMMAND, "produce", "t", "in.jsonl", "--ids", "--batch", "2"]
    result = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, check=False, text=True)
    os.close(out)
    assert result.returncode == 6, result.stderr
    counted, created, answer = result.stderr.splitlines()
    assert created == "The topic persistent://public/default/t did not exist: it was created"
    assert answer.startswith("compactor: the id of an acknowledged message cannot be printed, ")
    read = program("read", "t").done().messages
    assert read
    assert counted.startswith(f"{len(read)} message")
    assert counted.endswith(f"; lines from {len(read) + 1} on, if any, were not")


@pytest.mark.parametrize(
    ("batch", "bad"),
    [("1", "no json"), ("2", '{"key":"a"}'), ("3", '{"key":"a","value":"1","colour":"red"}'), ("100", "")],
)
def test_a_bad_line_ends_it_and_the_lines_before_are_appended(
    program: Program, folder: Path, batch: str, bad: str
) -> None:
    """Also those of a batch that is not full yet."""
    good = [json.dumps({"key": "k", "value": str(number)}) for number in range(5)]
    (folder / "in.jsonl").write_text("\n".join([*good, bad, good[0]]) + "\n")
    produced = program("produce", "t", "in.jsonl", "--batch", batch, "--ids")
    assert produced.exit_code == 2
    text = produced.stderr.splitlines()
    assert text[0].startswith("5 messages acknowledged")
    assert text[0].endswith(" s; lines from 6 on, if any, were not")
    assert text[1] == "The topic persistent://public/default/t did not exist: it was created"
    assert text[2].startswith("compactor: in.jsonl, line 6: ")
    assert "the lines before it, if any, were appended" in text[2]
    read = program("read", "t").done().messages
    assert [message["value"] for message in read] == ["0", "1", "2", "3", "4"]
    assert produced.stdout.splitlines() == [message["message_id"] for message in read]


def test_a_message_that_is_too_large_ends_it(program: Program) -> None:
    lines = b"".join(b'{"key":"k","value":"%s"}\n' % (b"x" * size) for size in (1, 6 << 20, 1))
    produced = program("produce", "t", stdin=lines)
    assert produced.exit_code == 2
    assert "larger than the limit" in produced.stderr
    assert len(program("read", "t").messages) == 1


@pytest.mark.slow
def test_one_producer_at_a_time(program: Program) -> None:
    command = ("produce", "t", "--wait", "0")
    with started("produce", "t", "--ids") as other:
        send(other, 1)
        acknowledged(other, 1)
        refused = program(*command, stdin=b'{"key":"k","value":"mine"}\n')
        assert refused.exit_code == 4
        assert f":{other.pid}:" in refused.stderr, "the owner is named: host, process, a random word"
        assert "Traceback" not in refused.stderr
        stats = program("topics", "stats", "t", "--output", "json").done()
        assert stats.json["tail"] == {"segments": 1, "messages": 1, "logical_bytes": 3, "given_up": 0}
        assert [message["value"] for message in program("read", "t").messages] == ["1"]
        send(other, 2)
        assert ended(other) == 0
    program(*command, stdin=b'{"key":"k","value":"mine"}\n').done()
    assert [message["value"] for message in program("read", "t").messages] == ["1", "2", "mine"]


def test_a_log_directory_of_its_own(program: Program, folder: Path) -> None:
    """`--log`: on a disk of its own. A directory other than the topic's is reported, and no topic looks empty."""
    line = b'{"key":"k","value":"1"}\n'
    program("produce", "t", "--log", "fast", stdin=line).done()
    assert len(list((folder / "fast").glob("*/*.log"))) == 1
    assert not list((folder.parent / "data").glob("log/*/*.log"))
    assert len(program("read", "t", "--log", "fast").done().messages) == 1
    program("read", "t").refused(5, "log")
    refused = program("produce", "t", stdin=line)
    assert refused.exit_code == 5
    assert "COMPACTOR_LOG" in refused.stderr


def test_the_newest_value_of_a_key_that_is_only_in_the_tail(program: Program, folder: Path) -> None:
    write_lines(folder / "a.jsonl", {"key": "a", "value": "imported"}, {"key": "b", "value": "imported"})
    program("import", "t", "a.jsonl").done()
    lines = (
        b'{"key":"a","value":"produced"}\n{"key":"c","value":"1"}\n{"key":"c","value":"2"}\n{"key":"b","value":null}\n'
    )
    program("produce", "t", stdin=lines).done()
    for state in ("open", "rolled", "sealed"):
        assert program("get", "t", "a").done().messages[0]["value"] == "produced", state
        assert program("get", "t", "c").done().messages[0]["value"] == "2", state
        program("get", "t", "b").refused(8, "no value")
        program("topics", "roll", "t", *(["--seal"] if state == "rolled" else [])).done()
