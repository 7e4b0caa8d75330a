"""Reports of runs, verifications, trims and policies as plain values: one form for the command line and REST.

A document is a dict with the fields of a class of `api/documents.py`, which REST declares as its answer.
Times are milliseconds since 1970. `wording`: advice in errors, in the wording of a door for operators, who may read the
locations of database and store; None: the reader is no operator.
"""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Any

from api.observability.error_text import OPERATOR_WORDING
from api.observability.redaction import redacted, redacted_excerpt
from storage.errors import ErrorText
from storage.metadata.records import TABLE_ERROR, TAIL_LEFT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from api.broker.compaction import SchedulerState, TopicControl
    from api.broker.mirroring.operations import MirrorWithPartitions
    from compactor.maintenance.retention import TrimResult
    from compactor.maintenance.retention_plan import TrimCandidate
    from compactor.verify.findings import Difference, Report
    from storage.advice import AdviceWording
    from storage.metadata.records import RunRecord
    from storage.model import TopicName
    from storage.options.policies import UnreadableStoredValue
    from storage.options.resolution import PolicyOrigin, PolicyResolution

_LOCATION = re.compile(r"\b(?:s3|file|sqlite|postgres(?:ql)?(?:\+\w+)?|https?)://[^\s'\"]*[^\s'\",:;.)]")


def document_of(shape: type, record: object, /, **others: Any) -> dict[str, Any]:
    """Return a dict with the fields of the class `shape`. Each value is that of the same name in `others`, else the
    attribute of `record`."""
    return {name: others[name] if name in others else getattr(record, name) for name in shape.__annotations__}


def run_document(
    topic: TopicName, run: RunRecord, now: int, *, wording: AdviceWording | None = OPERATOR_WORDING
) -> dict[str, Any]:
    """Return a compaction run as a document (`RunReport`). `now`: milliseconds since 1970."""
    from api.documents import RunReport
    from compactor.two_phase import HEARTBEAT_MS
    from storage.metadata.liveness import is_alive
    from storage.metadata.records import MANUAL

    statistics = statistics_document(run, wording=wording)
    progress = {name: statistics.pop(name, None) for name in ("tasks_done", "tasks_total", "bytes_done")}
    running = run.state.value == "RUNNING"
    return document_of(
        RunReport,
        run,
        run=run.run_id,
        topic=str(topic),
        state=run.state.value,
        cause=run.cause or MANUAL,
        **progress,
        heartbeat_expired=not is_alive(run.owner, run.heartbeat_at, HEARTBEAT_MS, now) if running else None,
        error=redacted_error_text(run.error, wording=wording),
        compacted_ledger=run.compacted_ledger_id,
        horizon=None if run.horizon is None else str(run.horizon.message_id),
        horizon_offset=None if run.horizon is None else run.horizon.offset,
        attempt=run.attempt_id,
        holder=run.owner,
        policies=dict(run.policies),
        statistics=statistics,
    )


def mirror_document(
    mirror: MirrorWithPartitions, *, wording: AdviceWording | None = OPERATOR_WORDING
) -> dict[str, Any]:
    """Return a mirror of a Kafka topic, with its partitions, as a document (`MirrorReport`)."""
    from api.documents import MirrorPartitionReport, MirrorReport

    reported = [item.progress for item in mirror.partitions if item.progress is not None]
    partitions = [
        document_of(
            MirrorPartitionReport,
            item,
            partition=item.number,
            **{
                name: None if item.progress is None else getattr(item.progress, name)
                for name in ("next_offset", "end_offset", "lag", "records_per_second")
            },
        )
        for item in mirror.partitions
    ]
    return document_of(
        MirrorReport,
        mirror.record,
        topic=str(mirror.record.topic),
        state=mirror.record.state.value,
        error=redacted_error_text(mirror.record.error, wording=wording),
        lag=sum(item.lag for item in reported) if reported else None,
        records_per_second=sum(item.records_per_second for item in reported) if reported else None,
        options=dict(mirror.record.options),
        partitions=partitions,
    )


def compaction_control_document(item: TopicControl, *, wording: AdviceWording | None) -> dict[str, Any]:
    """Return the state of a topic's compaction, requested, paused or failing, as a document
    (`CompactionControlReport`)."""
    from api.documents import CompactionControlReport

    last_error = redacted_error_text(item.control.last_error, wording=wording) or ""
    return document_of(
        CompactionControlReport, item.control, topic=str(item.topic), state=item.cleaner_state, last_error=last_error
    )


def scheduler_document(scheduler: SchedulerState, now: int, wording: AdviceWording | None) -> dict[str, Any]:
    """Return the state of the compaction scheduler as a document (`SchedulerStatus`). `now`: milliseconds since
    1970."""
    from api.documents import LiveService, SchedulerStatus

    return document_of(
        SchedulerStatus,
        scheduler,
        services=[document_of(LiveService, item, leads=item.name == scheduler.leader) for item in scheduler.services],
        running=[run_document(name, run, now, wording=wording) for name, run in scheduler.running],
        **{
            name: [compaction_control_document(item, wording=wording) for item in getattr(scheduler, name)]
            for name in ("queue", "failing", "paused")
        },
    )


