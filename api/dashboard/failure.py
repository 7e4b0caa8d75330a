"""Failure of a topic's compaction for its page: what happened, the effect, and what to do, in order. Pure.

A compacted ledger whose manifest cannot be read makes runs fail, so the error of the last run and that of the manifest
are one failure. A lost part is known from the error of the run that read it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from storage.errors import CompactorError, DataLoss
from storage.model import TopicName

_OBJECT = re.compile(r"\bobject (\S+) does not exist in (\S*[^\s:;,.])")
_REMOVE_THE_CAUSE = ("Remove the cause that the error names.",)


@dataclass(frozen=True)
class Failure:
    """A failure. `what` and `effect`: sentences. `steps`: what to do, in order. `missing`: the missing object and its
    store, as far as the caller may know them. `error`: the text of the error, where `what` does not have it."""

    what: str
    effect: str
    steps: Sequence[str]
    missing: str = ""
    error: str = ""


def topic_failure(
    name: TopicName,
    last_error: str,
    ledger_id: int | None,
    problem: str,
    cause: CompactorError | None,
    *,
    is_raw_whole: bool,
) -> Failure | None:
    """Return the failure of a topic, or None.

    `last_error`: of the last run; empty: it succeeded. `ledger_id`: the compacted ledger, if any. `problem`: the text
    of `cause`, the error of its manifest; empty: it can be read. `is_raw_whole`: no raw message is trimmed.
    """
    if cause is not None:
        lost = _OBJECT.search(problem)
        reason = "its manifest is not in the object store" if lost else problem
        is_other = f"compacted ledger {ledger_id} " not in last_error
        return Failure(
            f"The compacted ledger {ledger_id} cannot be read: {reason}.",
            "Compactions and compacted reads fail. Raw reads, producers and subscriptions go on.",
            _steps(name, is_raw_whole) if isinstance(cause, DataLoss) else _REMOVE_THE_CAUSE,
            _object(lost),
            last_error if is_other else "",
        )
    if not last_error:
        return None
    lost = _OBJECT.search(last_error)
    if lost:
        return Failure(
            "The last compaction failed: an object of the topic is not in the object store.",
            "Compactions fail, and so do reads of that object. Producers and subscriptions go on.",
            _steps(name, is_raw_whole),
            _object(lost),
            last_error,
        )
    ledger = "Compacted reads go on with the last compacted ledger. " if ledger_id is not None else ""
    return Failure(
        f"The last compaction failed: {last_error}",
        f"{ledger}Raw reads, producers and subscriptions go on.",
        _REMOVE_THE_CAUSE,
    )


def _steps(name: TopicName, is_raw_whole: bool) -> Sequence[str]:
    """Return the steps after the loss of an object, the cheapest first."""
    force, loss = ("", "") if is_raw_whole else (" --force", " Values whose raw messages are trimmed are lost.")
    return (
        "Check that the setting store (COMPACTOR_STORE) names the object store of this database.",
        "If it does, restore the object from a backup (docs/operations.md).",
        f"If there is no backup, run: compactor cursor delete {name} __compaction{force}. Compacted reads then return "
        f"all raw messages until the next run, which reads them all.{loss}",
    )


def _object(lost: re.Match[str] | None) -> str:
    return "" if lost is None else f"{lost[1]} in {lost[2]}"
