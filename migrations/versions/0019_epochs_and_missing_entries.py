"""The epochs of leaders in Kafka of mirrored partitions, and the entries of source clusters that a restored log lacks.

storage/metadata/tables.py describes the columns.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("mirror_partitions", sa.Column("epochs", sa.JSON(none_as_null=True), nullable=True))
    op.add_column("producer_sequences", sa.Column("missing", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    op.drop_column("producer_sequences", "missing")
    op.drop_column("mirror_partitions", "epochs")
