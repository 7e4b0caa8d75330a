"""The history before a crash (stages), and the operation that the crash interrupts (scenarios).

Stages and scenarios hold no state and draw nothing, so that any process that runs them does the same. The amounts are
small, with sizes (`tests.workbench.TINY`) at which they still make several ledgers, hash ranges and parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from compactor.maintenance import truncation
from compactor.maintenance.garbage import GarbageCollector
from compactor.maintenance.grace import GRACE_MS
from compactor.maintenance.retention import Retention
from compactor.run.run_policies import run_policies_from_stored
from storage.failpoints import Failpoint
from storage.ledger import names
from storage.log.log_manager import LogManager
from storage.log.segment import SegmentPaths
from storage.metadata.policy_store import topic_scope
from storage.metadata.records import AttemptKind
from storage.reading.compacted_reader import PIN_TTL_MS
from storage.topic import Topic
from tests.entries import batch, single
from tests.workbench import Workbench, content, hashing_alike

TOPIC = "t"
LEDGER_BYTES = 30
"""So few that an import of a handful of messages has several ledgers."""

FIRST = content(*((b"key-%02d" % n, b"first-%02d" % n) for n in range(14)), (None, b"no key"), (b"key-07", None))
SECOND = content((b"key-01", b"second"), (b"key-10", b""), (None, b"no key"), (b"new", b"second"))
THIRD = content((b"key-02", b"third"), (b"key-01", None), (b"key-10", b"back again"), (b"newer", b"third"))
LARGE = content(*((b"key-%02d" % n, np.random.default_rng(n).bytes(1 << 20)) for n in range(12)))
"""Payloads that do not compress: its rows object takes several parts of a multipart upload."""


Pairs = tuple[tuple[bytes | None, bytes | None], ...]
"""Keys and payloads of one entry."""

ENTRIES: tuple[Pairs, ...] = (
    ((b"key-01", b"appended"),),
    ((b"key-02", b"in a batch"), (b"key-03", None), (None, b"no key")),
    ((b"fresh", b"appended"),),
)
"""One segment's entries."""
MORE_ENTRIES: tuple[Pairs, ...] = (((b"key-04", b"in the next segment"),), ((b"fresh", None), (b"key-05", b"")))


def the_topic(bench: Workbench) -> Topic:
    """Its keys hash alike in each run: how many objects a run writes depends on it, and so which steps it comes by."""
    with hashing_alike():
        return bench.topic(TOPIC)


def import_table(bench: Workbench, table: pa.Table, ledger_bytes: int = LEDGER_BYTES) -> None:
    """One import, of several ledgers."""
    the_topic(bench).bulk_append(ledger_bytes=ledger_bytes, workers=2).append([table])


def compact(bench: Workbench) -> None:
    """A run by the policies of the topic, which only the stage `tabled` sets."""
    bench.compactor().compact(the_topic(bench).name, partial(run_policies_from_stored, bench.metadata))


def append(bench: Workbench, *segments: tuple[Pairs, ...], roll: bool = False) -> None:
    """One writer appends entries; between segments, and with `roll` at the end, it rolls."""
    now = bench.clock.now_ms()
    with the_topic(bench).append_log(0) as log:
        for number, entries in enumerate(segments):
            if number:
                log.roll()
            for pairs in entries:
                log.append(single(*pairs[0], now) if len(pairs) == 1 else batch(*pairs, publish_time=now))
        if roll:
            log.roll()


def seal(bench: Workbench) -> None:
    """Every segment that is rolled becomes a ledger."""
    topic = the_topic(bench)
    assert [*topic.log_manager().seal(topic.record)]


def sweep(bench: Workbench) -> None:
    """So late that no file of a sealed segment is needed any more."""
    bench.clock.advance(GRACE_MS + 1)
    assert the_topic(bench).log_manager().remove_sealed_files() == 2


