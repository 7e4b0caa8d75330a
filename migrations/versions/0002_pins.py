"""Pins of readers on compacted ledgers, until a time.

storage/metadata/tables.py describes the table. The state CANCELLED of a run needs no change: states are
text.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

BIG_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "pins",
        sa.Column("pin_id", sa.String(length=32), nullable=False),
        sa.Column("topic_id", BIG_KEY, nullable=False),
        sa.Column("ledger_id", BIG_KEY, nullable=False),
        sa.Column("holder", sa.String(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["ledger_id"], ["compacted_ledgers.ledger_id"], name=op.f("fk_pins_ledger_id_compacted_ledgers")
        ),
        sa.ForeignKeyConstraint(["topic_id"], ["topics.id"], name=op.f("fk_pins_topic_id_topics")),
        sa.PrimaryKeyConstraint("pin_id", name=op.f("pk_pins")),
    )
    op.create_index(op.f("ix_pins_topic_id"), "pins", ["topic_id"], unique=False)
    op.create_index(op.f("ix_pins_ledger_id"), "pins", ["ledger_id"], unique=False)
