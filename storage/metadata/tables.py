"""The tables: one description for both SQLite and PostgreSQL.

Invariants that the database itself keeps, whatever the code above it does:
- a name has one topic; a topic has at most one RUNNING run, at most one compacted ledger that is not retired;
- a generation of a topic is one compacted ledger, forever;
- no two raw ledgers of a topic start at the same offset;
- ids of topics and runs are never given to another row, also after a delete;
- a pin holds a compacted ledger whose row exists: a row that is pinned cannot be deleted.

`migrations/versions` creates the same tables; `tests/migration` fails if the two differ. `create_all` is never called.
Times are milliseconds since the Unix epoch, sizes are bytes: all of them 64-bit. A message id takes four columns, a
position five; `row_mapping.py` knows their names. An error takes three (`storage.errors.ErrorText`).
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

METADATA = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# SQLite numbers rows by itself only in a column of exactly this type; its integers have 64 bits anyway.
BIG_KEY = BigInteger().with_variant(Integer, "sqlite")


def _integer_columns(*names: str, nullable: bool = False) -> list[Column[int]]:
    return [Column(name, BigInteger, nullable=nullable) for name in names]


def _message_id_columns(prefix: str, *, nullable: bool = False) -> list[Column[int]]:
    parts = ("ledger_id", "entry_id", "partition", "batch_index")
    return _integer_columns(*(f"{prefix}_{part}" for part in parts), nullable=nullable)


def _position_columns(prefix: str, *, nullable: bool = False) -> list[Column[int]]:
    return [*_integer_columns(f"{prefix}_offset", nullable=nullable), *_message_id_columns(prefix, nullable=nullable)]


def _error_detail_columns(prefix: str) -> list[Column[Any]]:
    """Return the columns of the detail and the advice of an error; its summary has a column of its own."""
    return [
        Column(f"{prefix}_detail", Text, nullable=False, server_default=""),
        Column(f"{prefix}_advice", JSON(none_as_null=True)),
    ]


def _topic_id_column(*, primary_key: bool = False) -> Column[int]:
    return Column("topic_id", BIG_KEY, ForeignKey("topics.id"), primary_key=primary_key, nullable=False)


def _add_unique_topic_index(name: str, table: Table, where: str) -> None:
    """Add a unique index to a table: of each topic, at most one row meets the condition `where`."""
    condition = text(where)
    Index(name, table.c.topic_id, unique=True, sqlite_where=condition, postgresql_where=condition)


topics = Table(
    "topics",
    METADATA,
    Column("id", BIG_KEY, primary_key=True),
    Column("uid", String(32), nullable=False, unique=True),
    Column("name", String, nullable=False, unique=True),
    *_integer_columns("hash_seed", "generation", "epoch", "next_offset", "created_at"),
    Column("start_offset", BigInteger, nullable=False, server_default="0"),
    Column("roll_requested_at", BigInteger),
    Column("properties", JSON, nullable=False, server_default="{}"),
    Column("producer_epoch", BigInteger),
    sqlite_autoincrement=True,
)
"""`start_offset`: the first offset of reads; it only grows. `roll_requested_at`: when a roll of the active segment was
requested. `properties`: of users, texts by name. `producer_epoch`: of the last exclusive producer (Pulsar's topic
epoch); it only grows."""
Index(
    "ix_topics_roll_requested",
    topics.c.roll_requested_at,
    sqlite_where=text("roll_requested_at IS NOT NULL"),
    postgresql_where=text("roll_requested_at IS NOT NULL"),
)

deleted_topics = Table(
    "deleted_topics",
    METADATA,
    Column("uid", String(32), primary_key=True),
    Column("topic_id", BIG_KEY, nullable=False, unique=True),
    Column("name", String, nullable=False),
    Column("deleted_at", BigInteger, nullable=False),
    Column("collected_at", BigInteger),
)
Index(
    "ix_deleted_topics_uncollected",
    deleted_topics.c.deleted_at,
    sqlite_where=text("collected_at IS NULL"),
    postgresql_where=text("collected_at IS NULL"),
)
"""Incarnations of topics that were deleted (S8): their objects, and their segments' files in every log directory, are
garbage. A row is never deleted: a log directory, or a process, may return after years. `collected_at`: when all objects
were deleted; null: not yet."""

tenants = Table(
    "tenants",
    METADATA,
    Column("name", String, primary_key=True),
    Column("admin_roles", JSON, nullable=False),
    Column("allowed_clusters", JSON, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)

namespaces = Table(
    "namespaces",
    METADATA,
    Column("name", String, primary_key=True),
    Column("tenant", String, ForeignKey("tenants.name"), nullable=False, index=True),
    Column("created_at", BigInteger, nullable=False),
)
"""Namespaces by full name, `tenant/namespace`. A transaction that deletes a namespace, or creates a topic in it, locks
its row. One that deletes a topic does not."""

permissions = Table(
    "permissions",
    METADATA,
    Column("scope", String, primary_key=True),
    Column("role", String, primary_key=True),
    Column("actions", JSON, nullable=False),
)
"""The permissions of roles, by scope: `tenant`, `tenant/namespace`, or a topic's full name; deleted with it."""

