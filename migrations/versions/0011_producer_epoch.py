"""The epoch of a topic's exclusive producers: it outlives the process that serves the topic.

storage/metadata/tables.py describes the column.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("topics", sa.Column("producer_epoch", sa.BigInteger(), nullable=True))
