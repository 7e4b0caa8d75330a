"""The meter of a contender's CPU time: processes that end while it measures."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks.peers.contender import Meter

PARENT = """
import os, signal, sys
{before}
child = os.fork()
if not child:
    while sum(os.times()[:2]) < 0.5:
        pass
    os.write(1, b"busy\\n")
    signal.pause()
sys.stdin.readline()
os.kill(child, signal.SIGKILL)
{after}
while sum(os.times()[:2]) < 0.4:
    pass
print("ended", flush=True)
sys.stdin.readline()
"""


@contextmanager
def parent_of_a_busy_child(before: str, after: str) -> Iterator[subprocess.Popen[str]]:
    """A process whose child has spent 0.5 s of CPU, and ends at the next line of the input."""
    command = [sys.executable, "-c", PARENT.format(before=before, after=after)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "busy\n"
        yield process
        process.kill()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "os.waitpid(child, 0)"),
        (
            "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
            "\ntry: os.waitpid(child, 0)\nexcept ChildProcessError: pass",
        ),
    ],
    ids=["waited for", "not waited for"],
)
def test_the_past_of_a_child_that_ends_meanwhile_is_not_counted_and_its_parents_work_is(
    before: str, after: str
) -> None:
    with parent_of_a_busy_child(before, after) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        meter = Meter(process.pid)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "ended\n"
        assert 0.2 < meter.read().cpu_seconds < 0.6, "what the parent spent"
