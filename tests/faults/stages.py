"""What has happened before a crash (stages), and what is going on when it comes (scenarios).

Stages and scenarios hold no state and draw nothing, so that any process that runs them does the same. The amounts are
small, with sizes (`tests.workbench.TINY`) at which they still make several ledgers, hash ranges and parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from compactor.garbage import GRACE_MS, GarbageCollector
from compactor.plan import Policies
from storage.ledger import names
from storage.metadata.records import AttemptKind
from storage.pinned_read import TERM_MS
from storage.steps import Step
from storage.topic import Topic
from tests.clocks import ManualClock
from tests.workbench import Workbench, content

TOPIC = "t"
LEDGER_BYTES = 30
"""So few that an import of a handful of messages has several ledgers."""

FIRST = content(*((b"key-%02d" % n, b"first-%02d" % n) for n in range(14)), (None, b"no key"), (b"key-07", None))
SECOND = content((b"key-01", b"second"), (b"key-10", b""), (None, b"no key"), (b"new", b"second"))
THIRD = content((b"key-02", b"third"), (b"key-01", None), (b"key-10", b"back again"), (b"newer", b"third"))
LARGE = content(*((b"key-%02d" % n, np.random.default_rng(n).bytes(1 << 20)) for n in range(12)))
"""Payloads that do not compress: its rows object takes several parts of a multipart upload."""


def the_topic(bench: Workbench) -> Topic:
    return bench.topic(TOPIC)


def import_table(bench: Workbench, table: pa.Table, ledger_bytes: int = LEDGER_BYTES) -> None:
    """One import, of several ledgers."""
    the_topic(bench).bulk_append(ledger_bytes=ledger_bytes, workers=2).append([table])


def compact(bench: Workbench) -> None:
    bench.compactor().compact(the_topic(bench).name, Policies())


def read(bench: Workbench) -> None:
    """One reader of the compacted ledger, from the first to the last message, so slow that it has to renew its pin."""
    assert isinstance(bench.clock, ManualClock)
    for _ in the_topic(bench).messages(read_compacted=True):
        bench.clock.advance(TERM_MS // 2)


def collect_garbage(bench: Workbench) -> None:
    """A collection so late that everything has outlived the grace time."""
    assert isinstance(bench.clock, ManualClock)
    bench.clock.advance(GRACE_MS + 1)
    GarbageCollector(bench.metadata, bench.store, bench.clock).collect(the_topic(bench).record)


def written(bench: Workbench) -> None:
    """Raw messages, never compacted."""
    import_table(bench, FIRST, 8 * LEDGER_BYTES)


def grown(bench: Workbench) -> None:
    """A compacted ledger, and raw messages after its horizon."""
    written(bench)
    compact(bench)
    import_table(bench, SECOND)


def littered(bench: Workbench) -> None:
    """A generation that serves, one that is retired, and objects of two attempts; one was finished, the other died."""
    grown(bench)
    compact(bench)
    topic = the_topic(bench).record
    for number in range(2):
        dead = bench.metadata.begin_attempt(topic.id, AttemptKind.IMPORT, f"dead-{number}")
        ledger_id = bench.metadata.allocate_ledger_ids(1)
        bench.store.put(names.ledger_rows(topic.uid, ledger_id, dead.attempt_id), b"left by a dead import")
        bench.store.put(names.ledger_index(topic.uid, ledger_id, dead.attempt_id), b"left by a dead import")
    bench.metadata.finish_attempt(dead.attempt_id)


STAGES: Mapping[str, Callable[[Workbench], None]] = MappingProxyType(
    {"written": written, "grown": grown, "littered": littered}
)


@dataclass(frozen=True)
class Scenario:
    """What is going on. `done_from`: the steps from which on it has taken effect, all of it, though nobody was told.

    `appended` becomes visible then; `publishes`: a new generation does.
    """

    stage: str
    run: Callable[[Workbench], None]
    done_from: frozenset[Step] = frozenset()
    appended: pa.Table | None = None
    publishes: bool = False


_IMPORTED = frozenset({Step.IMPORT_AFTER_COMMIT, Step.IMPORT_ATTEMPT_FINISHED, Step.IMPORT_LEASE_RELEASED})
_PUBLISHED = frozenset({Step.PUBLISH_AFTER_COMMIT, Step.RUN_ROW_SETS_CLEANED})

SCENARIOS: Mapping[str, Scenario] = MappingProxyType(
    {
        "import": Scenario("grown", lambda bench: import_table(bench, THIRD), _IMPORTED, THIRD),
        "large import": Scenario("grown", lambda bench: import_table(bench, LARGE, 1 << 30), _IMPORTED, LARGE),
        "first compaction": Scenario("written", compact, _PUBLISHED, publishes=True),
        "second compaction": Scenario("grown", compact, _PUBLISHED, publishes=True),
        "read": Scenario("grown", read),
        "garbage collection": Scenario("littered", collect_garbage),
    }
)
