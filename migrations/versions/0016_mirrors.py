"""Mirrors of Kafka's topics, and what is known of their partitions.

storage/metadata/tables.py describes the tables.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "mirrors",
        sa.Column("topic", sa.String(), nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("cluster_id", sa.String(), nullable=False),
        sa.Column("source_topic_id", sa.String(32), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("changed_at", sa.BigInteger(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("error_detail", sa.Text(), server_default="", nullable=False),
        sa.Column("error_advice", sa.JSON(none_as_null=True), nullable=True),
        sa.PrimaryKeyConstraint("topic", name=op.f("pk_mirrors")),
    )
    op.create_table(
        "mirror_partitions",
        sa.Column("topic", sa.String(), nullable=False),
        sa.Column("partition", sa.BigInteger(), nullable=False),
        sa.Column("start_offset", sa.BigInteger(), nullable=True),
        sa.Column("gap_end", sa.BigInteger(), nullable=True),
        sa.Column("next_offset", sa.BigInteger(), nullable=True),
        sa.Column("end_offset", sa.BigInteger(), nullable=True),
        sa.Column("records_per_second", sa.BigInteger(), nullable=True),
        sa.Column("reported_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("topic", "partition", name=op.f("pk_mirror_partitions")),
    )


def downgrade() -> None:
    op.drop_table("mirror_partitions")
    op.drop_table("mirrors")
