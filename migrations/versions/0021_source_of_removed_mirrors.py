"""The id in Kafka of the topic that a partitioned topic mirrored before its mirror was removed.

storage/metadata/tables.py describes the column.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("partitioned_topics", sa.Column("removed_source_topic_id", sa.String(32), nullable=True))


def downgrade() -> None:
    op.drop_column("partitioned_topics", "removed_source_topic_id")
