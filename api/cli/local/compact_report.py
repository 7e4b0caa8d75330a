"""Reports of compact-topic: a line or a JSON object a topic on stdout, messages and errors on stderr.

Both reports return the error of the first topic that failed; it decides the exit code.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TypeAlias

from api.cli.kit import exit_codes
from api.cli.kit.failures import describe_error, report_error
from api.cli.kit.stderr import counted, say, size
from api.cli.kit.terminal import print_line
from api.observability.error_text import OPERATOR_WORDING
from api.observability.redaction import redacted
from api.reports import statistics_document
from compactor.batch import Outcome
from storage.errors import CompactorError
from storage.metadata.records import RunRecord
from storage.metadata.store import MetadataStore
from storage.model import TopicName

Estimate: TypeAlias = tuple[TopicName, dict[str, object] | Exception | None]
"""A topic with the estimate of a run, with None if there is nothing to do, or with the error of the estimate."""


def report_outcomes(
    metadata: MetadataStore, topic_count: int, outcomes: Iterable[Outcome], as_json: bool
) -> Exception | None:
    """Report the outcome of each topic as it arrives; return the error of the first topic that failed, or None."""
    reported: list[Outcome] = []
    for outcome in outcomes:
        reported.append(outcome)
        if topic_count == 1 and outcome.error is None:
            for line in outcome_lines(outcome):
                say(line)
        if outcome.run is not None and outcome.run.skipped_tail_error:
            left = outcome.run.skipped_tail_error.worded(OPERATOR_WORDING)
            say(f"{outcome.topic}: what is not sealed yet was left to a later run: {left}")
        if outcome.run is not None and outcome.run.iceberg_table_error:
            error = outcome.run.iceberg_table_error.worded(OPERATOR_WORDING)
            say(f"{outcome.topic}: its Iceberg table stays as it was: {error}")
        if as_json:
            print(json.dumps(_outcome_document(metadata, outcome)), flush=True)  # noqa: T201
        elif outcome.error is None:
            ledger = outcome.compacted_ledger_id
            result = "Nothing to compact" if ledger is None else f"Compacted to ledger {ledger}"
            print_line(f"Compaction of topic {outcome.topic} complete. {result}", flush=True)
        if outcome.error is not None:
            report_error(outcome.error, str(outcome.topic) if topic_count > 1 else "")
    if topic_count > 1:
        say(_summary_line(reported))
    return next((outcome.error for outcome in reported if outcome.error is not None), None)


def report_estimates(estimates: Sequence[Estimate], as_json: bool) -> Exception | None:
    """Report the estimates of runs; return the error of the first topic that failed, or None."""
    first = None
    for topic, result in estimates:
        failed = result if isinstance(result, Exception) else None
        estimate = None if isinstance(result, Exception) else result
        if as_json:
            document = {"topic": str(topic), "dry_run": True} | _exit_code_and_error(failed) | {"forecast": estimate}
            print(json.dumps(document))  # noqa: T201
        elif failed is None:
            print_line(f"Compaction of topic {topic} would {_estimate_text(estimate)}")
        if failed is not None:
            report_error(failed, str(topic) if len(estimates) > 1 else "")
            first = first or failed
    return first


def outcome_lines(outcome: Outcome) -> list[str]:
    """Return the lines that describe the outcome of one topic's compaction to a person. The topic did not fail."""
    if outcome.run is None:
        return ["Nothing is new since the last run: no run was made."]
    if outcome.run.compacted_ledger_id is None:
        younger = " old enough" if outcome.run.policies.get("min_lag_ms") else ""
        return [f"The topic has no messages{younger}: no compacted ledger was made."]
    return _phase_lines(outcome.run)


def _phase_lines(run: RunRecord) -> list[str]:
    counts = _integer_statistics(run)
    return [
        f"phase one: {counted(counts['messages_in'], 'new message')}, "
        f"{counted(counts['index_records'], 'index record')} read, {counted(counts['keys'], 'live key')}, "
        f"{counts['tombstones_removed']:,} deleted, {counts['phase_one_ms'] / 1000:.2f} s",
        f"phase two: {counted(counts['messages_out'], 'survivor')} in {counted(counts['parts'], 'part')}, "
        f"{size(counts['logical_bytes_out'])}, {counts['phase_two_ms'] / 1000:.2f} s",
        f"read {size(counts['bytes_read'])}, wrote {size(counts['bytes_written'])}; "
        f"verified and published in {(counts['verify_ms'] + counts['publish_ms']) / 1000:.2f} s",
        f"engine: {run.statistics['engine']}",
    ]


def _summary_line(outcomes: Sequence[Outcome]) -> str:
    failed = sum(outcome.error is not None for outcome in outcomes)
    result = [
        _integer_statistics(outcome.run)
        for outcome in outcomes
        if outcome.compacted_ledger_id is not None and outcome.run
    ]
    nothing = len(outcomes) - failed - len(result)
    parts = [f"{counted(len(result), 'topic')} compacted", f"{nothing} with nothing to compact", f"{failed} failed"]
    read, wrote = (sum(counts[name] for counts in result) for name in ("bytes_read", "bytes_written"))
    return f"{', '.join(parts)}; read {size(read)}, wrote {size(wrote)}"


def _estimate_text(estimate: dict[str, object] | None) -> str:
    counts = {name: value for name, value in (estimate or {}).items() if isinstance(value, int)}
    tail = ""
    if "unsealed_messages" in counts:
        tail = f"seal {counted(counts['unsealed_messages'], 'message')} ({size(counts['unsealed_bytes'])}) first"
    if "bytes_to_write" not in counts:
        return f"{tail}, and compact them" if tail else "find nothing to compact"
    before = counts["messages_in"] + counts["messages_before"]
    return (
        f"keep {counts['messages_out']:,} of {counted(before, 'message')}, "
        f"drop {counts['messages_dropped']:,}, "
        f"write {counted(counts['parts_to_write'], 'part')} and about {size(counts['bytes_to_write'])} in all, "
        f"leave {counts['parts_kept']:,} as they are"
    ) + (f"; and {tail}, which are not counted here" if tail else "")


def _outcome_document(metadata: MetadataStore, outcome: Outcome) -> dict[str, object]:
    run = outcome.run
    if run is not None and outcome.error is not None:
        with suppress(CompactorError):  # without the database the last known state is reported
            run = metadata.runs.get(run.run_id)  # as it ended: failed, or cancelled
    return (
        {
            "topic": str(outcome.topic),
            "run": run.run_id if run else None,
            "state": run.state.value if run else None,
            "compacted_ledger": outcome.compacted_ledger_id,
        }
        | _exit_code_and_error(outcome.error)
        | {"statistics": statistics_document(run) if run else {}}
    )


def _exit_code_and_error(error: Exception | None) -> dict[str, object]:
    if error is None:
        return {"exit_code": exit_codes.OK, "error": None}
    return {
        "exit_code": exit_codes.exit_code_of(error),
        "error": redacted(describe_error(error).removeprefix("compactor: ")),
    }


def _integer_statistics(run: RunRecord) -> dict[str, int]:
    return {name: value for name, value in run.statistics.items() if isinstance(value, int)}
