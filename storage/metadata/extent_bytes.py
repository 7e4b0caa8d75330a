"""Bytes of a part of a ledger or segment, in SQL, as `compactor/maintenance/backlog_limits.py` computes them.

Must not know: topics, cursors, horizons.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, case, literal


def bytes_after(extents: Any, offset: ColumnElement[int]) -> ColumnElement[int]:
    """Return an SQL expression: the logical bytes of an extent after `offset`, which must be before its end.

    All messages of an extent count as equally large. `extents`: columns of ledgers or segments.
    """
    first, last, size = extents.first_offset, extents.last_offset, extents.logical_bytes
    return case((first <= offset, size * (last - offset) // (last - first + literal(1))), else_=size)
