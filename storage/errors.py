"""The error tree. Kinds are chosen by one question: would the caller act differently?

    CompactorError
    ├── InvalidInput          the request or its data is wrong; ask differently
    │   ├── InvalidTopicName
    │   ├── InvalidMessageId
    │   ├── InvalidRecord     a line, row or file of an import; a message or entry that is appended
    │   └── OffsetOutOfRange  the asked position lies before the topic's first message
    ├── NotFound              what was named does not exist
    │   └── TopicNotFound
    ├── Conflict              somebody else was first; look, then try again
    │   ├── LeaseHeld         another writer has the topic
    │   ├── CompactionRunning a run of the topic is under way
    │   ├── CompactionPaused  compaction of the topic is paused
    │   ├── ObjectExists      create-if-absent lost
    │   ├── Fenced            our lease, epoch or generation is no longer the topic's
    │   └── StateMayBeStale   a reader may have missed deletions; read again from earliest
    ├── Misconfigured         settings, credentials, bucket, schema or Java; an operator must act
    │   ├── SegmentElsewhere  messages lie in a log directory that this process does not have
    │   └── OtherStore        the object store is not the one that the database uses
    ├── Unavailable           store, database or disk cannot serve now; the same call may work later
    │   └── StorageFull
    └── DataLoss              an object that must exist is missing or damaged
        ├── ObjectMissing
        └── ObjectDamaged

Every error says what happened, to which topic, ledger or object, and what to do: `message` is the first two in one
sentence, `remedy` the third. Faces print both on one line and never a traceback.
"""

from __future__ import annotations


class CompactorError(Exception):
    """Something that a user can be told about.

    `message`: what happened, and to what. `remedy`: what to do about it.
    """

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message, remedy)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}: {self.remedy}"


class InvalidInput(CompactorError):
    """The request or its data is wrong; ask differently."""


class InvalidTopicName(InvalidInput):
    """A topic name that Pulsar's rules, or ours, do not allow."""


class InvalidMessageId(InvalidInput):
    """A text that is not a message id."""


class InvalidRecord(InvalidInput):
    """A line, row or file of an import, or a message that is appended, that cannot be taken; nothing of it is kept."""


class OffsetOutOfRange(InvalidInput):
    """A read asks for what lies before the topic's first message, and shall not be reset (L3)."""


class NotFound(CompactorError):
    """What was named does not exist."""


class TopicNotFound(NotFound):
    """The topic does not exist."""


class Conflict(CompactorError):
    """Somebody else was first; look, then try again."""


class LeaseHeld(Conflict):
    """Another writer holds the topic's lease; the message names it."""


class CompactionRunning(Conflict):
    """A compaction of the topic is under way; the message names the run."""


class CompactionPaused(Conflict):
    """Compaction of the topic is paused; the message says how often, since each pause wants a resume (S5)."""


class ObjectExists(Conflict):
    """An object of that name exists already: create-if-absent lost."""


class Fenced(Conflict):
    """The caller's lease, epoch or generation is no longer the topic's: it must stop and publish nothing."""


class StateMayBeStale(Conflict):
    """A reader lost the generation that it read, and newer ones no longer hold deletions that it has not seen (R7)."""


class Misconfigured(CompactorError):
    """Settings, credentials, bucket, schema or Java are wrong; an operator must act."""


class SegmentElsewhere(Misconfigured):
    """Messages that are not sealed yet lie in a log directory that this process does not have: on another machine,
    which may be dead. What is sealed is read without them."""


class OtherStore(Misconfigured):
    """The object store is not the one that the database uses: nothing is written to it, or deleted there."""


class Unavailable(CompactorError):
    """Store, database or disk cannot serve now; the same call may work later."""


class StorageFull(Unavailable):
    """No space is left where an object, a ledger or the database should be written."""


class DataLoss(CompactorError):
    """An object that a row or manifest names cannot be trusted or found."""


class ObjectMissing(DataLoss):
    """An object that a row or manifest names does not exist."""


class ObjectDamaged(DataLoss):
    """An object is shorter than, or not the bytes that, its row or manifest says."""
