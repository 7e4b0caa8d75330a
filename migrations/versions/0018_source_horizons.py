"""The position of a compacted ledger's horizon at the source cluster of a replicated topic.

storage/metadata/tables.py describes the columns.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("compacted_ledgers", sa.Column("source_horizon_ledger_id", sa.BigInteger(), nullable=True))
    op.add_column("compacted_ledgers", sa.Column("source_horizon_entry_id", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    for name in ("source_horizon_entry_id", "source_horizon_ledger_id"):
        op.drop_column("compacted_ledgers", name)