def statistics_document(run: RunRecord, *, wording: AdviceWording | None = OPERATOR_WORDING) -> dict[str, Any]:
    """Return the statistics of a compaction run by name. The fields of an error in them, if any, become one text."""
    statistics = dict(run.statistics)
    for name, error in ((TAIL_LEFT, run.skipped_tail_error), (TABLE_ERROR, run.iceberg_table_error)):
        for part in error.fields(name):
            statistics.pop(part, None)
        if error:
            statistics[name] = redacted_error_text(error, wording=wording)
    return statistics


def redacted_error_text(error: ErrorText, *, wording: AdviceWording | None = OPERATOR_WORDING) -> str | None:
    """Return an error as documents show it, without secrets; None: `error` is empty.

    `wording` None: for a reader who is no operator, without advice and URLs.
    """
    if not error:
        return None
    return redacted(error.worded(wording)) if wording is not None else redacted_excerpt(without_urls(error.summary))


def without_urls(text: str) -> str:
    """Return a text with `…` in place of each URL.

    An error that an older version stored does not mark which part is public.
    """
    return _LOCATION.sub("…", text)


def verify_document(report: Report, *, wording: AdviceWording | None = OPERATOR_WORDING) -> dict[str, Any]:
    """Return the report of a verification as a document (`VerifyReport`)."""
    from api.documents import VerifyReport

    return document_of(
        VerifyReport,
        report,
        topic=str(report.topic),
        checked={noun.replace(" ", "_"): count for noun, count in report.checked.items()},
        unchecked=[redacted(reason) for reason in report.unchecked],
        differences=[_difference_document(difference, wording) for difference in report.differences],
        counts={str(kind): count for kind, count in sorted(report.counts.items())},
    )


def _difference_document(difference: Difference, wording: AdviceWording | None) -> dict[str, Any]:
    """Return a difference that a verification has found as a document (`VerifyDifference`)."""
    from api.documents import VerifyDifference

    return document_of(
        VerifyDifference,
        difference,
        kind=str(difference.kind),
        what=redacted_error_text(ErrorText(difference.public or difference.what, difference.what), wording=wording),
        key=None if difference.key is None else difference.key.decode(errors="replace"),
        key_base64=None if difference.key is None else base64.b64encode(difference.key).decode(),
    )


def trim_document(trimmed: TrimResult, *, wording: AdviceWording | None = OPERATOR_WORDING) -> dict[str, Any]:
    """Return the result of a trim as a document (`TrimReport`): the ledgers that it removed, or would remove in a dry
    run."""
    from api.documents import TrimHold, TrimReport

    plan = trimmed.plan
    held = None
    if plan.hold is not None:
        mark = plan.hold.mark_delete
        held = document_of(
            TrimHold,
            plan.hold,
            cursor=plan.hold.name,
            mark_delete=None if mark is None else str(mark.message_id),
            mark_delete_offset=None if mark is None else mark.offset,
            ledgers=[_trimmed_ledger_document(candidate) for candidate in plan.held],
            start_offset=plan.requested_start,
        )
    return document_of(
        TrimReport,
        plan,
        topic=str(trimmed.topic.name),
        dry_run=not trimmed.trimmed,
        first_offset=trimmed.first_offset,
        ledgers=[_trimmed_ledger_document(candidate) for candidate in plan.candidates],
        held=held,
        tail_left=redacted_error_text(trimmed.tail_error, wording=wording),
    )


def _trimmed_ledger_document(candidate: TrimCandidate) -> dict[str, Any]:
    """Return a ledger that a trim removes as a document (`TrimmedLedger`)."""
    from api.documents import TrimmedLedger

    extent = candidate.extent
    return document_of(TrimmedLedger, extent, ledger=extent.ledger_id, why=candidate.reason.value)


def policies_document(resolved: PolicyResolution) -> dict[str, dict[str, Any]]:
    """Return the effective policies of a topic as a document: for each name its value, its origin, and the stored value
    if that cannot be read."""
    from storage.options.policies import POLICIES

    document: dict[str, dict[str, Any]] = {}
    for policy in POLICIES.values():
        value = policy.kind.to_json(getattr(resolved.policies, policy.attribute))
        document[policy.name] = {"value": value, "origin": resolved.origins[policy.name].value}
        if (unreadable := resolved.unreadable.get(policy.name)) is not None:
            document[policy.name]["unreadable"] = _unreadable_value_document(unreadable.stored, unreadable.origin)
    return document


def policy_settings_document(settings: Mapping[str, object], origin: PolicyOrigin) -> dict[str, dict[str, Any]]:
    """Return the policies that are set on one scope (a topic, a namespace) as a document: for each name its value and
    its origin; an unreadable value as it is stored."""
    from storage.options.policies import UnreadableStoredValue, to_json

    return {
        name: {"value": value.value, "origin": origin.value, "unreadable": _unreadable_value_document(value, origin)}
        if isinstance(value, UnreadableStoredValue)
        else {"value": to_json(name, value), "origin": origin.value}
        for name, value in settings.items()
    }


def _unreadable_value_document(stored: UnreadableStoredValue, origin: PolicyOrigin) -> dict[str, Any]:
    """Return a policy's stored value that cannot be read as a document, with its origin and the reason."""
    return {"value": stored.value, "origin": origin.value, "reason": stored.reason}
