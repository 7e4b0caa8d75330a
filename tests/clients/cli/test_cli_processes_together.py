"""Real processes on one topic at once: producers, an import, a compaction, readers that follow.

The writer's lease passes from one to the next, or refuses; nothing is lost or out of order, whichever process
ends. Nothing here waits for a time: what a process prints is waited for.
"""

from __future__ import annotations

import os
import signal
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.clients.cli.conftest import write_lines
from tests.clients.cli.processes import Command, acknowledged, ended, piped, received, send, started
from tests.program import Program

pytestmark = pytest.mark.slow


def followed(reader: Command, count: int) -> list[int]:
    """The values of the next messages; waits for them."""
    return [int(received(reader)["value"]) for _ in range(count)]


def outcome(*arguments: str) -> tuple[int, str]:
    """Run a command to its end; return its exit code and what it wrote to stderr."""
    with started(*arguments) as command:
        _, stderr = command.communicate()
        return command.wait(), stderr


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, signal.SIGTERM, signal.SIGKILL],
)
def test_what_a_producer_acknowledged_is_there_however_it_ends(program: Program, number: signal.Signals) -> None:
    """The lease of one that was killed is free at once: its process is known to be dead."""
    with started("produce", "t", "--ids") as producer:
        send(producer, *range(200))
        answer = acknowledged(producer, 20)
        producer.send_signal(number)
        answer += [line.strip() for line in piped(producer.stdout) if line.endswith("\n")]
        code = producer.wait()
    assert code == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    with started("produce", "t", "--ids", "--wait", "0") as producer:
        send(producer, 1000)
        (last,) = acknowledged(producer, 1)
        assert ended(producer) == 0
    messages = program("read", "t").done().messages
    values = [int(message["value"]) for message in messages]
    assert values == [*range(len(values) - 1), 1000]
    ids = [message["message_id"] for message in messages]
    assert ids[: len(answer)] == answer
    assert ids[-1] == last
    assert len(set(ids)) == len(ids)


def test_writers_pass_the_lease_on_and_readers_see_one_sequence(program: Program, folder: Path) -> None:
    write_lines(folder / "in.jsonl", *({"key": f"k{n % 7}", "value": str(n)} for n in range(100, 150)))
    with ExitStack() as stack:
        first = stack.enter_context(started("produce", "t", "--ids", "--batch", "1"))
        send(first, *range(100))
        acknowledged(first, 100)
        readers = [
            stack.enter_context(started("read", "t", "--follow", *flags)) for flags in ([], ["--read-compacted"])
        ]
        for reader in readers:
            assert followed(reader, 100) == [*range(100)]
        code, answer = outcome("produce", "t", os.devnull, "--wait", "0")
        assert code == 4
        assert f"{socket.gethostname()}:{first.pid}:" in answer
        importing = stack.enter_context(started("import", "t", "in.jsonl"))
        assert ended(first) == 0
        assert importing.wait() == 0, piped(importing.stderr).read()
        second = stack.enter_context(started("produce", "t", "--ids"))
        send(second, *range(150, 200))
        acknowledged(second, 50)
        for reader in readers:
            assert followed(reader, 100) == [*range(100, 200)]
            reader.send_signal(signal.SIGINT)
            assert reader.wait() == 130
        assert ended(second) == 0
    messages = program("read", "t").done().messages
    assert [int(message["value"]) for message in messages] == [*range(200)]
    assert [message["offset"] for message in messages] == [*range(200)]


def test_a_compaction_beside_a_producer_and_its_readers(program: Program) -> None:
    """The producer is asked to roll, and continues; who follows compacted continues raw behind what it began with."""
    with ExitStack() as stack:
        producer = stack.enter_context(started("produce", "t", "--ids"))
        send(producer, *range(50))
        acknowledged(producer, 50)
        raw = stack.enter_context(started("read", "t", "--follow"))
        assert followed(raw, 50) == [*range(50)]
        code, answer = outcome("compact-topic", "--topic", "t", "--engine", "in-process")
        assert code == 0, answer
        compacted = stack.enter_context(started("read", "t", "--follow", "--read-compacted"))
        assert followed(compacted, 7) == [*range(43, 50)]
        send(producer, *range(50, 80))
        acknowledged(producer, 30)
        for reader in (raw, compacted):
            assert followed(reader, 30) == [*range(50, 80)]
        assert ended(producer) == 0
    for first, flags in ((0, []), (43, ["--read-compacted"])):
        assert [int(message["value"]) for message in program("read", "t", *flags).messages] == [*range(first, 80)]
