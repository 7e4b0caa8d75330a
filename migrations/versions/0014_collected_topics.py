"""When all objects of a deleted topic were collected, so that only the others are listed.

Of topics that were deleted before, the next scrub of the store deletes what is left.
storage/metadata/tables.py describes the column.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("deleted_topics", sa.Column("collected_at", sa.BigInteger(), nullable=True))
    op.execute("UPDATE deleted_topics SET collected_at = deleted_at")
    condition = sa.text("collected_at IS NULL")
    op.create_index(
        "ix_deleted_topics_uncollected",
        "deleted_topics",
        ["deleted_at"],
        sqlite_where=condition,
        postgresql_where=condition,
    )


def downgrade() -> None:
    op.drop_index("ix_deleted_topics_uncollected", "deleted_topics")
    op.drop_column("deleted_topics", "collected_at")
