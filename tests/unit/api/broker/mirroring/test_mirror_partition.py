"""The position that a mirrored partition reports."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from api.broker.mirroring.partition import MirrorTotals, PartitionMirror
from api.broker.mirroring.protocol import FetchedPartition
from api.formats.inputs import EmptyValues
from storage.metadata.mirrors import LeaderEpoch, MirrorProgress
from tests.clocks import ManualClock


def test_a_session_that_read_nothing_reports_what_earlier_ones_read() -> None:
    """Its log ends before the end of a transaction that an earlier session read."""

    async def store_epochs(_: Sequence[LeaderEpoch]) -> None:
        raise AssertionError("nothing is stored")

    loop = asyncio.new_event_loop()
    try:
        partition = PartitionMirror(
            "users-0",
            "p",
            cast(Any, None),
            5,
            (),
            store_epochs,
            1,
            EmptyValues.DELETE,
            loop,
            ManualClock(0),
            MirrorTotals(),
        )
        partition.read_before = 8
        partition.update_source_ends(FetchedPartition(0, 1, 8, 8, -1, (), b"", None))
        assert partition.progress() == MirrorProgress(8, 8, 0)
    finally:
        loop.close()
