"""The positions up to which a topic is replicated from other clusters, beside the sequence ids of its producers.

storage/metadata/tables.py describes the column.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("producer_sequences", sa.Column("sources", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    op.execute("DELETE FROM producer_sequences WHERE CAST(highest AS TEXT) = 'null'")
    op.drop_column("producer_sequences", "sources")
