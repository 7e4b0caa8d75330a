"""Queues of topics with work, and notes of a leader for its successors.

An older version wrote no queue: each existing topic is queued, and the first check settles those without work.
storage/metadata/tables.py describes the tables.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "topic_work",
        sa.Column("topic_id", KEY, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("due_at", sa.BigInteger(), nullable=False),
        sa.Column("changes", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["topic_id"], ["topics.id"], name="fk_topic_work_topic_id_topics"),
        sa.PrimaryKeyConstraint("topic_id", "kind", name="pk_topic_work"),
    )
    op.create_index("ix_topic_work_kind_due_at", "topic_work", ["kind", "due_at"])
    op.create_table(
        "leader_notes",
        sa.Column("name", sa.String(32), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_leader_notes"),
    )
    op.execute("INSERT INTO topic_work (topic_id, kind, due_at, changes) SELECT id, 'compact', 0, 0 FROM topics")


def downgrade() -> None:
    op.drop_table("leader_notes")
    op.drop_table("topic_work")
