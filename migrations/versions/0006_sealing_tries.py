"""The number of sealing tries of a segment: a segment that kills its sealers is not tried for ever.

storage/metadata/tables.py describes the column.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("segments", sa.Column("sealing_tries", sa.BigInteger(), nullable=False, server_default="0"))
