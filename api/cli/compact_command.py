"""`compactor compact-topic`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.progress import progress_for
from api.cli.talk import number, say, size
from api.wiring import open_components
from storage.model import TopicName

if TYPE_CHECKING:
    from compactor.two_phase import Outcome
    from storage.metadata.records import RunRecord


def compact_topic(
    context: typer.Context,
    topic: Annotated[str, typer.Option(help="persistent://tenant/namespace/topic, or short")],
    retain_null_key: Annotated[bool, typer.Option("--retain-null-key", help="Keep messages without a key.")] = False,
) -> None:
    """Compact a topic: the newest message of each key goes to a new compacted ledger, raw stays as it is."""
    name = TopicName.parse(topic)
    with open_components(context.obj) as components:
        components.metadata.topic(name)  # an unknown topic is known before Spark starts
        from compactor.plan import Policies
        from compactor.spark import SparkEngine, SparkSettings, open_session
        from compactor.two_phase import TwoPhaseCompactor

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
            outcome = compactor.compact(name, Policies(retain_null_key=retain_null_key))
        finally:
            session.stop()
    for line in describe(outcome):
        say(line)
    if outcome.compacted_ledger_id is not None:
        print(f"Compaction of topic {name} complete. Compacted to ledger {outcome.compacted_ledger_id}")  # noqa: T201
    else:
        print(f"Compaction of topic {name} complete. Nothing to compact")  # noqa: T201


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
        f"phase one: {number(seen['index_records'])} index records of {number(seen['messages_in'])} messages, "
        f"{number(seen['keys'])} live keys, {number(seen['tombstones_removed'])} deleted, "
        f"{seen['phase_one_ms'] / 1000:.2f} s",
        f"phase two: {number(seen['messages_out'])} survivors in {number(seen['parts'])} parts, "
        f"{size(seen['logical_bytes_out'])}, {seen['phase_two_ms'] / 1000:.2f} s",
        f"read {size(seen['bytes_read'])}, wrote {size(seen['bytes_written'])}; "
        f"verified and published in {(seen['verify_ms'] + seen['publish_ms']) / 1000:.2f} s",
    ]
