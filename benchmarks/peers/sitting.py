"""Sitting on one shape of data: the contenders start, warm up, and take turns round by round on the same messages.

In each round each contender loads (not this job, whose raw ledgers stay), the disk is synchronized (`sync`), the
contender compacts while its writes and memory are measured, and the survivors are read back and compared with this
job's. That happens in every round, so all times are of the same work. The warm-up is a round on at most WARM_UP
messages.

All files are in one folder, which is always removed at the end, after the processes have ended.
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
    """Result of one shape: a line per contender, in their order, and the survivors."""

    shape: Shape
    lines: list[Line]
    survivors: Survivors


def sit(shape: Shape, contenders: Sequence[Contender], rounds: int, folder: Path, say: Say) -> Sat:
    """Let the contenders, this job first, take turns. A failure is in the contender's line; the others continue."""
    lines = [Line(contender.name, contender.family) for contender in contenders]
    survivors: Survivors | None = None
    with running(contenders, lines, say):
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
                    actual = _turn(
                        contender, messages, f"{messages.name}-{number}", line if number else None, stage, say
                    )
                except PeerFailed as failure:
                    note_failure(contender, line, failure, say)
                    continue
                expected = expected or actual
                check(contender.name, actual, expected)
            survivors = expected
    assert survivors is not None
    return Sat(shape, lines, survivors)


def _turn(contender: Contender, messages: Messages, topic: str, line: Line | None, stage: str, say: Say) -> Survivors:
    """Load, compact, read back and forget. Record the figures in `line`; None: warm-up."""
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
    survivors = contender.survivors(topic, messages.shape)
    contender.forget(topic)
    remark = f" ({compaction.remark})" if compaction.remark else ""
    say(f"{stage}: {contender.name} {compaction.seconds:.2f} s{remark}")
    return survivors


def _make(name: str, shape: Shape, folder: Path) -> Messages:
    messages = Messages(name, shape, folder / f"{name}.parquet", folder / f"{name}.records")
    if not messages.records.exists():
        write_parquet(shape, messages.parquet)
        write_records(messages.parquet, shape.payload_bytes, messages.records)
    return messages


@contextlib.contextmanager
def running(contenders: Sequence[Contender], lines: list[Line], say: Say) -> Iterator[None]:
    """Start all contenders, and stop them at the end."""
    with contextlib.ExitStack() as stack:
        for contender, line in zip(contenders, lines, strict=True):
            stack.callback(contender.stop)
            say(f"starting {contender.name}")
            try:
                contender.start()
            except PeerFailed as failure:
                note_failure(contender, line, failure, say)
        yield


def note_failure(contender: Contender, line: Line, failure: PeerFailed, say: Say) -> None:
    """Record the failure, so that the others continue. Raise it again for this job, the base of all ratios."""
    if contender.family == OURS:
        raise failure
    line.failure = str(failure)
    say(f"{contender.name} failed: {failure}")


@contextlib.contextmanager
def folder_for(name: str, parent: Path, keep: bool) -> Iterator[Path]:
    """Create a folder inside `parent` for the duration of the context."""
    folder = parent / name
    folder.mkdir()
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
