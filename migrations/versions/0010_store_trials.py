"""Locations of object stores that passed their trial, so that a service tries a store once.

storage/metadata/tables.py describes the columns.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "store_trials",
        sa.Column("location", sa.String(), nullable=False),
        sa.Column("passed_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("location", name=op.f("pk_store_trials")),
    )