partitioned_topics = Table(
    "partitioned_topics",
    METADATA,
    Column("name", String, primary_key=True),
    Column("namespace", String, ForeignKey("namespaces.name"), nullable=False, index=True),
    Column("partitions", BigInteger, nullable=False),
    Column("properties", JSON, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("removed_source_topic_id", String(32)),
)
"""Partitioned topics; their partitions are topics of their own, named `…-partition-0` and so on.
`removed_source_topic_id`: the id in Kafka of the source of the last mirror that was removed; null: none was removed.
"""

sequences = Table(
    "sequences",
    METADATA,
    Column("name", String(32), primary_key=True),
    Column("next_value", BigInteger, nullable=False),
)
"""Counters that never go back. `ledger`: ids of ledgers, raw and compacted together, over all topics (as Pulsar)."""

leases = Table(
    "leases",
    METADATA,
    _topic_id_column(primary_key=True),
    Column("holder", String),
    *_integer_columns("token", "expires_at"),
)
"""One row per topic, inserted with it. `holder` null: it is free; the token stays, so that it never starts again."""

attempts = Table(
    "attempts",
    METADATA,
    Column("attempt_id", String(32), primary_key=True),
    _topic_id_column(),
    Column("kind", String(16), nullable=False),
    Column("holder", String, nullable=False),
    *_integer_columns("started_at", "heartbeat_at"),
    Column("finished_at", BigInteger),
    Index(None, "topic_id"),
)

ledgers = Table(
    "ledgers",
    METADATA,
    Column("ledger_id", BIG_KEY, primary_key=True, autoincrement=False),
    _topic_id_column(),
    *_integer_columns("first_offset", "last_offset", "messages", "entries"),
    *_message_id_columns("last_message"),
    *_integer_columns("logical_bytes", "min_publish_time", "max_publish_time"),
    Column("rows_name", String, nullable=False),
    *_integer_columns("rows_size", "rows_crc32c", "footer_size"),
    Column("index_name", String, nullable=False),
    *_integer_columns("index_offset", "index_length"),
    Column("index_directory", LargeBinary, nullable=False),
    Column("attempt_id", String(32), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("deleted_at", BigInteger),
    UniqueConstraint("topic_id", "first_offset"),
)
"""Sealed ledgers. `deleted_at`: when it was trimmed; it is no longer listed, its objects stay for a while (C3).
`attempt_id` is no foreign key: rows of attempts may be purged long before their ledgers."""

segments = Table(
    "segments",
    METADATA,
    Column("ledger_id", BIG_KEY, primary_key=True, autoincrement=False),
    _topic_id_column(),
    Column("first_offset", BigInteger, nullable=False),
    Column("log_uid", String(32), nullable=False),
    Column("state", String(16), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    *_integer_columns("rolled_at", "sealed_at", nullable=True),
    Column("sealing_attempt_id", String(32)),
    Column("sealing_tries", BigInteger, nullable=False, server_default="0"),
    Column("last_offset", BigInteger),
    *_message_id_columns("last_message", nullable=True),
    *_integer_columns(
        "messages", "entries", "logical_bytes", "min_publish_time", "max_publish_time", "size", nullable=True
    ),
    UniqueConstraint("topic_id", "first_offset"),
)
"""Unsealed segments: OPEN, then ROLLED, then SEALED, when the ledger of the same id has replaced it and the file waits
to be removed; then the row is deleted. Columns that are null have values from ROLLED on. `sealing_tries`: the number of
sealing claims that ended neither with a ledger nor with a release, because the sealer died."""
_add_unique_topic_index("uq_segments_open", segments, "state = 'OPEN'")

policies = Table(
    "policies",
    METADATA,
    Column("scope", String, primary_key=True),
    Column("name", String, primary_key=True),
    Column("value", JSON, nullable=False),
)
"""Policies that users have set, by scope: `broker`, `namespace:tenant/namespace`, `topic:<topic uid>`."""

cursors = Table(
    "cursors",
    METADATA,
    _topic_id_column(primary_key=True),
    Column("name", String, primary_key=True),
    *_position_columns("mark_delete", nullable=True),
    Column("properties", JSON, nullable=False),
    Column("life", String(32), nullable=False, server_default=""),
)
"""`life`: the incarnation: a new one at creation and after each reset, which fences the owners before."""

cursor_ranges = Table(
    "cursor_ranges",
    METADATA,
    _topic_id_column(primary_key=True),
    Column("name", String, primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("acknowledged", LargeBinary, nullable=False),
)
"""Offsets above a cursor's mark-delete that are acknowledged one by one: a Roaring bitmap per range of offsets."""

compacted_ledgers = Table(
    "compacted_ledgers",
    METADATA,
    Column("ledger_id", BIG_KEY, primary_key=True, autoincrement=False),
    _topic_id_column(),
    Column("generation", BigInteger, nullable=False),
    *_position_columns("horizon"),
    Column("manifest_name", String, nullable=False),
    *_integer_columns("manifest_size", "manifest_crc32c", "messages", "logical_bytes", "stored_bytes"),
    *_message_id_columns("last_message", nullable=True),
    Column("attempt_id", String(32), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("retired_at", BigInteger),
    Column("table_metadata_name", String),
    *_integer_columns("table_metadata_size", "table_metadata_crc32c", nullable=True),
    *_integer_columns("source_horizon_ledger_id", "source_horizon_entry_id", nullable=True),
    UniqueConstraint("topic_id", "generation"),
)
"""Compacted ledgers. `table_metadata_…`: the metadata of the topic's Iceberg table; null: it has none.
`source_horizon_…`: the position of the horizon at the source of a replicated topic; null: it is unknown."""
_add_unique_topic_index("uq_compacted_ledgers_serving", compacted_ledgers, "retired_at IS NULL")

pins = Table(
    "pins",
    METADATA,
    Column("pin_id", String(32), primary_key=True),
    _topic_id_column(),
    Column("ledger_id", BIG_KEY, ForeignKey("compacted_ledgers.ledger_id"), nullable=False),
    Column("holder", String, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Index(None, "topic_id"),
    Index(None, "ledger_id"),
)
"""Pins of readers on compacted ledgers. A dead reader leaves its row, which holds nothing after `expires_at`."""

runs = Table(
    "runs",
    METADATA,
    Column("run_id", BIG_KEY, primary_key=True),
    _topic_id_column(),
    Column("attempt_id", String(32), nullable=False, unique=True),
    Column("holder", String, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("state", String(16), nullable=False),
    Column("phase", String, nullable=False),
    Column("policies", JSON, nullable=False),
    *_integer_columns("started_at", "heartbeat_at"),
    Column("finished_at", BigInteger),
    Column("error", Text, nullable=False),
    *_error_detail_columns("error"),
    *_position_columns("horizon", nullable=True),
    Column("compacted_ledger_id", BigInteger),
    Column("statistics", JSON, nullable=False),
    Column("cause", String, nullable=False, server_default=""),
    Index(None, "topic_id", "run_id"),
    sqlite_autoincrement=True,
)
_add_unique_topic_index("uq_runs_running", runs, "state = 'RUNNING'")

controls = Table(
    "controls",
    METADATA,
    _topic_id_column(primary_key=True),
    Column("requested_at", BigInteger),
    Column("requested_by", String, nullable=False, server_default=""),
    Column("cause", String, nullable=False, server_default=""),
    Column("paused", BigInteger, nullable=False, server_default="0"),
    Column("aborting_run_id", BigInteger),
    Column("failures", BigInteger, nullable=False, server_default="0"),
    Column("retry_at", BigInteger),
    Column("last_error", Text, nullable=False, server_default=""),
    *_error_detail_columns("last_error"),
    Index(None, "requested_at"),
)
"""Requests, pauses and failures of a topic's compaction; a topic without a row has none. `aborting_run_id`: a run that
a pause or an abort has ended, and whose worker has not stopped yet."""

topic_work = Table(
    "topic_work",
    METADATA,
    _topic_id_column(primary_key=True),
    Column("kind", String(16), primary_key=True),
    *_integer_columns("due_at", "changes"),
    Index(None, "kind", "due_at"),
)
"""Queues of topics with work, one for each kind (topic_work.py). `due_at`: when the topic is to be checked; `changes`:
counts the events that queued it, so that a check that has not seen the last one does not remove it."""

leader_notes = Table(
    "leader_notes",
    METADATA,
    Column("name", String(32), primary_key=True),
    Column("value", Text, nullable=False),
)
"""Notes of a leader for its successors, by name (topic_work.py)."""

store_bindings = Table(
    "store_bindings",
    METADATA,
    Column("role", String(32), primary_key=True),
    Column("uid", String(32), nullable=False),
    Column("url", String, nullable=False),
    Column("bound_at", BigInteger),
)
"""The object store that this database uses: one row, of the role `objects`. `uid`: the content of the store's own
object `store.uid`; `url`: the store's location when it was bound; `bound_at` null: the store does not hold it yet."""

store_trials = Table(
    "store_trials",
    METADATA,
    Column("location", String, primary_key=True),
    Column("passed_at", BigInteger, nullable=False),
)
"""Locations (URL and endpoint) of object stores that passed their trial."""

services = Table(
    "services",
    METADATA,
    Column("name", String, primary_key=True),
    Column("url", String, nullable=False),
    Column("log_uid", String(32)),
    *_integer_columns("started_at", "heartbeat_at"),
    Column("broker_service_url", String),
    Column("broker_service_url_tls", String),
)
"""Service processes that live, or died without leaving; `log_uid`: of the log directory, if it exists yet;
`broker_service_url` and `broker_service_url_tls` null: no Pulsar protocol, without or with TLS."""

producer_sequences = Table(
    "producer_sequences",
    METADATA,
    _topic_id_column(primary_key=True),
    Column("end_offset", BigInteger, nullable=False),
    Column("highest", JSON, nullable=False),
    Column("sources", JSON(none_as_null=True)),
    Column("missing", JSON(none_as_null=True)),
)
"""The state of a topic's deduplication before an offset. `highest`: the highest sequence id of each producer, by name;
the JSON null: producers' entries are not deduplicated. `sources`: of each source cluster, by name, the ledger id and
entry id up to which it is replicated, and its newest publish time (ms); null: no replicator has connected. `missing`:
of each source cluster of which a restored log lacks entries, the ledger id and entry id of the last one; null: none."""

mirrors = Table(
    "mirrors",
    METADATA,
    Column("topic", String, primary_key=True),
    Column("source", String, nullable=False),
    Column("options", JSON, nullable=False),
    Column("cluster_id", String, nullable=False),
    Column("source_topic_id", String(32), nullable=False),
    Column("state", String(16), nullable=False),
    *_integer_columns("created_at", "changed_at"),
    Column("error", Text, nullable=False),
    *_error_detail_columns("error"),
)
"""Mirrors of Kafka's topics (mirrors.py), by the full name of the partitioned topic here. `cluster_id`,
`source_topic_id`: of the source, as its brokers state them; another one is another topic of the same name. No row is
about messages: the log itself has the positions."""

mirror_partitions = Table(
    "mirror_partitions",
    METADATA,
    Column("topic", String, primary_key=True),
    Column("partition", BigInteger, primary_key=True, autoincrement=False),
    *_integer_columns(
        "start_offset", "gap_end", "next_offset", "end_offset", "records_per_second", "reported_at", nullable=True
    ),
    Column("epochs", JSON(none_as_null=True)),
)
"""Partitions of mirrors. `start_offset`: the offset in Kafka at which the mirror began, or before which a user gave up
what is missing; `gap_end`: the one before which records are missing at the source, so that the mirror stopped.
`epochs`: the epochs of the leaders that appended the last records, each with the offset from which on; null: they are
not known. The others are the last report of the service that mirrors the partition, some seconds old."""

schemas = Table(
    "schemas",
    METADATA,
    Column("topic", String, primary_key=True),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("type", Integer, nullable=False),
    Column("name", String, nullable=False),
    Column("data", LargeBinary, nullable=False),
    Column("properties", JSON, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)
"""Versions of the schemas of topics, from 0; `topic`: a full name, of a partitioned topic that of the whole. `type`: by
Pulsar's numbers."""

leadership = Table(
    "leadership",
    METADATA,
    Column("role", String(32), primary_key=True),
    Column("holder", String),
    *_integer_columns("token", "expires_at"),
)
"""The leader of scheduling, until a time. One row, inserted with the table; the token grows with each leader and fences
the earlier ones."""
