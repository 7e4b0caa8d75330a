"""Arrow arrays of values that are slices of one buffer: decoders locate fields by number, and Arrow copies the bytes.

Must not know: the meaning of the buffer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

I64 = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Spans(NamedTuple):
    """The positions and sizes of values, shape (n,); `null`: a mask of the nulls, None: there are none.

    The size of a null may be negative.
    """

    positions: I64
    sizes: I64
    null: Flags | None = None


def slices(data: pa.Buffer, end: int, data_type: pa.DataType, *spans: Spans) -> list[pa.Array]:
    """Return an array of the values of `data` at each of `spans`. `end`: the end of the values in `data`, below 2³¹.

    The bytes of a value follow those of the same row in the span before, and those of a row follow the row before.
    """
    width = 2 * len(spans)
    count = len(spans[0].positions)
    edges = np.empty(count * width + 1, np.int32)
    for number, (positions, sizes, _) in enumerate(spans):
        edges[2 * number : -1 : width] = positions
        edges[2 * number + 1 : -1 : width] = positions + np.maximum(sizes, 0)
    edges[-1] = end
    whole = pa.Array.from_buffers(data_type, count * width, [None, pa.py_buffer(edges), data])
    chosen = np.arange(0, count * width, width)
    return [
        whole.take(pa.array(chosen + 2 * number, mask=null if null is not None and null.any() else None))
        for number, (_, _, null) in enumerate(spans)
    ]
