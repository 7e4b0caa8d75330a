"""The first schema: topics, their ledgers, cursors, leases, attempts and compaction runs.

storage/metadata/tables.py describes the tables.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

BIG_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "sequences",
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("next_value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_sequences")),
    )
    sequences = sa.table("sequences", sa.column("name", sa.String), sa.column("next_value", sa.BigInteger))
    op.bulk_insert(sequences, [{"name": "ledger", "next_value": 1}])
    op.create_table(
        "topics",
        sa.Column("id", BIG_KEY, nullable=False),
        sa.Column("uid", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("hash_seed", sa.BigInteger(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("next_offset", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_topics")),
        sa.UniqueConstraint("name", name=op.f("uq_topics_name")),
        sa.UniqueConstraint("uid", name=op.f("uq_topics_uid")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "attempts",
        sa.Column("attempt_id", sa.String(length=32), nullable=False),
        sa.Column("topic_id", BIG_KEY, nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("holder", sa.String(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("heartbeat_at", sa.BigInteger(), nullable=False),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["topic_id"], ["topics.id"], name=op.f("fk_attempts_topic_id_topics")),
        sa.PrimaryKeyConstraint("attempt_id", name=op.f("pk_attempts")),
    )
    op.create_index(op.f("ix_attempts_topic_id"), "attempts", ["topic_id"], unique=False)
    op.create_table(
        "compacted_ledgers",
        sa.Column("ledger_id", BIG_KEY, autoincrement=False, nullable=False),
        sa.Column("topic_id", BIG_KEY, nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("horizon_offset", sa.BigInteger(), nullable=False),
        sa.Column("horizon_ledger_id", sa.BigInteger(), nullable=False),
        sa.Column("horizon_entry_id", sa.BigInteger(), nullable=False),
        sa.Column("horizon_partition", sa.BigInteger(), nullable=False),
        sa.Column("horizon_batch_index", sa.BigInteger(), nullable=False),
        sa.Column("manifest_name", sa.String(), nullable=False),
        sa.Column("manifest_size", sa.BigInteger(), nullable=False),
        sa.Column("manifest_crc32c", sa.BigInteger(), nullable=False),
        sa.Column("messages", sa.BigInteger(), nullable=False),
        sa.Column("logical_bytes", sa.BigInteger(), nullable=False),
        sa.Column("stored_bytes", sa.BigInteger(), nullable=False),
        sa.Column("last_message_ledger_id", sa.BigInteger(), nullable=True),
        sa.Column("last_message_entry_id", sa.BigInteger(), nullable=True),
        sa.Column("last_message_partition", sa.BigInteger(), nullable=True),
        sa.Column("last_message_batch_index", sa.BigInteger(), nullable=True),
        sa.Column("attempt_id", sa.String(length=32), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("retired_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["topic_id"], ["topics.id"], name=op.f("fk_compacted_ledgers_topic_id_topics")),
        sa.PrimaryKeyConstraint("ledger_id", name=op.f("pk_compacted_ledgers")),
        sa.UniqueConstraint("topic_id", "generation", name=op.f("uq_compacted_ledgers_topic_id_generation")),
    )
    op.create_index(
        "uq_compacted_ledgers_serving",
        "compacted_ledgers",
        ["topic_id"],
        unique=True,
        sqlite_where=sa.text("retired_at IS NULL"),
        postgresql_where=sa.text("retired_at IS NULL"),
    )
    op.create_table(
        "cursors",
        sa.Column("topic_id", BIG_KEY, nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("mark_delete_offset", sa.BigInteger(), nullable=True),
        sa.Column("mark_delete_ledger_id", sa.BigInteger(), nullable=True),
        sa.Column("mark_delete_entry_id", sa.BigInteger(), nullable=True),
        sa.Column("mark_delete_partition", sa.BigInteger(), nullable=True),
        sa.Column("mark_delete_batch_index", sa.BigInteger(), nullable=True),
        sa.Column("properties", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["topic_id"], ["topics.id"], name=op.f("fk_cursors_topic_id_topics")),
        sa.PrimaryKeyConstraint("topic_id", "name", name=op.f("pk_cursors")),
    )
    op.create_table(
        "leases",
        sa.Column("topic_id", BIG_KEY, nullable=False),
        sa.Column("holder", sa.String(), nullable=True),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["topic_id"], ["topics.id"], name=op.f("fk_leases_topic_id_topics")),
        sa.PrimaryKeyConstraint("topic_id", name=op.f("pk_leases")),
    )
    op.create_table(
        "ledgers",
        sa.Column("ledger_id", BIG_KEY, autoincrement=False, nullable=False),
        sa.Column("topic_id", BIG_KEY, nullable=False),
        sa.Column("first_offset", sa.BigInteger(), nullable=False),
        sa.Column("last_offset", sa.BigInteger(), nullable=False),
        sa.Column("messages", sa.BigInteger(), nullable=False),
        sa.Column("entries", sa.BigInteger(), nullable=False),
        sa.Column("last_message_ledger_id", sa.BigInteger(), nullable=False),
        sa.Column("last_message_entry_id", sa.BigInteger(), nullable=False),
        sa.Column("last_message_partition", sa.BigInteger(), nullable=False),
        sa.Column("last_message_batch_index", sa.BigInteger(), nullable=False),
        sa.Column("logical_bytes", sa.BigInteger(), nullable=False),
        sa.Column("min_publish_time", sa.BigInteger(), nullable=False),
        sa.Column("max_publish_time", sa.BigInteger(), nullable=False),
        sa.Column("rows_name", sa.String(), nullable=False),
        sa.Column("rows_size", sa.BigInteger(), nullable=False),
        sa.Column("rows_crc32c", sa.BigInteger(), nullable=False),
        sa.Column("footer_size", sa.BigInteger(), nullable=False),
        sa.Column("index_name", sa.String(), nullable=False),
        sa.Column("index_offset", sa.BigInteger(), nullable=False),
        sa.Column("index_length", sa.BigInteger(), nullable=False),
        sa.Column("index_directory", sa.LargeBinary(), nullable=False),
        sa.Column("attempt_id", sa.String(length=32), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["topic_id"], ["topics.id"], name=op.f("fk_ledgers_topic_id_topics")),
        sa.PrimaryKeyConstraint("ledger_id", name=op.f("pk_ledgers")),
        sa.UniqueConstraint("topic_id", "first_offset", name=op.f("uq_ledgers_topic_id_first_offset")),
    )
    op.create_table(
        "runs",
        sa.Column("run_id", BIG_KEY, nullable=False),
        sa.Column("topic_id", BIG_KEY, nullable=False),
        sa.Column("attempt_id", sa.String(length=32), nullable=False),
        sa.Column("holder", sa.String(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("phase", sa.String(), nullable=False),
        sa.Column("policies", sa.JSON(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("heartbeat_at", sa.BigInteger(), nullable=False),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("horizon_offset", sa.BigInteger(), nullable=True),
        sa.Column("horizon_ledger_id", sa.BigInteger(), nullable=True),
        sa.Column("horizon_entry_id", sa.BigInteger(), nullable=True),
        sa.Column("horizon_partition", sa.BigInteger(), nullable=True),
        sa.Column("horizon_batch_index", sa.BigInteger(), nullable=True),
        sa.Column("compacted_ledger_id", sa.BigInteger(), nullable=True),
        sa.Column("statistics", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["topic_id"], ["topics.id"], name=op.f("fk_runs_topic_id_topics")),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_runs")),
        sa.UniqueConstraint("attempt_id", name=op.f("uq_runs_attempt_id")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_runs_topic_id_run_id"), "runs", ["topic_id", "run_id"], unique=False)
    op.create_index(
        "uq_runs_running",
        "runs",
        ["topic_id"],
        unique=True,
        sqlite_where=sa.text("state = 'RUNNING'"),
        postgresql_where=sa.text("state = 'RUNNING'"),
    )
