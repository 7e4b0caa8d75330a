"""The mirrors of this service, as metrics and answers see them: empty until the service mirrors something."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from storage.model import TopicName


@dataclass(frozen=True)
class MirrorCounts:
    """Counts of a topic that this service mirrors. `lag`: of the partitions that it mirrors now; None: of none."""

    topic: TopicName
    lag: int | None
    records: int
    bytes: int
    errors: int


@dataclass
class MirrorsView:
    """`counts` returns those of each topic of which this service has mirrored something. For any thread."""

    counts: Callable[[], Sequence[MirrorCounts]] = lambda: ()
