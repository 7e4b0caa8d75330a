"""Text of an error for an operator of the machine, or the log: what happened, to what, and what to do."""

from __future__ import annotations

import errno

from storage.advice import AdviceKind, AdviceWording
from storage.errors import CompactorError, ErrorText, WrongStore

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_RESTORE = (
    "restore the file from a backup; or check what is left of it with `compactor log dump {ledger_id}`, and accept the "
    "loss of the rest with "
)
_RESTORE_COMPACTED = "check that COMPACTOR_STORE is the store of this database; restore the object from a backup; "
OPERATOR_WORDING: AdviceWording = {
    AdviceKind.LIST_TOPICS: "see `compactor topics list`",
    AdviceKind.USE_PARTITIONS: (
        "name one of its partitions, {topic}-partition-0 for example; `compactor topics list` lists them"
    ),
    AdviceKind.LIST_POLICIES: "{meant}`compactor topics policies --broker` lists all",
    AdviceKind.LIST_RUNS: "`compactor compactions list` shows those that do",
    AdviceKind.LIST_RUNS_AFTER_END: (
        "nothing was changed and nothing is left to do; `compactor compactions list` shows which runs continue"
    ),
    AdviceKind.WATCH_OR_CANCEL_RUN: (
        "wait for it to finish; `compactor compactions show {run_id}` shows its progress, "
        "`compactor compactions cancel {run_id}` ends it"
    ),
    AdviceKind.AWAIT_ABORT: "check with `compactor-admin topics compaction-status`, and try again when it has ended",
    AdviceKind.RESUME_COMPACTION: "resume it, as often as it was paused: `compactor-admin compactions resume`",
    AdviceKind.APPEND_THROUGH_OWNER: "append through it, with `compactor-admin topics produce`, or stop it first",
    AdviceKind.DELETE_THROUGH_OWNER: (
        "delete it there, with `compactor-admin topics delete` (a partitioned topic with `compactor-admin topics "
        "delete-partitioned-topic`), or force it"
    ),
    AdviceKind.FORCE_DELETION: "end {clients}, or delete with --force",
    AdviceKind.UPGRADE_SCHEMA: "run `compactor db upgrade`",
    AdviceKind.CHECK_STORE: "check endpoint, region and bucket, and run `compactor store check`",
    AdviceKind.REPLACE_STORE: "use a server that serves ranges; run `compactor store check`",
    AdviceKind.ACCEPT_LOSS_OPEN: _RESTORE + "`compactor topics roll {topic} --accept-loss`",
    AdviceKind.ACCEPT_LOSS_ROLLED: _RESTORE + "`compactor log seal {topic} --accept-loss`",
    AdviceKind.RESTORE_OBJECT: (
        "check that COMPACTOR_STORE is the store this was written to, else restore it (docs/operations.md)"
    ),
    AdviceKind.RESTORE_DAMAGED: "restore the object from a backup, or see docs/operations.md on damaged ledgers",
    AdviceKind.REBUILD_COMPACTED: (
        "raw reads still work (leave out --read-compacted); " + _RESTORE_COMPACTED + "without one, `compactor cursor "
        "delete {topic} __compaction`: nothing is lost, since the next run reads all raw messages again"
    ),
    AdviceKind.GIVE_UP_COMPACTED: (
        "raw reads still work (leave out --read-compacted); " + _RESTORE_COMPACTED + "only without one, `compactor "
        "cursor delete {topic} __compaction --force`: the values whose raw messages are trimmed are then lost"
    ),
    AdviceKind.RESTORE_RAW: (
        "restore the object from a backup; --force deletes the cursor all the same: then the compacted ledger "
        "{ledger_id} is lost, and no run can make it again without the object"
    ),
    AdviceKind.READ_RAW: (
        "raw reads still work (leave out --read-compacted); " + _RESTORE_COMPACTED + "without one, see "
        "docs/operations.md on damaged and lost objects"
    ),
    AdviceKind.READ_IN_BASE64: "read with --{field}-encoding base64",
    AdviceKind.TRIM_COMPACTED: "set cleanup.policy to compact,delete, or leave out --before to trim what is compacted",
}
"""Advice as commands, for an operator of the machine."""
ADMIN_WORDING: AdviceWording = {
    **OPERATOR_WORDING,
    AdviceKind.LIST_TOPICS: "see `compactor-admin topics list TENANT/NAMESPACE`",
    AdviceKind.USE_PARTITIONS: (
        "name one of its partitions, {topic}-partition-0 for example, or use the command for partitioned topics, such "
        "as partitioned-stats or delete-partitioned-topic"
    ),
    AdviceKind.LIST_POLICIES: "{meant}`compactor-admin policies get --broker` lists all",
    AdviceKind.LIST_RUNS: "`compactor-admin compactions list` shows those that do",
    AdviceKind.LIST_RUNS_AFTER_END: (
        "nothing was changed and nothing is left to do; `compactor-admin compactions list` shows which runs continue"
    ),
    AdviceKind.WATCH_OR_CANCEL_RUN: (
        "wait for it to finish; `compactor-admin compactions watch {run_id}` shows its progress, "
        "`compactor-admin compactions cancel {run_id}` ends it"
    ),
    AdviceKind.REBUILD_COMPACTED: (
        "raw reads still work (leave out --read-compacted); " + _RESTORE_COMPACTED + "without one, `compactor-admin "
        "topics unsubscribe {topic} -s __compaction`: nothing is lost, since the next run reads all raw messages again"
    ),
    AdviceKind.GIVE_UP_COMPACTED: (
        "raw reads still work (leave out --read-compacted); " + _RESTORE_COMPACTED + "only without one, "
        "`compactor-admin topics unsubscribe {topic} -s __compaction --force`: the values whose raw messages are "
        "trimmed are then lost"
    ),
}
"""Advice as commands of `compactor-admin`; advice without one is that for an operator of the machine."""
STEPS_ON_PAGE = "the topic's page says what to do"
_RAW_AND_STEPS = f"the raw messages can still be read; {STEPS_ON_PAGE}"
DASHBOARD_WORDING: AdviceWording = {
    AdviceKind.LIST_TOPICS: "the first page lists the topics",
    AdviceKind.USE_PARTITIONS: "open the page of one of its partitions, which the page of the topic lists",
    AdviceKind.LIST_POLICIES: "{meant}the page Policies of a topic lists all",
    AdviceKind.LIST_RUNS: "the pages of the topics list their runs",
    AdviceKind.LIST_RUNS_AFTER_END: "nothing was changed and nothing is left to do",
    AdviceKind.WATCH_OR_CANCEL_RUN: "wait for its end, or press “Cancel” on the topic's page",
    AdviceKind.AWAIT_ABORT: "try again when the topic is no longer running",
    AdviceKind.RESUME_COMPACTION: "press “Resume” on the topic's page, as often as it was paused",
    AdviceKind.APPEND_THROUGH_OWNER: "produce on the page of that service, or stop the process first",
    AdviceKind.DELETE_THROUGH_OWNER: "stop that process, or check “Also while clients are connected”",
    AdviceKind.FORCE_DELETION: "end {clients}, or check “Also while clients are connected”",
    AdviceKind.RESTORE_OBJECT: (
        "check that the setting store names the object store of this database, else restore the object from a backup"
    ),
    AdviceKind.RESTORE_DAMAGED: "restore the object from a backup",
    AdviceKind.REBUILD_COMPACTED: _RAW_AND_STEPS,
    AdviceKind.GIVE_UP_COMPACTED: _RAW_AND_STEPS,
    AdviceKind.READ_RAW: "the raw messages can still be read; restore the object from a backup",
    AdviceKind.READ_IN_BASE64: "it is no text in UTF-8",
    AdviceKind.TRIM_COMPACTED: "set cleanup.policy to compact,delete, or leave “Before” empty",
}
"""Advice for a person in front of a page: what to click. Advice without a page has its neutral wording."""
_RAW_OR_RESTORE = DASHBOARD_WORDING[AdviceKind.READ_RAW]
PAGE_WITH_STEPS_WORDING: AdviceWording = {
    **DASHBOARD_WORDING,
    AdviceKind.REBUILD_COMPACTED: _RAW_OR_RESTORE,
    AdviceKind.GIVE_UP_COMPACTED: _RAW_OR_RESTORE,
}
"""DASHBOARD_WORDING on a page that lists the steps after the loss of an object of the compacted ledger."""
WORDING_HEADER = "X-Compactor-Words"
"""A request header with the name of a program: advice in the answer then names its commands instead of routes."""
ADMIN = "compactor-admin"
"""The value of `WORDING_HEADER` for ADMIN_WORDING."""
KIND_HEADER = "X-Compactor-Error"
"""The header of an answer that names the kind of its error, where the status does not tell it: a broker's status is
that of another kind, or a proxy answers with the same one."""
CONFLICT = "Conflict"
"""The value of `KIND_HEADER` for a conflict."""
NOT_FOUND = "NotFound"
"""The value of `KIND_HEADER` for a missing object."""


def text_if_error(value: object) -> object:
    """Return a CompactorError or ErrorText as text, with advice as commands; return any other value unchanged."""
    if isinstance(value, ErrorText):
        return value.worded(OPERATOR_WORDING)
    return one_line(value) if isinstance(value, CompactorError) else value


def one_line(error: Exception) -> str:
    """Return an error as one line of text: what happened, and the command that helps. Secrets are not redacted."""
    if isinstance(error, WrongStore):
        adopt = "`compactor store adopt` shows which store and database belong together, and binds them"
        return f"{' '.join(error.message.split())}: check the URLs of store and database; {adopt}"
    if isinstance(error, CompactorError):
        return " ".join(error.worded(OPERATOR_WORDING).split())
    if isinstance(error, OSError) and error.strerror:
        failure = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        remedy = "free some space" if error.errno in _FULL else "check the disk and permissions"
        return f"{failure}: {remedy}, then try again"
    text = " ".join(str(error).split())[:300]
    return f"unexpected {type(error).__name__}: {text}: try again with --debug and report it"
