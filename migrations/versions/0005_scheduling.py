"""Scheduling: requests, pauses and failures of a topic's compaction, the live services, and their leader.

storage/metadata/tables.py describes the tables and columns.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

BIG_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("runs", sa.Column("cause", sa.String(), nullable=False, server_default=""))
    op.create_table(
        "controls",
        sa.Column("topic_id", BIG_KEY, nullable=False),
        sa.Column("requested_at", sa.BigInteger(), nullable=True),
        sa.Column("requested_by", sa.String(), nullable=False, server_default=""),
        sa.Column("cause", sa.String(), nullable=False, server_default=""),
        sa.Column("paused", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("aborting_run_id", sa.BigInteger(), nullable=True),
        sa.Column("failures", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("retry_at", sa.BigInteger(), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=False, server_default=""),
        sa.ForeignKeyConstraint(["topic_id"], ["topics.id"], name=op.f("fk_controls_topic_id_topics")),
        sa.PrimaryKeyConstraint("topic_id", name=op.f("pk_controls")),
    )
    op.create_index(op.f("ix_controls_requested_at"), "controls", ["requested_at"], unique=False)
    op.create_table(
        "services",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("url", sa.String(), nullable=False),
        sa.Column("log_uid", sa.String(length=32), nullable=True),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("heartbeat_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_services")),
    )
    op.create_table(
        "leadership",
        sa.Column("role", sa.String(length=32), nullable=False),
        sa.Column("holder", sa.String(), nullable=True),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("role", name=op.f("pk_leadership")),
    )
    leadership = sa.table("leadership", *map(sa.column, ("role", "holder", "token", "expires_at")))
    op.bulk_insert(leadership, [{"role": "scheduler", "holder": None, "token": 0, "expires_at": 0}])
