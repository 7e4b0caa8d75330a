"""`compactor compact-topic`."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.names import TOPIC_HELP
from api.cli.progress import progress_for
from api.cli.talk import counted, number, say, size
from api.wiring import open_components
from storage.model import TopicName

if TYPE_CHECKING:
    from compactor.batch import Outcome
    from storage.metadata.records import RunRecord


def compact_topic(
    context: typer.Context,
    topic: Annotated[str, typer.Option(metavar="TOPIC", help=TOPIC_HELP)],
    retain_null_key: Annotated[bool, typer.Option("--retain-null-key", help="Keep messages without a key.")] = False,
) -> None:
    """Keep the newest message of each key.

    They go to a new compacted ledger; the topic's raw messages stay as they are.
    """
    name = TopicName.parse(topic)
    with open_components(context.obj) as components:
        snapshot = components.topic(name).snapshot()  # an unknown topic is known before Spark starts
        from compactor.batch import Outcome
        from compactor.plan import Policies
        from compactor.two_phase import TwoPhaseCompactor, nothing_new

        policies = Policies(retain_null_key=retain_null_key)
        if nothing_new(components.metadata, components.store, components.clock, snapshot, policies):
            report(Outcome(name, None))  # known without Spark, which takes seconds to start
            return
        from compactor.spark import SparkEngine, SparkSettings, open_session

        if sys.stderr.isatty():
            say("starting Spark …")
        log_file = context.obj.make_data_directory() / "spark.log"
        session = open_session(SparkSettings(log_file, context.obj.spark_master), say)
        try:
            compactor = TwoPhaseCompactor(
                components.metadata,
                components.store,
                components.clock,
                SparkEngine(session),
                progress_for(sys.stderr),
            )
            outcome = compactor.compact(name, policies)
        finally:
            # Stopping a Java that has died fails, too, and would hide why.
            with suppress(Exception):
                session.stop()
    report(outcome)


def report(outcome: Outcome) -> None:
    """Say what was done on stderr, and its result on stdout."""
    for line in describe(outcome):
        say(line)
    if outcome.compacted_ledger_id is not None:
        print(f"Compaction of topic {outcome.topic} complete. Compacted to ledger {outcome.compacted_ledger_id}")  # noqa: T201
    else:
        print(f"Compaction of topic {outcome.topic} complete. Nothing to compact")  # noqa: T201


def describe(outcome: Outcome) -> list[str]:
    """What a run did, for a person."""
    if outcome.run is None:
        return ["Nothing is new since the last run: no run was made."]
    if outcome.run.compacted_ledger_id is None:
        return ["The topic has no messages: no compacted ledger was made."]
    return _phases(outcome.run)


def _phases(run: RunRecord) -> list[str]:
    seen = {name: value for name, value in run.statistics.items() if isinstance(value, int)}
    return [
        f"phase one: {counted(seen['index_records'], 'index record')} of {counted(seen['messages_in'], 'message')}, "
        f"{counted(seen['keys'], 'live key')}, {number(seen['tombstones_removed'])} deleted, "
        f"{seen['phase_one_ms'] / 1000:.2f} s",
        f"phase two: {counted(seen['messages_out'], 'survivor')} in {counted(seen['parts'], 'part')}, "
        f"{size(seen['logical_bytes_out'])}, {seen['phase_two_ms'] / 1000:.2f} s",
        f"read {size(seen['bytes_read'])}, wrote {size(seen['bytes_written'])}; "
        f"verified and published in {(seen['verify_ms'] + seen['publish_ms']) / 1000:.2f} s",
    ]
