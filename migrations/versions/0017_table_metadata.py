"""The metadata of a topic's Iceberg table, beside the manifest of the compacted ledger that it shows.

storage/metadata/tables.py describes the columns.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("compacted_ledgers", sa.Column("table_metadata_name", sa.String(), nullable=True))
    op.add_column("compacted_ledgers", sa.Column("table_metadata_size", sa.BigInteger(), nullable=True))
    op.add_column("compacted_ledgers", sa.Column("table_metadata_crc32c", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    for name in ("table_metadata_crc32c", "table_metadata_size", "table_metadata_name"):
        op.drop_column("compacted_ledgers", name)
