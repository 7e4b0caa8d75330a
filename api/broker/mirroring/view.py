"""Counts of the mirrors of this service, for metrics and responses: empty until the service mirrors something."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from storage.model import TopicName


@dataclass(frozen=True)
class MirrorCounts:
    """Counts of a mirror since the service started. `lag`: offsets that are not mirrored yet, of the partitions that
    this service mirrors now; None: it mirrors none."""

    topic: TopicName
    lag: int | None
    records: int
    bytes: int
    errors: int


@dataclass
class MirrorsView:
    """Access to the counts of the mirrors of this service. `counts`: returns an item for each topic of which this
    service has mirrored records. For any thread."""

    counts: Callable[[], Sequence[MirrorCounts]] = lambda: ()
