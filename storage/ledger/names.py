"""Every object name, built and parsed in this one module.

    store.uid                                                         identity of the store (storage/store_identity.py)
    topics/<topic uid>/ledgers/<ledger id>-<attempt>.parquet          rows of a sealed ledger
    topics/<topic uid>/ledgers/<ledger id>-<attempt>.index            its key index
    topics/<topic uid>/runs/<attempt>/part-<number>-<nonce>.parquet   a part of a compacted ledger
    topics/<topic uid>/runs/<attempt>/index-<number>-<nonce>.index    one hash range of its key index
    topics/<topic uid>/runs/<attempt>/rowsets-<number>-<nonce>.bin    row sets, from phase one to phase two
    topics/<topic uid>/runs/<attempt>/bitmaps-<number>-<nonce>.bin    deleted rows of parts that are kept
    topics/<topic uid>/runs/<attempt>/chunks-<number>-<nonce>.bin     one hash range of its chunk table
    topics/<topic uid>/compacted/<ledger id>-<attempt>.json           the manifest of a compacted ledger

Ids have 20 digits, so that names sort as numbers do. A name carries the topic's uid (a topic deleted and created again
shares nothing), an attempt id (32 hex digits; a retried import or run never overwrites), and inside a run a nonce
(a retried or speculative Spark task never overwrites). A name does not prove that an object exists: only a row
or a manifest does.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from enum import StrEnum

STORE_UID = "store.uid"
"""The object that holds the store's uid."""
TOPICS = "topics/"
"""The prefix of every object of a topic."""


class ObjectKind(StrEnum):
    """The content of an object."""

    LEDGER_ROWS = "ledger-rows"
    LEDGER_INDEX = "ledger-index"
    PART = "part"
    INDEX = "index"
    ROW_SETS = "row-sets"
    BITMAPS = "bitmaps"
    CHUNKS = "chunks"
    MANIFEST = "manifest"


@dataclass(frozen=True)
class ParsedName:
    """The parts of an object's name.

    `number`: the ledger id, for the objects of ledgers and for manifests; for other objects of a run the number of the
    part, of the hash range or, for bitmaps, of the task that wrote them.
    """

    topic_uid: str
    kind: ObjectKind
    number: int
    attempt_id: str


_HEX = r"[0-9a-f]{32}"
_TEMPLATES = {
    ObjectKind.LEDGER_ROWS: rf"ledgers/(?P<number>\d{{20}})-(?P<attempt>{_HEX})\.parquet",
    ObjectKind.LEDGER_INDEX: rf"ledgers/(?P<number>\d{{20}})-(?P<attempt>{_HEX})\.index",
    ObjectKind.PART: rf"runs/(?P<attempt>{_HEX})/part-(?P<number>\d{{20}})-[0-9a-f]{{8}}\.parquet",
    ObjectKind.INDEX: rf"runs/(?P<attempt>{_HEX})/index-(?P<number>\d{{20}})-[0-9a-f]{{8}}\.index",
    ObjectKind.ROW_SETS: rf"runs/(?P<attempt>{_HEX})/rowsets-(?P<number>\d{{20}})-[0-9a-f]{{8}}\.bin",
    ObjectKind.BITMAPS: rf"runs/(?P<attempt>{_HEX})/bitmaps-(?P<number>\d{{20}})-[0-9a-f]{{8}}\.bin",
    ObjectKind.CHUNKS: rf"runs/(?P<attempt>{_HEX})/chunks-(?P<number>\d{{20}})-[0-9a-f]{{8}}\.bin",
    ObjectKind.MANIFEST: rf"compacted/(?P<number>\d{{20}})-(?P<attempt>{_HEX})\.json",
}
_PATTERNS = {kind: re.compile(rf"topics/(?P<uid>{_HEX})/{pattern}") for kind, pattern in _TEMPLATES.items()}


def topic_prefix(topic_uid: str) -> str:
    """Return the prefix of every object of a topic."""
    return f"topics/{topic_uid}/"


def ledgers_prefix(topic_uid: str) -> str:
    """Return the prefix of the rows and key indexes of all sealed ledgers of a topic."""
    return f"topics/{topic_uid}/ledgers/"


def runs_prefix(topic_uid: str) -> str:
    """Return the prefix of the objects of all runs of a topic."""
    return f"topics/{topic_uid}/runs/"


def run_prefix(topic_uid: str, attempt_id: str) -> str:
    """Return the prefix of the parts, indexes, row sets and other objects of one run."""
    return f"topics/{topic_uid}/runs/{attempt_id}/"


def ledger_rows(topic_uid: str, ledger_id: int, attempt_id: str) -> str:
    """Return the name of the rows of a sealed ledger."""
    return f"topics/{topic_uid}/ledgers/{ledger_id:020d}-{attempt_id}.parquet"


def ledger_index(topic_uid: str, ledger_id: int, attempt_id: str) -> str:
    """Return the name of the key index of a sealed ledger."""
    return f"topics/{topic_uid}/ledgers/{ledger_id:020d}-{attempt_id}.index"


def part(topic_uid: str, attempt_id: str, part_number: int) -> str:
    """Return a name for part `part_number` of a run's compacted ledger; a new one at each call."""
    return f"{run_prefix(topic_uid, attempt_id)}part-{part_number:020d}-{secrets.token_hex(4)}.parquet"


def compacted_index(topic_uid: str, attempt_id: str, range_number: int) -> str:
    """Return a name for hash range `range_number` of a compacted ledger's key index; a new one at each call."""
    return f"{run_prefix(topic_uid, attempt_id)}index-{range_number:020d}-{secrets.token_hex(4)}.index"


def row_sets(topic_uid: str, attempt_id: str, range_number: int) -> str:
    """Return a name for the row sets that one phase-one task passes to phase two; a new one at each call.

    `range_number`: of the task's hash range.
    """
    return f"{run_prefix(topic_uid, attempt_id)}rowsets-{range_number:020d}-{secrets.token_hex(4)}.bin"


def bitmaps(topic_uid: str, attempt_id: str, task_number: int) -> str:
    """Return a name for the deleted rows of some parts that a run keeps; a new one at each call.

    `task_number`: of the phase-two task that writes them, or of the scanned source.
    """
    return f"{run_prefix(topic_uid, attempt_id)}bitmaps-{task_number:020d}-{secrets.token_hex(4)}.bin"


def chunks(topic_uid: str, attempt_id: str, range_number: int) -> str:
    """Return a name for hash range `range_number` of a compacted ledger's chunk table; a new one at each call."""
    return f"{run_prefix(topic_uid, attempt_id)}chunks-{range_number:020d}-{secrets.token_hex(4)}.bin"


def manifest(topic_uid: str, ledger_id: int, attempt_id: str) -> str:
    """Return the name of the manifest of a compacted ledger."""
    return f"topics/{topic_uid}/compacted/{ledger_id:020d}-{attempt_id}.json"


def parse(name: str) -> ParsedName | None:
    """Return the parts of an object's name; None: it is no name of an object of a topic."""
    for kind, pattern in _PATTERNS.items():
        if match := pattern.fullmatch(name):
            return ParsedName(match["uid"], kind, int(match["number"]), match["attempt"])
    return None
