"""Every object name, built and parsed in this one module.

    store.uid                                                         identity of the store (storage/store_identity.py)
    topics/<topic uid>/ledgers/<ledger id>-<attempt>.parquet          rows of a sealed ledger
    topics/<topic uid>/ledgers/<ledger id>-<attempt>.index            its key index
    topics/<topic uid>/ledgers/<attempt>/<number>-<nonce>.parquet     rows of a sealed ledger that a task wrote
    topics/<topic uid>/ledgers/<attempt>/<number>-<nonce>.index       its key index
    topics/<topic uid>/runs/<attempt>/part-<number>-<nonce>.parquet   a part of a compacted ledger
    topics/<topic uid>/runs/<attempt>/index-<number>-<nonce>.index    one hash range of its key index
    topics/<topic uid>/runs/<attempt>/rowsets-<number>-<nonce>.bin    row sets, from phase one to phase two
    topics/<topic uid>/runs/<attempt>/bitmaps-<number>-<nonce>.bin    deleted rows of parts that are kept
    topics/<topic uid>/runs/<attempt>/chunks-<number>-<nonce>.bin     one hash range of its chunk table
    topics/<topic uid>/compacted/<ledger id>-<attempt>.json           the manifest of a compacted ledger
    topics/<topic uid>/table/<attempt>/deletes-<number>.puffin        the hidden rows of a part, for its Iceberg table
    topics/<topic uid>/table/<attempt>/deletes-<number>.parquet       the same, in format version 2
    topics/<topic uid>/table/<attempt>/data-<ledger id>.avro          the data manifest of a snapshot of the table
    topics/<topic uid>/table/<attempt>/deletes-<ledger id>.avro       its delete manifest
    topics/<topic uid>/table/<attempt>/snapshot-<ledger id>.avro      its manifest list
    topics/<topic uid>/table/<generation>-<attempt>.metadata.json     the table's metadata

Ids have 20 digits, so that names sort as numbers do. A name carries the topic's uid (a topic deleted and created again
shares nothing), an attempt id (32 hex digits; a retried import or run never overwrites), and where tasks write a nonce
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
    TABLE_DELETES = "table-deletes"
    TABLE_MANIFEST = "table-manifest"
    TABLE_SNAPSHOT = "table-snapshot"
    TABLE_METADATA = "table-metadata"


@dataclass(frozen=True)
class ParsedName:
    """The parts of an object's name.

    `number`: the ledger id, for the objects of ledgers, for manifests and for manifests of tables; the number of the
    task, for ledgers that tasks wrote; the generation, for metadata of tables; for other objects of a run the number of
    the part, of the hash range or, for bitmaps, of the task that wrote them. `is_of_task`: it is of a ledger that a
    task wrote, whose id the name does not have.
    """

    topic_uid: str
    kind: ObjectKind
    number: int
    attempt_id: str
    is_of_task: bool = False


_HEX = r"[0-9a-f]{32}"
_TEMPLATES = {
    ObjectKind.LEDGER_ROWS: (
        rf"ledgers/(?P<number>\d{{20}})-(?P<attempt>{_HEX})\.parquet",
        rf"ledgers/(?P<attempt>{_HEX})/(?P<number>\d{{20}})-[0-9a-f]{{8}}\.parquet",
    ),
    ObjectKind.LEDGER_INDEX: (
        rf"ledgers/(?P<number>\d{{20}})-(?P<attempt>{_HEX})\.index",
        rf"ledgers/(?P<attempt>{_HEX})/(?P<number>\d{{20}})-[0-9a-f]{{8}}\.index",
    ),
    ObjectKind.PART: (rf"runs/(?P<attempt>{_HEX})/part-(?P<number>\d{{20}})-[0-9a-f]{{8}}\.parquet",),
    ObjectKind.INDEX: (rf"runs/(?P<attempt>{_HEX})/index-(?P<number>\d{{20}})-[0-9a-f]{{8}}\.index",),
    ObjectKind.ROW_SETS: (rf"runs/(?P<attempt>{_HEX})/rowsets-(?P<number>\d{{20}})-[0-9a-f]{{8}}\.bin",),
    ObjectKind.BITMAPS: (rf"runs/(?P<attempt>{_HEX})/bitmaps-(?P<number>\d{{20}})-[0-9a-f]{{8}}\.bin",),
    ObjectKind.CHUNKS: (rf"runs/(?P<attempt>{_HEX})/chunks-(?P<number>\d{{20}})-[0-9a-f]{{8}}\.bin",),
    ObjectKind.MANIFEST: (rf"compacted/(?P<number>\d{{20}})-(?P<attempt>{_HEX})\.json",),
    ObjectKind.TABLE_DELETES: (rf"table/(?P<attempt>{_HEX})/deletes-(?P<number>\d{{20}})\.(?:puffin|parquet)",),
    ObjectKind.TABLE_MANIFEST: (rf"table/(?P<attempt>{_HEX})/(?:data|deletes)-(?P<number>\d{{20}})\.avro",),
    ObjectKind.TABLE_SNAPSHOT: (rf"table/(?P<attempt>{_HEX})/snapshot-(?P<number>\d{{20}})\.avro",),
    ObjectKind.TABLE_METADATA: (rf"table/(?P<number>\d{{20}})-(?P<attempt>{_HEX})\.metadata\.json",),
}
_PATTERNS = [
    (kind, re.compile(rf"topics/(?P<uid>{_HEX})/{pattern}"))
    for kind, patterns in _TEMPLATES.items()
    for pattern in patterns
]


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


def task_ledgers_prefix(topic_uid: str, attempt_id: str) -> str:
    """Return the prefix of the ledgers that the tasks of one append wrote."""
    return f"topics/{topic_uid}/ledgers/{attempt_id}/"


def new_nonce() -> str:
    """Return a random text for names of objects. The rows and the key index of a ledger of a task share one."""
    return secrets.token_hex(4)


def task_ledger_rows(topic_uid: str, attempt_id: str, task_number: int, nonce: str) -> str:
    """Return the name of the rows of a ledger that a task wrote."""
    return f"{task_ledgers_prefix(topic_uid, attempt_id)}{task_number:020d}-{nonce}.parquet"


def task_ledger_index(topic_uid: str, attempt_id: str, task_number: int, nonce: str) -> str:
    """Return the name of the key index of a ledger that a task wrote."""
    return f"{task_ledgers_prefix(topic_uid, attempt_id)}{task_number:020d}-{nonce}.index"


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


def table_deletes(topic_uid: str, attempt_id: str, part_number: int, suffix: str) -> str:
    """Return the name of the hidden rows of part `part_number` for the table. `suffix`: of the format of the file."""
    return f"{_table_prefix(topic_uid, attempt_id)}deletes-{part_number:020d}.{suffix}"


def table_manifest(topic_uid: str, attempt_id: str, content: str, ledger_id: int) -> str:
    """Return the name of a manifest of the table. `content`: `data` or `deletes`."""
    return f"{_table_prefix(topic_uid, attempt_id)}{content}-{ledger_id:020d}.avro"


def table_snapshot(topic_uid: str, attempt_id: str, ledger_id: int) -> str:
    """Return the name of the manifest list of a snapshot of the table."""
    return f"{_table_prefix(topic_uid, attempt_id)}snapshot-{ledger_id:020d}.avro"


def table_metadata(topic_uid: str, attempt_id: str, generation: int) -> str:
    """Return the name of the table's metadata."""
    return f"topics/{topic_uid}/table/{generation:020d}-{attempt_id}.metadata.json"


def _table_prefix(topic_uid: str, attempt_id: str) -> str:
    """Return the prefix of the objects of a snapshot of the table. Each has one writer, so no name needs a nonce."""
    return f"topics/{topic_uid}/table/{attempt_id}/"


def parse(name: str) -> ParsedName | None:
    """Return the parts of an object's name; None: it is no name of an object of a topic."""
    for kind, pattern in _PATTERNS:
        if match := pattern.fullmatch(name):
            is_of_task = name.startswith(f"{ledgers_prefix(match['uid'])}{match['attempt']}/")
            return ParsedName(match["uid"], kind, int(match["number"]), match["attempt"], is_of_task)
    return None
