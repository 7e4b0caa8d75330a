"""Failpoints: the named points at which work may be cut off, shared by the code and its crash tests.

Code calls `failpoint(Failpoint.X)` right after the event that the table describes for X. Nothing listens in production,
and the call reads one variable; a test sets `listeners` and simulates a crash, a fault or a racing process. No
setting and no environment variable turns a failpoint on.

tests/faults kills a process at each of these points, on each store that reaches it (`Failpoint.store`), and checks the
invariants afterwards; a point that no scenario reaches fails a test. So a new point is a line here, a call in the code,
and a scenario that reaches it.

Must not know: the work that contains the points. A listener may raise, by which tests inject faults; calls may come
from any thread, and from many at once.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

_LOCAL = "file"
_S3 = "s3"


class Failpoint(Enum):
    """A point in the code: the event before it and, if only one kind of store reaches it, that store's URL scheme."""

    IMPORT_LEASE_TAKEN = "The import holds the topic's writer lease; nothing else of it exists."
    IMPORT_ATTEMPT_BEGUN = "The import's attempt is a row, before its first object."
    IMPORT_ROWS_BEGUN = "A ledger's rows object is open for writing; no byte of it is in the store."
    IMPORT_ROWS_WRITTEN = "A ledger's rows object exists, its key index does not."
    IMPORT_INDEX_WRITTEN = "A ledger's rows and key index exist, and no row names them."
    IMPORT_BEFORE_COMMIT = "All objects of the import exist; the transaction has not begun."
    IMPORT_INSIDE_COMMIT = "The import's ledgers are inserted, the transaction is not committed."
    IMPORT_AFTER_COMMIT = "The import is committed and not yet reported."
    IMPORT_ATTEMPT_FINISHED = "The import's attempt is finished, its lease is still held."
    IMPORT_LEASE_RELEASED = "The import's lease is released."

    SEGMENT_FILE_CREATED = "A segment's file exists with its header, durably; no row names it."
    SEGMENT_OPENED = "A segment's row is committed and its file exists."
    ENTRIES_WRITTEN = "Entries are in a segment's file, not flushed and not acknowledged."
    ENTRIES_FLUSHED = "Entries are flushed and not yet acknowledged."
    ROLL_FLUSHED = "A segment is flushed to its end; its row's state is open."
    ROLL_INSIDE_COMMIT = "A segment's row is changed to rolled, the transaction is not committed."
    SEGMENT_ROLLED = "A segment's row has the state rolled."
    SEAL_CLAIMED = "A sealer has claimed a rolled segment, and its attempt is a row."
    SEAL_INSIDE_COMMIT = "A segment is changed to sealed and its ledger inserted, the transaction is not committed."
    SEGMENT_SEALED = "The ledger replaces its segment; the segment's file still exists."
    SEGMENT_FILE_REMOVED = "The file of a sealed segment is removed, its row exists."
    SEGMENT_FORGOTTEN = "File and row of a sealed segment are removed."
    TRIM_INSIDE_COMMIT = "Ledgers are marked as deleted and the start offset is moved, not committed."
    TRIM_MARKED = "Ledgers are marked as deleted; their objects exist."
    TRIM_FORGOTTEN = "The rows of trimmed ledgers are deleted, their objects exist."

    TRUNCATE_INSIDE_COMMIT = "A topic's ledgers are marked as deleted and its horizon is cleared, not committed."
    TRUNCATED = "A topic is empty; the objects and files of its messages exist."

    TOPIC_DELETE_INSIDE_COMMIT = "All rows of a topic are deleted, the transaction is not committed."
    TOPIC_DELETED = "A topic is deleted; its objects and its segments' files exist."
    DELETED_SEGMENT_REMOVED = "The file of one segment of a deleted topic is removed."

    LOCAL_TEMPORARY_WRITTEN = ("An object's bytes are in a temporary file that is not durable.", _LOCAL)
    LOCAL_FSYNCED = ("The temporary file is durable, the object's name does not exist.", _LOCAL)
    LOCAL_LINKED = ("The object's name exists, its folder is not durable.", _LOCAL)
    LOCAL_FOLDER_SYNCED = ("The object is durable, its temporary file still exists.", _LOCAL)

    S3_PUT_SENT = ("A conditional PUT was answered: the object exists.", _S3)
    S3_UPLOAD_BEGUN = ("A multipart upload exists without a part.", _S3)
    S3_PART_UPLOADED = ("One part of a multipart upload is in the store.", _S3)
    S3_BEFORE_COMPLETE = ("All parts are in the store, the upload is not completed.", _S3)
    S3_AFTER_COMPLETE = ("The upload was completed: the object exists.", _S3)

    RUN_CLAIMED = "The run's row and its attempt exist, in a new epoch."
    RUN_SNAPSHOT_TAKEN = "The run knows its end position (P2)."
    RUN_SCAN_DONE = "The run knows the index levels and parts; it has written nothing."
    PHASE_ONE_INDEX_READ = "A task of phase one has read its hash range of the key indexes."
    PHASE_ONE_ROW_SETS_WRITTEN = "The row sets of one hash range exist."
    PHASE_ONE_INDEX_WRITTEN = "The new key index of one hash range exists."
    PHASE_ONE_DONE = "All hash ranges are resolved."
    RUN_LAYOUT_DECIDED = "The run knows which parts it keeps, rewrites and creates."
    PHASE_TWO_PART_BEGUN = "A task of phase two has opened its part for writing."
    PHASE_TWO_PART_WRITTEN = "One part exists."
    PHASE_TWO_BITMAPS_WRITTEN = "An object of bitmaps for kept parts exists."
    PHASE_TWO_DONE = "All parts and bitmaps exist."
    RUN_VERIFIED = "The run's result is verified; it has no manifest."
    TABLE_BEFORE_PUTS = "The run is about to write a snapshot of the topic's table; no object of it exists."
    TABLE_PUT = "All objects of the new snapshot of the table exist; no manifest names them."
    MANIFEST_BEFORE_PUT = "The manifest is built, its object does not exist."
    MANIFEST_PUT = "The manifest exists and no row names it."
    PUBLISH_BEFORE_TRANSACTION = "The transaction that publishes has not begun."
    PUBLISH_INSIDE_TRANSACTION = "Generation, pointer, horizon and run are changed, the transaction is not committed."
    PUBLISH_AFTER_COMMIT = "The new generation serves, and the run does not know it yet."
    RUN_ROW_SETS_CLEANED = "The run's row sets are deleted; the run has nothing else to do."

    GC_LISTED = "Garbage collection has listed a topic's objects."
    GC_REFERENCES_READ = "Garbage collection knows the references of rows and manifests."
    GC_ATTEMPTS_FENCED = "Attempts whose heartbeat ended are finished, their objects still exist."
    GC_COMPACTED_COLLECTED = "The row of a retired compacted ledger is deleted, its objects still exist."
    GC_BEFORE_DELETE = "Garbage collection is about to delete an object."
    GC_DELETED_ONE = "Garbage collection has deleted one object."
    GC_DONE = "Garbage collection of a topic has ended."

    PIN_TAKEN = "A reader has pinned the generation for its read."
    PIN_RENEWED = "A reader's pin has a new TTL."
    PIN_RELEASED = "A reader's pin is released."

    def __init__(self, happened: str, store: str | None = None) -> None:
        self.happened = happened
        self.store = store


listeners: tuple[Callable[[Failpoint], object], ...] = ()
"""The functions that are called at each step of this process; tests set them."""


def failpoint(step: Failpoint) -> None:
    """Report that `step` has happened. Raises the errors of a listening test; in production nothing listens."""
    for listener in listeners:
        listener(step)
