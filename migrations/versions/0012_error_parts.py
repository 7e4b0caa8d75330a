"""The detail and the advice of an error in columns of their own, for runs, compaction control and a run's `tail_left`.

Before, one text held the summary and, after a separator, the detail. storage/errors.py describes the parts.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

SEPARATOR = "\nin full: "
COLUMNS = (("runs", "run_id", "error"), ("controls", "topic_id", "last_error"))
RUNS = sa.table("runs", sa.column("run_id"), sa.column("statistics", sa.JSON()))
WITH_TAIL = sa.cast(RUNS.c.statistics, sa.Text()).contains('"tail_left"')


def upgrade() -> None:
    connection = op.get_bind()
    for table_name, key, name in COLUMNS:
        op.add_column(table_name, sa.Column(f"{name}_detail", sa.Text(), nullable=False, server_default=""))
        op.add_column(table_name, sa.Column(f"{name}_advice", sa.JSON(), nullable=True))
        table = sa.table(table_name, *map(sa.column, (key, name, f"{name}_detail")))
        joined = sa.select(table.c[key], table.c[name]).where(table.c[name].contains(SEPARATOR))
        for row_id, text in connection.execute(joined).all():
            connection.execute(sa.update(table).where(table.c[key] == row_id).values(split(name, text)))
    for run_id, statistics in connection.execute(sa.select(RUNS).where(WITH_TAIL)).all():
        change_statistics(run_id, statistics | split("tail_left", statistics["tail_left"]))


def downgrade() -> None:
    connection = op.get_bind()
    for run_id, statistics in connection.execute(sa.select(RUNS).where(WITH_TAIL)).all():
        summary, detail = statistics["tail_left"], statistics.pop("tail_left_detail", "")
        statistics.pop("tail_left_advice", None)
        change_statistics(run_id, statistics | {"tail_left": f"{summary}{SEPARATOR}{detail}" if detail else summary})
    for table_name, _, name in COLUMNS:
        table = sa.table(table_name, *map(sa.column, (name, f"{name}_detail")))
        detail = table.c[f"{name}_detail"]
        connection.execute(sa.update(table).where(detail != "").values({name: table.c[name] + SEPARATOR + detail}))
        op.drop_column(table_name, f"{name}_advice")
        op.drop_column(table_name, f"{name}_detail")


def split(name: str, text: str) -> dict[str, Any]:
    """Return the parts of a stored error. An old text has no advice as data: the detail contains it."""
    summary, _, detail = text.partition(SEPARATOR)
    return {name: summary, f"{name}_detail": detail}


def change_statistics(run_id: int, statistics: dict[str, Any]) -> None:
    op.get_bind().execute(sa.update(RUNS).where(RUNS.c.run_id == run_id).values(statistics=statistics))
