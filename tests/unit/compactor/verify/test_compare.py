"""Rows by their offsets, whatever a damaged ledger holds."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from compactor.verify.compare import RowsByOffset


def test_rows_are_found_where_offsets_do_not_ascend() -> None:
    """A ledger with such rows is named for it; that they are missing would be false."""
    rows = object.__new__(RowsByOffset)
    rows._group = (0, pa.table({"offset": pa.array([7, 3, 5], pa.int64())}))
    found, table = rows.rows(0, np.array([2, 3, 7, 9]))
    assert found.tolist() == [1, 2]
    assert table.column("offset").to_pylist() == [3, 7]
