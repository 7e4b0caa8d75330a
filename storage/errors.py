"""The error tree. Kinds are chosen by one question: would the caller act differently?

    CompactorError
    ├── InvalidInput          the request or its data is wrong; change it before another try
    │   ├── InvalidTopicName
    │   ├── InvalidMessageId
    │   ├── InvalidRecord     a line, row or file of an import; a message or entry that is appended
    │   │   └── ChecksumMismatch  of which the bytes changed on their way
    │   ├── OffsetOutOfRange  the requested position is before the topic's first message, or after its end
    │   └── CompactionCursorProtected  __compaction is moved by compactions alone
    ├── NotFound              a named topic, run or other record does not exist
    │   ├── TopicNotFound
    │   └── CursorNotFound
    ├── Conflict              another caller was first; check, then try again
    │   ├── CursorExists      the topic has a cursor of that name
    │   ├── LeaseHeld         another writer has the topic
    │   ├── CompactionRunning a run of the topic is under way
    │   ├── CompactionPaused  compaction of the topic is paused
    │   ├── ObjectExists      create-if-absent lost
    │   ├── Fenced            our lease, epoch or generation is no longer the topic's
    │   └── StateMayBeStale   a reader may have missed deletions; read again from earliest
    ├── Misconfigured         settings, credentials, bucket, schema or Java; an operator must act
    │   ├── SegmentNotLocal  messages are in a log directory that this process does not have
    │   └── WrongStore        the object store is not the one that the database uses
    ├── Unavailable           store, database or disk cannot serve now; the same call may work later
    │   └── StorageFull
    └── DataLoss              an object that must exist is missing or damaged
        ├── ObjectMissing
        └── ObjectDamaged

Every error states what happened, to which topic, ledger or object, and what to do: `message` is the first two in one
sentence, `remedy` the third. Faces print both on one line and never a traceback.

Errors of the last three kinds are for operators: they name hosts, paths, users and buckets. Others get `public_text`,
by the error's kind. `ErrorText` keeps both texts of an error, for example in the row of a run.
"""

from __future__ import annotations

import copy
import copyreg
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from storage.advice import NEUTRAL, Advice, AdviceWording


class CompactorError(Exception):
    """An error that a user can read.

    `message`: what happened, and to what. `remedy`: what to do about it. `advice`: the remedy as data, if doors word
    it; None: they do not. `public`: the message for callers that are not operators, without host, path, user, bucket or
    text of another program; empty: the text of the kind.
    """

    def __init__(self, message: str, remedy: str | Advice, *, is_public: bool = False, public: str = "") -> None:
        """Create an error. `remedy`: an Advice if doors have their own words for it.

        `is_public`: `message` is itself public.
        """
        super().__init__(message, remedy)
        self.message = message
        self.advice = remedy if isinstance(remedy, Advice) else None
        self.remedy = remedy if isinstance(remedy, str) else remedy.worded(NEUTRAL)
        self.public = message if is_public else public

    def __str__(self) -> str:
        return self.worded(NEUTRAL)

    def copy(self) -> Self:
        """Return a copy of this error, which is its cause, for another thread to raise with its own traceback."""
        error = copy.copy(self)
        error.__cause__ = self
        return error

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle the attributes: a kind may have a constructor of its own."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]

    def worded(self, wording: AdviceWording) -> str:
        """Return message and remedy as one line; advice is in `wording`."""
        return f"{self.message}: {self.worded_remedy(wording)}"

    def worded_remedy(self, wording: AdviceWording) -> str:
        """Return the remedy; advice is in `wording`."""
        return self.remedy if self.advice is None else self.advice.worded(wording)


class InvalidInput(CompactorError):
    """The request or its data is wrong; change it before another try."""


class InvalidTopicName(InvalidInput):
    """A topic name that Pulsar's rules, or ours, do not allow."""


class InvalidMessageId(InvalidInput):
    """A text that is not a message id."""


class InvalidRecord(InvalidInput):
    """A line, row or file of an import, or an appended message, is invalid; nothing of it is stored."""


class ChecksumMismatch(InvalidRecord):
    """A message whose bytes changed on their way here: it may be sent again."""


class OffsetOutOfRange(InvalidInput):
    """A read begins after the topic's end, or before its first message with a reader that refuses a reset (L3)."""


class CompactionCursorProtected(InvalidInput):
    """A caller other than a compaction acknowledges on the cursor `__compaction`, or resets it (A4).

    `verb`: the refused operation, "be reset or skipped" or "acknowledge".
    """

    def __init__(self, topic: object, verb: str = "be reset or skipped") -> None:
        deletion = "" if verb == "acknowledge" else ", or delete the cursor to give up the compacted ledger"
        super().__init__(
            f"the cursor __compaction of {topic} cannot {verb}: it is the compaction horizon",
            f"compact the topic to move it on{deletion}",
        )


class NotFound(CompactorError):
    """A named topic, run or other record does not exist."""


class TopicNotFound(NotFound):
    """The topic does not exist."""


class CursorNotFound(NotFound):
    """A topic has no cursor of a name. `topic`, `cursor`: the names."""

    def __init__(self, topic: object, cursor: str) -> None:
        super().__init__(f"the topic {topic} has no cursor {cursor!r}", "create it first, or check its name")
        self.topic = topic
        self.cursor = cursor


class Conflict(CompactorError):
    """Another caller was first; check, then try again."""


class CursorExists(Conflict):
    """A topic has a cursor of that name already."""

    def __init__(self, topic: object, cursor: str) -> None:
        super().__init__(
            f"the topic {topic} has a cursor {cursor!r} already", "reset it to move it, or choose another name"
        )


class LeaseHeld(Conflict):
    """Another writer holds the topic's lease; the message names it."""


