"""URLs of services for Pulsar's protocol with TLS: a lookup at one service returns the port of another.

storage/metadata/tables.py describes the column.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("services", sa.Column("broker_service_url_tls", sa.String(), nullable=True))
