"""The log: unsealed segments, trimmed ledgers, policies, ranges of cursors.

storage/metadata/tables.py describes the tables and columns.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

BIG_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("topics", sa.Column("start_offset", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("topics", sa.Column("roll_requested_at", sa.BigInteger(), nullable=True))
    op.add_column("ledgers", sa.Column("deleted_at", sa.BigInteger(), nullable=True))
    op.add_column("cursors", sa.Column("life", sa.String(length=32), nullable=False, server_default=""))
    op.create_table(
        "segments",
        sa.Column("ledger_id", BIG_KEY, autoincrement=False, nullable=False),
        sa.Column("topic_id", BIG_KEY, nullable=False),
        sa.Column("first_offset", sa.BigInteger(), nullable=False),
        sa.Column("log_uid", sa.String(length=32), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("rolled_at", sa.BigInteger(), nullable=True),
        sa.Column("sealed_at", sa.BigInteger(), nullable=True),
        sa.Column("sealing_attempt_id", sa.String(length=32), nullable=True),
        sa.Column("last_offset", sa.BigInteger(), nullable=True),
        sa.Column("last_message_ledger_id", sa.BigInteger(), nullable=True),
        sa.Column("last_message_entry_id", sa.BigInteger(), nullable=True),
        sa.Column("last_message_partition", sa.BigInteger(), nullable=True),
        sa.Column("last_message_batch_index", sa.BigInteger(), nullable=True),
        sa.Column("messages", sa.BigInteger(), nullable=True),
        sa.Column("entries", sa.BigInteger(), nullable=True),
        sa.Column("logical_bytes", sa.BigInteger(), nullable=True),
        sa.Column("min_publish_time", sa.BigInteger(), nullable=True),
        sa.Column("max_publish_time", sa.BigInteger(), nullable=True),
        sa.Column("size", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["topic_id"], ["topics.id"], name=op.f("fk_segments_topic_id_topics")),
        sa.PrimaryKeyConstraint("ledger_id", name=op.f("pk_segments")),
        sa.UniqueConstraint("topic_id", "first_offset", name=op.f("uq_segments_topic_id_first_offset")),
    )
    op.create_index(
        "uq_segments_open",
        "segments",
        ["topic_id"],
        unique=True,
        sqlite_where=sa.text("state = 'OPEN'"),
        postgresql_where=sa.text("state = 'OPEN'"),
    )
    op.create_table(
        "policies",
        sa.Column("scope", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("value", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("scope", "name", name=op.f("pk_policies")),
    )
    op.create_table(
        "cursor_ranges",
        sa.Column("topic_id", BIG_KEY, nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("acknowledged", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["topic_id"], ["topics.id"], name=op.f("fk_cursor_ranges_topic_id_topics")),
        sa.PrimaryKeyConstraint("topic_id", "name", "number", name=op.f("pk_cursor_ranges")),
    )
