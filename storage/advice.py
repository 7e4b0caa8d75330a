"""Advice: what a caller can do about an error, as data.

Each door (command line, REST, dashboard) has its own wording of a kind of advice, with its own commands or links.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from string import Formatter
from typing import Any, Self


class AdviceKind(StrEnum):
    """A kind of advice. Its value is the neutral wording, with the advice's arguments as `{fields}`.

    The neutral wording names no command or link. Stored errors hold the kind's name: a kind may get another wording,
    but keeps its name and its fields.
    """

    LIST_TOPICS = "see the list of topics"
    USE_PARTITIONS = "use its partitions"
    LIST_POLICIES = "{meant}see the list of policies"
    LIST_RUNS = "the list of compactions shows those that do"
    LIST_RUNS_AFTER_END = "nothing was changed and nothing is left to do; the list of compactions shows which continue"
    WATCH_OR_CANCEL_RUN = "wait for it to finish, or cancel run {run_id}"
    AWAIT_ABORT = "check the status of its compaction, and try again when it has ended"
    RESUME_COMPACTION = "resume it, as often as it was paused"
    APPEND_THROUGH_OWNER = "append through it, or stop it first"
    DELETE_THROUGH_OWNER = "delete it there, or force it"
    FORCE_DELETION = "end {clients}, or delete with force"
    UPGRADE_SCHEMA = "upgrade the database's schema"
    CHECK_STORE = "check endpoint, region and bucket, and check the store"
    REPLACE_STORE = "use a server that serves ranges; check the store"
    ACCEPT_LOSS_OPEN = (
        "restore the file from a backup; or check what the dump of segment {ledger_id} still has, and roll {topic} "
        "with the loss of the rest accepted"
    )
    ACCEPT_LOSS_ROLLED = (
        "restore the file from a backup; or check what the dump of segment {ledger_id} still has, and seal {topic} "
        "with the loss of the rest accepted"
    )
    RESTORE_OBJECT = "check that the setting store names the store this was written to, else restore the object"
    RESTORE_DAMAGED = "restore the object from a backup, or see docs/operations.md on damaged ledgers"
    REBUILD_COMPACTED = (
        "raw reads still work; restore the object from a backup; without one, delete the cursor __compaction of "
        "{topic}: nothing is lost, since the next run reads all raw messages again"
    )
    GIVE_UP_COMPACTED = (
        "raw reads still work; restore the object from a backup; only without one, delete the cursor __compaction of "
        "{topic} by force: the values whose raw messages are trimmed are then lost"
    )
    RESTORE_RAW = (
        "restore the object from a backup; a forced deletion loses the compacted ledger {ledger_id}, and no run can "
        "make it again without the object"
    )
    READ_RAW = (
        "raw reads still work; restore the object, or delete the cursor __compaction to clear the compacted ledger and "
        "compact again from raw"
    )
    """Only in errors that versions before REBUILD_COMPACTED and GIVE_UP_COMPACTED have stored."""
    READ_IN_BASE64 = "request the {field} in base64"
    TRIM_COMPACTED = "set cleanup.policy to compact,delete, or trim what is compacted, without an offset"


LOST_COMPACTED = frozenset({AdviceKind.REBUILD_COMPACTED, AdviceKind.GIVE_UP_COMPACTED})
"""Advice about a compacted ledger that cannot be read, with raw whole or trimmed. Arguments: those of LOST_OBJECT, and
`topic` and `ledger_id`, of the compacted ledger."""
LOST_OBJECT = frozenset({AdviceKind.RESTORE_OBJECT, AdviceKind.RESTORE_DAMAGED})
"""Advice about an object that is missing or damaged. Arguments: `object`, its name; `store`, its store's URL; both are
empty where they are not known; `state`: MISSING or DAMAGED."""
MISSING, DAMAGED = "missing", "damaged"
AdviceWording = Mapping[AdviceKind, str]
"""The wording of each kind of advice at one door. A kind that is missing has its neutral wording there."""
NEUTRAL: AdviceWording = {}
"""The neutral wording of every kind."""


@dataclass(frozen=True)
class Advice:
    """Advice about an error: its kind, and the values of the fields in its wording (`arguments`), by name."""

    kind: AdviceKind
    arguments: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: Any) -> Self | None:
        """Return the advice that `to_json` encoded.

        Return None if `value` is None or empty, if this version does not know its kind, or if a field of its wording is
        missing.
        """
        kind = AdviceKind.__members__.get(value["kind"]) if value else None
        if kind is None:
            return None
        fields = {name for _, name, _, _ in Formatter().parse(kind.value) if name}
        return cls(kind, value["arguments"]) if fields <= value["arguments"].keys() else None

    def to_json(self) -> dict[str, object]:
        """Return the advice as a JSON object."""
        return {"kind": self.kind.name, "arguments": {name: str(value) for name, value in self.arguments.items()}}

    def worded(self, wording: AdviceWording) -> str:
        """Return the advice in a door's wording, or in the neutral one if `wording` lacks its kind."""
        return wording.get(self.kind, self.kind.value).format(**self.arguments)


def missing_object_advice(name: str, store: str) -> Advice:
    """Return the advice about an object that is missing in its store. `store`: the URL of the store."""
    return Advice(AdviceKind.RESTORE_OBJECT, {"object": name, "store": store, "state": MISSING})


def truncated_object_advice(name: str, store: str) -> Advice:
    """Return the advice about a stored object with fewer bytes than it must have. `store`: the URL of its store."""
    return Advice(AdviceKind.RESTORE_OBJECT, {"object": name, "store": store, "state": DAMAGED})


def damaged_object_advice(name: str = "") -> Advice:
    """Return the advice about an object whose bytes are damaged. `name`: the object's; empty: not known."""
    return Advice(AdviceKind.RESTORE_DAMAGED, {"object": name, "store": "", "state": DAMAGED})
