"""Support for Pulsar's own clients: URLs of services for their protocol, schemas, sequence ids of producers.

storage/metadata/tables.py describes the columns.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("services", sa.Column("broker_service_url", sa.String(), nullable=True))
    op.create_table(
        "producer_sequences",
        sa.Column("topic_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("end_offset", sa.BigInteger(), nullable=False),
        sa.Column("highest", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["topic_id"], ["topics.id"], name=op.f("fk_producer_sequences_topic_id_topics")),
        sa.PrimaryKeyConstraint("topic_id", name=op.f("pk_producer_sequences")),
    )
    op.create_table(
        "schemas",
        sa.Column("topic", sa.String(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("type", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("properties", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("topic", "version", name=op.f("pk_schemas")),
    )
