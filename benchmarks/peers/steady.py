"""Steady state: a compacted topic gets a few new messages from a client, and is compacted again, round after round.

The first stage sends all messages of the shape and compacts them; then, for each share, every round sends new messages
of the same keys. In each stage the contenders take turns on the same messages: send, `sync`, compact. Time, CPU time of
all processes of the contender, and bytes are measured for sending and for the compaction. At the end the survivors of
all contenders are read back and compared.

Sending is timed by the client. The CPU time of the clients is not counted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from benchmarks.data import Shape, write_parquet
from benchmarks.peers.contender import Contender, Messages, Meter, PeerFailed, Usage
from benchmarks.peers.records import Survivors, check, write_records
from benchmarks.peers.report import Line
from benchmarks.peers.sitting import Say, note_failure, running

TOPIC = "steady"
WARM_UP = 3_000_000
"""Most messages of the warm-up: enough that this service's job runs on Spark, as the first of a large topic does."""


@dataclass(frozen=True)
class Turn:
    """Figures of one contender in one round."""

    sending_seconds: float
    sending: Usage
    compaction_seconds: float
    compaction: Usage


@dataclass
class Stage:
    """Rounds with one number of new messages. `turns`: by contender, in the order of the rounds."""

    title: str
    shape: Shape
    rounds: int
    turns: dict[str, list[Turn]] = field(default_factory=dict)


def stages(base: Shape, shares: Sequence[float], rounds: int) -> list[Stage]:
    """Return the first stage and one for each share of new messages."""
    first = Stage(f"first {base.messages:,}", base, 1)
    later = [
        Stage(f"{share:.1%} new", replace(base, messages=max(1, int(base.messages * share))), rounds)
        for share in shares
    ]
    return [first, *later]


def measure(plan: Sequence[Stage], contenders: Sequence[Contender], folder: Path, say: Say) -> Survivors | None:
    """Let the contenders take turns, fill the stages, and return the survivors, the same for all that did not fail.

    Raises Disagreement, PeerFailed (the first contender failed).
    """
    lines = [Line(contender.name, contender.family) for contender in contenders]
    seed = 0
    with running(contenders, lines, say):
        base = plan[0].shape
        warm_up = replace(base, messages=min(base.messages, WARM_UP), seed=1_000_000)
        stage = Stage("warm-up", warm_up, 1)
        _round(stage, "warm-up", contenders, lines, folder, say)
        for stage in plan:
            for _ in range(stage.rounds):
                seed += 1
                stage.shape = replace(stage.shape, seed=seed)
                _round(stage, TOPIC, contenders, lines, folder, say)
        expected: Survivors | None = None
        for contender, line in zip(contenders, lines, strict=True):
            if line.failure:
                continue
            try:
                actual = contender.survivors(TOPIC, base)
            except PeerFailed as failure:
                note_failure(contender, line, failure, say)
                continue
            expected = expected or actual
            check(contender.name, actual, expected)
    return expected


def _round(
    stage: Stage, topic: str, contenders: Sequence[Contender], lines: Sequence[Line], folder: Path, say: Say
) -> None:
    parquet, records = folder / "messages.parquet", folder / "messages.records"
    write_parquet(stage.shape, parquet)
    write_records(parquet, stage.shape.payload_bytes, records)
    messages = Messages(f"{topic}-{stage.shape.seed}", stage.shape, parquet, records)
    for contender, line in zip(contenders, lines, strict=True):
        if line.failure:
            continue
        try:
            turn = _turn(contender, messages, topic)
        except PeerFailed as failure:
            note_failure(contender, line, failure, say)
            continue
        stage.turns.setdefault(contender.name, []).append(turn)
        say(
            f"{stage.title}: {contender.name} {turn.sending_seconds:.2f} + {turn.compaction_seconds:.2f} s, "
            f"CPU {turn.sending.cpu_seconds:.2f} + {turn.compaction.cpu_seconds:.2f} s"
        )
    parquet.unlink()
    records.unlink()


def _turn(contender: Contender, messages: Messages, topic: str) -> Turn:
    meter = Meter(contender.process())
    sending_seconds = contender.load(messages, topic)
    sending = meter.read()
    os.sync()
    meter = Meter(contender.process())
    compaction = contender.compact(topic)
    return Turn(sending_seconds, sending, compaction.seconds, meter.read())


def markdown(plan: Sequence[Stage], peer: str) -> str:
    """Return a table with a row for each stage and contender. `peer`: the contender that is 1 in the ratios."""
    rows = [
        "| messages | contender | sending, s | compaction, s, median | min–max | CPU, s, sending + compaction "
        "| read, MiB | written, MiB | compaction, peer = 1 | CPU, peer = 1 |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for stage in plan:
        for name, turns in stage.turns.items():
            seconds = [turn.compaction_seconds for turn in turns]
            sending, compaction = (
                median(turn.sending.cpu_seconds for turn in turns),
                median(turn.compaction.cpu_seconds for turn in turns),
            )
            rows.append(
                f"| {stage.title} | {name} | {median(turn.sending_seconds for turn in turns):.2f} "
                f"| {median(seconds):.2f} | {min(seconds):.2f}–{max(seconds):.2f} "
                f"| {sending:.2f} + {compaction:.2f} "
                f"| {median(turn.compaction.read_bytes for turn in turns) / 2**20:,.0f} "
                f"| {median(turn.compaction.written_bytes for turn in turns) / 2**20:,.0f} "
                f"| {_ratio(turns, stage.turns.get(peer, []), _compaction_seconds)} "
                f"| {_ratio(turns, stage.turns.get(peer, []), _all_cpu_seconds)} |"
            )
    return "\n".join(rows)


def _ratio(turns: Sequence[Turn], peers: Sequence[Turn], of: Callable[[Turn], float]) -> str:
    """Return the median of the ratios round by round; a dash if the peer has no figures."""
    ratios = [of(turn) / of(peer) for turn, peer in zip(turns, peers, strict=False) if of(peer)]
    return f"{median(ratios):.2f}" if ratios else "–"


def _compaction_seconds(turn: Turn) -> float:
    return turn.compaction_seconds


def _all_cpu_seconds(turn: Turn) -> float:
    return turn.sending.cpu_seconds + turn.compaction.cpu_seconds