class CompactionRunning(Conflict):
    """A compaction of the topic is under way; the message names the run."""


class CompactionPaused(Conflict):
    """Compaction of the topic is paused; the message states how many times, since each pause needs a resume (S5)."""


class ObjectExists(Conflict):
    """An object of that name exists already: create-if-absent lost."""


class Fenced(Conflict):
    """The caller's lease, epoch or generation is no longer the topic's: it must stop and publish nothing."""


class StateMayBeStale(Conflict):
    """A reader lost the generation that it read, and newer ones no longer hold deletions that it has not seen (R7)."""


class Misconfigured(CompactorError):
    """Settings, credentials, bucket, schema or Java are wrong; an operator must act."""


class SegmentNotLocal(Misconfigured):
    """Messages that are not sealed yet are in a log directory that this process does not have: on another machine,
    which may be dead. What is sealed is read without them."""


class WrongStore(Misconfigured):
    """The object store is not the one that the database uses: nothing is written to it, or deleted there."""


class Unavailable(CompactorError):
    """Store, database or disk cannot serve now; the same call may work later, after `retry_after_seconds`."""

    retry_after_seconds = 1


class StorageFull(Unavailable):
    """No space is left where an object, a ledger or the database should be written."""

    retry_after_seconds = 10


class DataLoss(CompactorError):
    """An object that a row or manifest names cannot be trusted or found."""


class ObjectMissing(DataLoss):
    """An object that a row or manifest names does not exist."""


class ObjectDamaged(DataLoss):
    """An object is shorter than, or not the bytes that, its row or manifest names."""


_FOR_OPERATORS: Mapping[type[CompactorError], tuple[str, str]] = {
    StorageFull: ("has no space left", "try again when an operator has freed some"),
    Unavailable: ("does not answer now", "try again"),
    Misconfigured: ("is not as it must be, an operator must act", ""),
    DataLoss: ("is damaged", "an operator must restore what is missing"),
}
"""What an error of a kind means, and what others than operators can do. The first kind that fits counts."""


def failure_phrase(error: BaseException) -> str:
    """Return how a component failed, as a predicate, by the error's kind: `has no space left`; else `fails`."""
    return next((meant for kind, (meant, _) in _FOR_OPERATORS.items() if isinstance(error, kind)), "fails")


def public_text(error: BaseException, wording: AdviceWording = NEUTRAL) -> str:
    """Return the text of any error for a caller that may not know hosts, paths, users and buckets.

    Advice is in `wording`.
    """
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if not isinstance(error, CompactorError):
        return f"unexpected {type(error).__name__}: see the log of the service"
    if isinstance(error, SegmentNotLocal):  # it names the directory by its uid
        return f"{error.message}: an operator must start a service where that is"
    remedy = next((todo for kind, (_, todo) in _FOR_OPERATORS.items() if isinstance(error, kind)), None)
    if error.public:
        return f"{error.public}: {error.worded_remedy(wording)}"
    if remedy is None:
        return error.worded(wording)
    what = f"the database, the object store, a disk or Spark {failure_phrase(error)}"
    return f"{what}: {remedy}; see the log of the service" if remedy else f"{what}: see the log of the service"


@dataclass(frozen=True)
class ErrorText:
    """The text of an error that is kept for later. It is falsy if there is no error.

    `summary`: for every caller. `detail`: for operators; empty: the same as `summary`. `advice`: the part of both texts
    that doors word; both contain its neutral wording. None: there is none.
    """

    summary: str = ""
    detail: str = ""
    advice: Advice | None = None

    @classmethod
    def from_error(cls, error: BaseException) -> Self:
        """Return the text of an exception, to be stored: its summary, its detail and its advice."""
        summary, detail = public_text(error), str(error)
        return cls(summary, "" if detail == summary else detail, getattr(error, "advice", None))

    @classmethod
    def joined(cls, texts: Sequence[ErrorText]) -> Self:
        """Return several texts as one, separated by semicolons. Only the first one's advice is kept as data."""
        summary, detail = "; ".join(text.summary for text in texts), "; ".join(map(str, texts))
        return cls(summary, detail, texts[0].advice if texts else None)

    @classmethod
    def from_fields(cls, name: str, fields: Mapping[Any, Any]) -> Self:
        """Return the text whose parts are in the columns or JSON fields `name`, `name_detail` and `name_advice`.

        Fields that are missing are empty.
        """
        advice = Advice.from_json(fields.get(f"{name}_advice"))
        return cls(fields.get(name, ""), fields.get(f"{name}_detail", ""), advice)

    def fields(self, name: str) -> dict[str, Any]:
        """Return the columns or JSON fields from which `from_fields` reads the text, by field name."""
        advice = None if self.advice is None else self.advice.to_json()
        return {
            name: _escape_unstorable(self.summary),
            f"{name}_detail": _escape_unstorable(self.detail),
            f"{name}_advice": advice,
        }

    def __bool__(self) -> bool:
        return bool(self.summary)

    def __str__(self) -> str:
        return self.worded(NEUTRAL)

    def with_prefix(self, prefix: str) -> Self:
        """Return the text with `prefix` before the summary, and before the detail if there is one."""
        return replace(self, summary=prefix + self.summary, detail=self.detail and prefix + self.detail)

    def worded(self, wording: AdviceWording) -> str:
        """Return the text for operators; advice is in `wording`."""
        text = self.detail or self.summary
        return text if self.advice is None else text.replace(self.advice.worded(NEUTRAL), self.advice.worded(wording))


NO_ERROR = ErrorText()


def _escape_unstorable(text: str) -> str:
    """Return a text with NUL and half surrogates escaped, since not every database stores them."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")
