"""An index of the topics that are requested to roll: every writer polls them five times a second."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    condition = sa.text("roll_requested_at IS NOT NULL")
    op.create_index(
        "ix_topics_roll_requested",
        "topics",
        ["roll_requested_at"],
        sqlite_where=condition,
        postgresql_where=condition,
    )


def downgrade() -> None:
    op.drop_index("ix_topics_roll_requested", "topics")
