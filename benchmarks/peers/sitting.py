"""One shape of data: the contenders started, warmed up, and taking turns round by round on the same messages.

In each round each contender loads (not this job, whose raw ledgers stay), the disk is brought to rest (`sync`), the
contender compacts while its writing and memory are watched, and what survives is read back and compared with what this
job left: in every round, so a time never stands for other work. The warm-up is a round on at most WARM_UP messages.

Everything is in one folder, which is removed at the end, whatever happens, after the processes are.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.data import Shape, write_parquet
from benchmarks.peers.contender import Contender, Messages, Meter, PeerFailed
from benchmarks.peers.records import Survivors, check, write_records
from benchmarks.peers.report import Line
from benchmarks.peers.this_job import OURS

WARM_UP = 1_000_000

Say = Callable[[str], None]


@dataclass(frozen=True)
class Sat:
    """What one shape gave: a line for each contender, in their order, and what survived."""

    shape: Shape
    lines: list[Line]
    survivors: Survivors


def sit(shape: Shape, contenders: Sequence[Contender], rounds: int, folder: Path, say: Say) -> Sat:
    """Let `contenders`, this job first, take turns. One that fails has a line that says so; the others continue."""
    lines = [Line(contender.name, contender.family) for contender in contenders]
    survivors: Survivors | None = None
    with _running(contenders, lines, say):
        say(f"making {shape}")
        warm_up = min(shape.messages, WARM_UP)
        small = replace(
            shape, messages=warm_up, keys=max(1, shape.keys * warm_up // shape.messages), seed=shape.seed + 1
        )
        sets = [_make("warm-up", small, folder), *[_make("messages", shape, folder)] * rounds]
        for number, messages in enumerate(sets):
            stage = f"round {number}" if number else "warm-up"
            expected: Survivors | None = None
            for contender, line in zip(contenders, lines, strict=True):
                if line.failure:
                    continue
                try:
                    found = _turn(
                        contender, messages, f"{messages.name}-{number}", line if number else None, stage, say
                    )
                except PeerFailed as failure:
                    _give_up(contender, line, failure, say)
                    continue
                expected = expected or found
                check(contender.name, found, expected)
            survivors = expected
    assert survivors is not None
    return Sat(shape, lines, survivors)


def _turn(contender: Contender, messages: Messages, topic: str, line: Line | None, stage: str, say: Say) -> Survivors:
    """Load, compact, read back, forget; what counts goes into `line`."""
    contender.load(messages, topic)
    os.sync()
    meter = Meter(contender.process())
    compaction = contender.compact(topic)
    usage = meter.read()
    if line is not None:
        line.seconds.append(compaction.seconds)
        line.written_bytes.append(usage.written_bytes)
        line.peak_bytes.append(usage.peak_bytes)
        line.remark = compaction.remark
    found = contender.survivors(topic, messages.shape)
    contender.forget(topic)
    remark = f" ({compaction.remark})" if compaction.remark else ""
    say(f"{stage}: {contender.name} {compaction.seconds:.2f} s{remark}")
    return found


def _make(name: str, shape: Shape, folder: Path) -> Messages:
    messages = Messages(name, shape, folder / f"{name}.parquet", folder / f"{name}.records")
    if not messages.records.exists():
        write_parquet(shape, messages.parquet)
        write_records(messages.parquet, shape.payload_bytes, messages.records)
    return messages


@contextlib.contextmanager
def _running(contenders: Sequence[Contender], lines: list[Line], say: Say) -> Iterator[None]:
    """Start all, end all."""
    with contextlib.ExitStack() as stack:
        for contender, line in zip(contenders, lines, strict=True):
            stack.callback(contender.stop)
            say(f"starting {contender.name}")
            try:
                contender.start()
            except PeerFailed as failure:
                _give_up(contender, line, failure, say)
        yield


def _give_up(contender: Contender, line: Line, failure: PeerFailed, say: Say) -> None:
    """Go on without it; raises `failure` again if it is this job, which all others are held against."""
    if contender.family == OURS:
        raise failure
    line.failure = str(failure)
    say(f"{contender.name} failed: {failure}")


@contextlib.contextmanager
def folder_for(name: str, parent: Path, keep: bool) -> Iterator[Path]:
    """A folder inside `parent` for as long as the context lasts."""
    folder = parent / name
    folder.mkdir()
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
