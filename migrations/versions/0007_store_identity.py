"""The identity of the object store that the database uses.

storage/metadata/tables.py describes the columns.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "store_bindings",
        sa.Column("role", sa.String(length=32), nullable=False),
        sa.Column("uid", sa.String(length=32), nullable=False),
        sa.Column("url", sa.String(), nullable=False),
        sa.Column("bound_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("role", name=op.f("pk_store_bindings")),
    )
