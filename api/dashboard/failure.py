"""Failure of a topic's compaction for its page: what happened, the effect, and what to do, in order. Pure.

A compacted ledger whose manifest cannot be read makes runs fail, so the error of the last run and that of the manifest
are one failure. The manifest is read for each page. Another object of the topic that is lost is known from the advice
of the last run's error, and the caller checks whether it is in the store again: then the failure is history.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from storage.advice import LOST_COMPACTED, LOST_OBJECT, MISSING, AdviceKind
from storage.errors import CompactorError, DataLoss, ErrorText
from storage.ledger import names
from storage.ledger.names import ObjectKind
from storage.model import TopicName

_PRODUCERS = "Producers and subscriptions go on."
_REMOVE_THE_CAUSE = ("Remove the cause that the error names.",)
_CHECK_STORE = "Check that the setting store (COMPACTOR_STORE) names the object store of this database."
_NOUNS: Mapping[ObjectKind | None, str] = {
    ObjectKind.MANIFEST: "its manifest",
    ObjectKind.PART: "one of its parts",
    ObjectKind.BITMAPS: "its list of superseded rows",
    ObjectKind.INDEX: "its key index",
    ObjectKind.CHUNKS: "its table of chunked messages",
}
_RAW_NOUNS: Mapping[ObjectKind | None, str] = {
    ObjectKind.LEDGER_ROWS: "an object with raw messages",
    ObjectKind.LEDGER_INDEX: "the key index of a raw ledger",
}
_ALL_COMPACTED_READS_FAIL = "Compactions and compacted reads fail. Raw reads, producers and subscriptions go on."
_ONLY_FOR_KEYS = (ObjectKind.INDEX, ObjectKind.CHUNKS)
_RESTORE = "If it does, restore the object from a backup (docs/operations.md)."


@dataclass(frozen=True)
class LostObject:
    """An object that is missing, or damaged. `name` and `store` empty: not known. `ledger_id`: the compacted ledger
    that needs it; None: raw messages need it, or it is not known what does."""

    name: str
    store: str
    is_missing: bool
    ledger_id: int | None

    @property
    def kind(self) -> ObjectKind | None:
        """Return the kind of the lost object by its name; None: it is not known."""
        parsed = names.parse(self.name)
        return None if parsed is None else parsed.kind

    @property
    def state_text(self) -> str:
        """Return a predicate that says whether the object is missing or damaged."""
        return "is not in the object store" if self.is_missing else "is damaged"

    def breaks_compacted_reads(self, ledger_id: int | None) -> bool:
        """Return whether compacted reads of the compacted ledger `ledger_id` need the lost object."""
        return ledger_id is not None and self.ledger_id == ledger_id and self.kind not in _ONLY_FOR_KEYS


@dataclass(frozen=True)
class Failure:
    """A failure of a topic's compactions or reads, as a page describes it. `what` and `effect`: sentences. `steps`:
    what to do, in order; one with a command is HTML. `lost`: the object, of which only operators may know the name;
    None: there is none. `error`: the text of the error, where `what` does not have it. `is_over`: its cause has gone
    since. `is_partial`: the compacted ledger can be read where the object is not needed."""

    what: str
    effect: str
    steps: Sequence[str]
    lost: LostObject | None = None
    error: str = ""
    is_over: bool = False
    is_partial: bool = False


def lost_object(error: CompactorError | ErrorText | None) -> LostObject | None:
    """Return the object that an error names as lost; None: it names none."""
    advice = None if error is None else error.advice
    if advice is None or advice.kind not in LOST_OBJECT | LOST_COMPACTED:
        return None
    values = {name: str(value) for name, value in advice.arguments.items()}
    ledger_id = int(values["ledger_id"]) if advice.kind in LOST_COMPACTED else None
    return LostObject(values.get("object", ""), values.get("store", ""), values.get("state") == MISSING, ledger_id)


def topic_failure(
    name: TopicName,
    last_error: ErrorText,
    error_text: str,
    ledger_id: int | None,
    manifest_error: CompactorError | None,
    manifest_error_text: str = "",
    *,
    is_raw_whole: bool,
    is_restored: bool = False,
    is_truncated: bool = False,
) -> Failure | None:
    """Return the failure that a topic's page describes, from its last run and its manifest; None: there is none.

    `last_error`: of the last run; falsy: it succeeded. `error_text`, `manifest_error_text`: the texts of it and of
    `manifest_error`, as far as the caller may know them. `ledger_id`: the compacted ledger, if any. `manifest_error`:
    of its manifest; None: it can be read. `is_raw_whole`: no raw message is trimmed. `is_restored`: the object that
    `last_error` names is in the store again. `is_truncated`: it is there, but shorter than it must be.
    """
    lost = lost_object(last_error)
    if lost is not None and is_truncated:
        lost = replace(lost, is_missing=False)
    if manifest_error is not None:
        return _manifest_failure(name, lost, error_text, ledger_id, manifest_error, manifest_error_text, is_raw_whole)
    if not last_error:
        return None
    if lost is None:
        ledger = "Compacted reads go on with the last compacted ledger. " if ledger_id is not None else ""
        reads = f"{ledger}Raw reads, producers and subscriptions go on."
        is_loss = _is_loss_without_object_name(last_error)
        return Failure(f"The last compaction failed: {error_text}", _PRODUCERS if is_loss else reads, _REMOVE_THE_CAUSE)
    if is_restored or lost.ledger_id not in (None, ledger_id):
        since = "is in the object store again" if is_restored else "is not needed any more"
        return Failure(
            f"The last compaction failed, because it could not read an object that {since}.",
            "The next compaction reads that object again." if is_restored else "No read needs that object.",
            (),
            lost,
            error_text,
            is_over=True,
        )
    if lost.ledger_id is None:
        noun = _RAW_NOUNS.get(lost.kind)
        return Failure(
            f"The last compaction failed: {noun or 'an object that the error describes'} {lost.state_text}.",
            "Compactions fail, and so do reads of that object. Producers and subscriptions after it go on.",
            (_CHECK_STORE, _RESTORE) if noun else _recovery_steps(name, is_raw_whole, may_be_raw=True),
            lost,
            error_text,
        )
    reads = (
        "compacted reads that need it" if lost.breaks_compacted_reads(ledger_id) else "look-ups of keys that need it"
    )
    return Failure(
        _partial_loss_sentence(lost),
        f"Compactions fail, and so do {reads}. Raw reads, producers and subscriptions go on.",
        _recovery_steps(name, is_raw_whole),
        lost,
        error_text,
        is_partial=True,
    )


def failure_of_read(error: CompactorError | None) -> Failure | None:
    """Return the failure of a read that needs a lost object; None: another error, or none, or the lost object is not
    known."""
    lost = lost_object(error)
    if lost is None or error is None or error.advice is None:
        return None
    if lost.ledger_id is None:
        return _raw_read_failure(lost)
    if lost.kind is ObjectKind.MANIFEST:
        what = f"The compacted ledger {lost.ledger_id} cannot be read: its manifest {lost.state_text}."
        effect = _ALL_COMPACTED_READS_FAIL
    else:
        what = _partial_loss_sentence(lost)
        reads = "compacted reads" if lost.breaks_compacted_reads(lost.ledger_id) else "look-ups of keys"
        effect = (
            f"The {reads} that need it fail, and so does a compaction that reads it. Raw reads, producers and "
            "subscriptions go on."
        )
    name = TopicName.parse(str(error.advice.arguments["topic"]))
    is_raw_whole = error.advice.kind is AdviceKind.REBUILD_COMPACTED
    return Failure(
        what, effect, _recovery_steps(name, is_raw_whole), lost, is_partial=lost.kind is not ObjectKind.MANIFEST
    )


def _raw_read_failure(lost: LostObject) -> Failure | None:
    """Return the failure of a read that needs a lost object of a raw ledger; None: it is no object of one."""
    parsed = names.parse(lost.name)
    if parsed is None or parsed.kind not in _RAW_NOUNS:
        return None
    is_index = parsed.kind is ObjectKind.LEDGER_INDEX
    reads = "look-ups of keys that need it" if is_index else "reads of its messages"
    ledger = "A raw ledger that Spark wrote" if parsed.is_of_task else f"The raw ledger {parsed.number}"
    return Failure(
        f"{ledger} cannot be read: {'its key index' if is_index else 'the object with its rows'} {lost.state_text}.",
        f"{reads.capitalize()} fail, and so does a compaction that reads it. Reads of other messages and producers go "
        "on.",
        (_CHECK_STORE, _RESTORE),
        lost,
    )


def _manifest_failure(
    name: TopicName,
    lost_by_run: LostObject | None,
    error_text: str,
    ledger_id: int | None,
    error: CompactorError,
    reason: str,
    is_raw_whole: bool,
) -> Failure:
    lost = lost_object(error)
    is_same = lost is not None and lost_by_run is not None and lost_by_run.ledger_id == ledger_id
    return Failure(
        f"The compacted ledger {ledger_id} cannot be read: {f'its manifest {lost.state_text}' if lost else reason}.",
        _ALL_COMPACTED_READS_FAIL,
        _recovery_steps(name, is_raw_whole) if isinstance(error, DataLoss) else _REMOVE_THE_CAUSE,
        lost,
        "" if is_same else error_text,
    )


def _partial_loss_sentence(lost: LostObject) -> str:
    """Return the sentence that a compacted ledger cannot be read in full, since it lacks an object other than its
    manifest."""
    noun = _NOUNS.get(lost.kind, "an object")
    return f"The compacted ledger {lost.ledger_id} cannot be read in full: {noun} {lost.state_text}."


def _is_loss_without_object_name(error: ErrorText) -> bool:
    """Return whether an error reports a lost object without its name, as older versions stored it."""
    if error.advice is None:
        return any(remedy in str(error) for remedy in ("restore the ", "else restore it"))
    return error.advice.kind is AdviceKind.READ_RAW


def _recovery_steps(name: TopicName, is_raw_whole: bool, *, may_be_raw: bool = False) -> Sequence[str]:
    """Return the steps after the loss of an object of a compacted ledger, the cheapest first. `may_be_raw`: it may also
    be an object of raw messages."""
    condition = " and the compacted ledger needs the object" if may_be_raw else ""
    force, loss = ("", "") if is_raw_whole else (" --force", " Values whose raw messages are trimmed are lost.")
    return (
        _CHECK_STORE,
        _RESTORE,
        Markup(
            "If there is no backup{}, run <code>compactor cursor delete {} __compaction{}</code> in a shell. Compacted "
            "reads then return all raw messages until the next run, which reads them all.{}"
        ).format(condition, name, force, loss),
    )