def trim(bench: Workbench) -> None:
    """The topic begins behind its first imports."""
    retention = Retention(bench)
    assert retention.trim(the_topic(bench).record, TRIMMED).plan.candidates


def truncate(bench: Workbench) -> None:
    """The topic is empty, raw and compacted."""
    (truncated,) = truncation.truncate(bench, [the_topic(bench).record])
    assert truncated.start_offset


def delete(bench: Workbench) -> None:
    """The topic is gone; its objects and files are there."""
    bench.metadata.tenancy.delete_topic(the_topic(bench).record.id)


def collect_deleted(bench: Workbench) -> None:
    """Collect the remains of a deleted topic: files, then objects."""
    bench.clock.advance(GRACE_MS + 1)
    assert LogManager(bench, "manager").remove_sealed_files() == 3
    assert sum(item.total.count for item in GarbageCollector(bench).collect_all()) > 2


def read(bench: Workbench) -> None:
    """One reader of the compacted ledger, from the first to the last message, so slow that it has to renew its pin."""
    for _ in the_topic(bench).messages(read_compacted=True):
        bench.clock.advance(PIN_TTL_MS // 2)


def collect_garbage(bench: Workbench) -> None:
    """A collection so late that everything has outlived the grace time."""
    bench.clock.advance(GRACE_MS + 1)
    GarbageCollector(bench).collect(the_topic(bench).record)


def written(bench: Workbench) -> None:
    """Raw messages, never compacted."""
    import_table(bench, FIRST, 8 * LEDGER_BYTES)


def grown(bench: Workbench) -> None:
    """A compacted ledger, and raw messages after its horizon."""
    written(bench)
    compact(bench)
    import_table(bench, SECOND)


def enable_table(bench: Workbench) -> None:
    """The topic has an Iceberg table from now on, of which no older snapshot is kept."""
    values: dict[str, object] = {"table.enabled": True, "table.snapshot.age.ms": 0}
    bench.metadata.policies.change([topic_scope(the_topic(bench).record)], values)


def tabled(bench: Workbench) -> None:
    """A compacted ledger with an Iceberg table, and raw messages after it."""
    enable_table(bench)
    grown(bench)


def littered_with_tables(bench: Workbench) -> None:
    """The stage `littered`, with an Iceberg table of each generation."""
    enable_table(bench)
    littered(bench)


def littered(bench: Workbench) -> None:
    """A generation that serves, one that is retired, and objects of two attempts; one was finished, the other died."""
    grown(bench)
    compact(bench)
    topic = the_topic(bench).record
    for number in range(2):
        dead = bench.metadata.attempts.begin(topic.id, AttemptKind.IMPORT, f"dead-{number}")
        ledger_id = bench.metadata.ledgers.allocate_ids(1)
        bench.store.put(names.ledger_rows(topic.uid, ledger_id, dead.attempt_id), b"left by a dead import")
        bench.store.put(names.ledger_index(topic.uid, ledger_id, dead.attempt_id), b"left by a dead import")
    bench.metadata.attempts.finish(dead.attempt_id)


def tailed(bench: Workbench) -> None:
    """A compacted ledger, ledgers behind it, and a segment whose writer died while it wrote."""
    grown(bench)
    append(bench, ENTRIES)
    topic = the_topic(bench)
    (segment,) = topic.snapshot().segments
    with SegmentPaths(bench.log.topic_folder(topic.record.uid), segment.first_offset).log.open("ab") as file:
        file.write(bytes([0, 0, 0, 99, 1]) + b"torn off in the middle of a frame")


def rolled(bench: Workbench) -> None:
    """A compacted ledger, ledgers behind it, two segments that wait to be sealed, and one that is open."""
    grown(bench)
    append(bench, ENTRIES, MORE_ENTRIES, ENTRIES)


def sealed(bench: Workbench) -> None:
    """Segments have become ledgers, and their files are still there."""
    rolled(bench)
    seal(bench)


def settled(bench: Workbench) -> None:
    """All of it is compacted, and the first ledgers may be trimmed."""
    sealed(bench)
    compact(bench)


def trimmed(bench: Workbench) -> None:
    """Ledgers are marked as deleted, and their rows and objects are still there."""
    settled(bench)
    trim(bench)


def deleted(bench: Workbench) -> None:
    """A topic of compacted ledger, ledgers and segments was deleted; all its objects and files are there."""
    rolled(bench)
    delete(bench)


TRIMMED = len(FIRST)
"""Where the topic begins once it is trimmed: the end of its first imports."""

STAGES: Mapping[str, Callable[[Workbench], None]] = MappingProxyType(
    {
        "written": written,
        "grown": grown,
        "tabled": tabled,
        "littered": littered,
        "littered with tables": littered_with_tables,
        "tailed": tailed,
        "rolled": rolled,
        "sealed": sealed,
        "settled": settled,
        "trimmed": trimmed,
        "deleted": deleted,
    }
)


@dataclass(frozen=True)
class Scenario:
    """An operation. `done_from`: the steps from which on it has taken effect, although no caller has its answer.

    `appended` becomes visible then; `publishes`: a new generation does; `trims`: the topic begins at `TRIMMED`.
    `empties`: nothing of the topic is left then, or another one begins under its name.
    `entries`: what it appends to the log, each entry for itself.
    """

    stage: str
    run: Callable[[Workbench], None]
    done_from: frozenset[Failpoint] = frozenset()
    appended: pa.Table | None = None
    publishes: bool = False
    entries: tuple[Pairs, ...] = ()
    trims: bool = False
    empties: bool = False


_IMPORTED = frozenset(
    {Failpoint.IMPORT_AFTER_COMMIT, Failpoint.IMPORT_ATTEMPT_FINISHED, Failpoint.IMPORT_LEASE_RELEASED}
)
_PUBLISHED = frozenset({Failpoint.PUBLISH_AFTER_COMMIT, Failpoint.RUN_ROW_SETS_CLEANED})

SCENARIOS: Mapping[str, Scenario] = MappingProxyType(
    {
        "import": Scenario("grown", lambda bench: import_table(bench, THIRD), _IMPORTED, THIRD),
        "large import": Scenario("grown", lambda bench: import_table(bench, LARGE, 1 << 30), _IMPORTED, LARGE),
        "first compaction": Scenario("written", compact, _PUBLISHED, publishes=True),
        "second compaction": Scenario("grown", compact, _PUBLISHED, publishes=True),
        "compaction with a table": Scenario("tabled", compact, _PUBLISHED, publishes=True),
        "read": Scenario("grown", read),
        "garbage collection": Scenario("littered", collect_garbage),
        "garbage collection with a table": Scenario("littered with tables", collect_garbage),
        "append": Scenario(
            "grown",
            lambda bench: append(bench, ENTRIES, MORE_ENTRIES, roll=True),
            entries=(*ENTRIES, *MORE_ENTRIES),
        ),
        "append after a crash": Scenario("tailed", lambda bench: append(bench, MORE_ENTRIES), entries=MORE_ENTRIES),
        "import after a segment": Scenario("tailed", lambda bench: import_table(bench, THIRD), _IMPORTED, THIRD),
        "sealing": Scenario("rolled", seal),
        "sweep": Scenario("sealed", sweep),
        "compaction of a tail": Scenario("rolled", compact, _PUBLISHED, publishes=True),
        "trim": Scenario("settled", trim, frozenset({Failpoint.TRIM_MARKED}), trims=True),
        "collection of what was trimmed": Scenario("trimmed", collect_garbage),
        "truncation": Scenario("rolled", truncate, frozenset({Failpoint.TRUNCATED}), empties=True),
        "deletion": Scenario("rolled", delete, frozenset({Failpoint.TOPIC_DELETED}), empties=True),
        "collection of a deleted topic": Scenario("deleted", collect_deleted, frozenset(Failpoint), empties=True),
    }
)
