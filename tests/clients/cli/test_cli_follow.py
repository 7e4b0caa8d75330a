"""`compactor read` of a topic with a tail: offsets, times, trimmed starts, and `--follow` beside a producer."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.clients.cli.conftest import write_lines
from tests.clients.cli.processes import ended, piped, received, send, started
from tests.program import Program

pytestmark = pytest.mark.slow

NOON = 1_763_726_400_000
"""2025-11-21T12:00:00Z"""


@pytest.fixture
def topic(program: Program, folder: Path) -> str:
    """Offsets 0 and 1 in a ledger, 2 and 3 in a sealed segment, 4 and 5 in the open one, a second apart."""
    for number, command in ((0, "import"), (2, "produce"), (4, "produce")):
        lines = [{"key": "k", "value": str(n), "publish_time": NOON + 1000 * n} for n in (number, number + 1)]
        write_lines(folder / "in.jsonl", *lines)
        program(command, "t", "in.jsonl").done()
        if number == 2:
            program("topics", "roll", "t", "--seal").done()
    return "t"


def values(program: Program, *arguments: str) -> list[int]:
    return [int(message["value"]) for message in program("read", "t", *arguments).done().messages]


def test_offsets_ids_and_times(program: Program, topic: str) -> None:
    """Over ledgers and segments as over one sequence. What a start means: tests/unit/storage/reading."""
    for start, first in (("3", 3), ("6", 6), ("2:0:-1", 2), ("3:1:-1", 5), (f"@{NOON + 1}", 1), ("@2026-01-01", 6)):
        assert values(program, "--from", start) == list(range(first, 6))
    assert values(program, "--from", "@2025-11-21T13:00:03.5+01:00", "--limit", "1") == [4]


def test_a_start_that_was_trimmed(program: Program, topic: str) -> None:
    """L3: out of range, and `--reset` says what then."""
    program("topics", "trim", "t", "--before", "4", "--yes").done()
    for start in ("2", "1:1"):
        assert values(program, "--from", start) == [4, 5]
        assert values(program, "--from", start, "--reset", "earliest") == [4, 5]
        assert values(program, "--from", start, "--reset", "latest") == []
        program("read", "t", "--from", start, "--reset", "fail").refused(2, "offset 4")
    assert values(program, "--reset", "fail") == [4, 5], "earliest is what there is"
    assert values(program, "--from", "4", "--reset", "fail") == [4, 5]
    assert program("read", "t", "--reset", "never").exit_code == 2


@pytest.mark.parametrize("flag", [[], ["--read-compacted"]], ids=["raw", "compacted"])
def test_follow_up_to_a_limit(program: Program, topic: str, flag: list[str]) -> None:
    assert values(program, "--follow", "--limit", "6", *flag) == list(range(6))
    assert values(program, "--follow", "--limit", "0", *flag) == []
    assert values(program, "--follow", "--limit", "2", "--from", "3", *flag) == [3, 4]


def test_what_another_process_produces_is_seen_as_it_comes(program: Program, topic: str) -> None:
    """Each message by itself, through a roll, a seal and an import; from the beginning and from the end."""
    with started("produce", "t", "--ids") as producer, started("read", "t", "--follow", "--from", "5") as follower:
        assert received(follower)["value"] == "5"
        send(producer, "6")
        at = received(follower)
        assert (at["offset"], at["value"]) == (6, "6")
        assert piped(producer.stdout).readline().strip() == at["message_id"]
        program("topics", "roll", "t", "--seal").done()
        send(producer, "7")
        assert received(follower)["offset"] == 7
        assert ended(producer) == 0
        program("import", "t", "-", stdin=b'{"key":"k","value":"8"}\n').done()
        at = received(follower)
        assert (at["offset"], at["value"]) == (8, "8")
        follower.send_signal(signal.SIGINT)
        assert piped(follower.stdout).read() == ""
        assert follower.wait() == 130
        assert piped(follower.stderr).read().startswith("compactor: interrupted")


def test_a_follower_that_has_enough_is_told(topic: str) -> None:
    """`compactor read --follow | head -1`: it ends when the next message comes."""
    with started("produce", "t") as producer, started("read", "t", "--follow", "--from", "5") as follower:
        received(follower)
        piped(follower.stdout).close()
        for number in range(200):
            send(producer, str(number))
        assert follower.wait() == 0
        assert piped(follower.stderr).read() == ""
        assert ended(producer) == 0


def test_follow_the_compacted_view(program: Program, topic: str, in_process_engine: None) -> None:
    """The compacted ledger first, then what comes, whatever is compacted meanwhile."""
    program("compact-topic", "--topic", "t").done()
    with started("read", "t", "--follow", "--read-compacted") as follower:
        assert received(follower)["value"] == "5", "the newest of the one key"
        for number in (6, 7):
            line = json.dumps({"key": "k", "value": str(number)}).encode()
            program("produce", "t", stdin=line).done()
            assert received(follower)["offset"] == number
            program("compact-topic", "--topic", "t").done()
