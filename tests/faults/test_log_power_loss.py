"""A power loss at any moment of a log's life: what was flushed is there, what was not is whole entries or nothing.

What is behind the last flush of a segment's file may be gone, cut anywhere, zeros or nonsense; the files that help
(high watermark, index) may be gone, or be as new as they were. The database is what it was: SQLite looks after itself.
And the other way round: with the flush taken out, the same check finds messages lost.
"""

from __future__ import annotations

import os
import random
import sqlite3
import stat
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from storage.failpoints import Failpoint
from storage.ledger.names import STORE_UID
from storage.log.directory import LogDirectory
from storage.metadata.liveness import LEASE_TTL_MS
from storage.metadata.policy_store import topic_scope
from storage.metadata.store import MetadataStore
from storage.objects.registry import open_store
from tests.clocks import ManualClock
from tests.entries import batch, produce, single
from tests.failpoint_listeners import observed
from tests.faults.power_loss import Keeps, PowerLoss
from tests.workbench import Workbench, raw

PAIRS = [[(b"key", b"%d.%d" % (n, index)) for index in range(1 + n % 3 % 2 * 2)] for n in range(6)]
"""Of each entry: one message, or three."""
ROLLED_AFTER = (2, 5)


def _nothing_more(path: Path, durable: bytes | None, now: bytes) -> bytes | None:
    return durable


def _aids_as_new(path: Path, durable: bytes | None, now: bytes) -> bytes | None:
    return durable if path.suffix == ".log" else now


def _torn(path: Path, durable: bytes | None, now: bytes) -> bytes | None:
    if path.suffix != ".log" or durable is None:
        return durable
    behind = now[len(durable) :]
    return durable + behind[: len(behind) // 2]


def _zeros(path: Path, durable: bytes | None, now: bytes) -> bytes | None:
    if path.suffix != ".log" or durable is None:
        return _aids_as_new(path, durable, now)
    return durable.ljust(len(now) + 4096, b"\x00")


def _nonsense(path: Path, durable: bytes | None, now: bytes) -> bytes | None:
    if durable is None:
        return random.Random(len(now)).randbytes(len(now))
    return durable if path.suffix != ".log" else durable + random.Random(len(now)).randbytes(300)


KINDS = (_nothing_more, _torn, _aids_as_new, _zeros, _nonsense)
FLUSHED_EACH = (_nothing_more, _torn)
"""The kinds that CI tries with a flush every append; it tries the others with a flush now and then."""


def _kinds(in_ci: Callable[[Keeps], bool]) -> list[object]:
    return [pytest.param(keeps, marks=() if in_ci(keeps) else pytest.mark.soak) for keeps in KINDS]


def losses(
    folder: Path, keeps: Keeps, flush_messages: int = 1, loses: Callable[[os.stat_result], bool] = lambda status: False
) -> list[str]:
    """Append PAIRS, rolling now and then, with a power loss at every step and after each; what was found lost."""
    bench = Workbench.embedded(folder)
    topic = bench.topic()
    bench.metadata.policies.change([topic_scope(topic.record)], {"flush.messages": flush_messages})
    problems: list[str] = []
    images = count()
    (folder / "images").mkdir()
    flushed = acknowledged = 0
    looking = False
    with PowerLoss(folder / "log", loses) as power:

        def look(step: Failpoint | None) -> None:
            nonlocal flushed, looking
            if looking:
                return  # what is done to an image comes by steps, too
            if step in (Failpoint.ENTRIES_FLUSHED, Failpoint.ROLL_FLUSHED):
                flushed = acknowledged
            expected_totals = acknowledged if flush_messages == 1 else flushed
            image = folder / "images" / f"image-{next(images)}"
            looking = True
            problems.extend(_lost(bench, power.image(image, keeps), image, expected_totals, acknowledged))
            looking = False

        with observed(look), topic.append_log(0) as log:
            for n, pairs in enumerate(PAIRS):
                log.append(single(*pairs[0]) if len(pairs) == 1 else batch(*pairs))
                acknowledged = n + 1
                look(None)
                if acknowledged in ROLLED_AFTER:
                    log.roll()
    bench.metadata.close()
    assert next(images) > 2 * len(PAIRS)
    return problems


def _lost(bench: Workbench, log: Path, image: Path, expected_totals: int, acknowledged: int) -> list[str]:
    """Append to the image and read it. Return a text that describes a lost entry or an error; empty: there is none."""
    database = image.with_suffix(".db")
    with sqlite3.connect(bench.metadata.database.engine.url.database or "") as now, sqlite3.connect(database) as copy:
        now.backup(copy)
    now.close()
    copy.close()
    clock = ManualClock(bench.clock.now_ms() + LEASE_TTL_MS + 1)
    metadata = MetadataStore(f"sqlite:///{database}", clock)
    store = open_store(image.with_suffix(".objects").as_uri())
    store.put(STORE_UID, bench.store.get(STORE_UID))
    after = replace(bench, metadata=metadata, clock=clock, log=LogDirectory(log), store=store)
    try:
        with after.topic().append_log(0) as writer:
            writer.append(single(b"after", b"the power came back"))
        delivered = raw(after.topic())
        after.topic().log_manager().roll_and_seal(after.topic().record)
        assert raw(after.topic()) == delivered
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    finally:
        metadata.close()
    assert [message.offset for message in delivered] == list(range(len(delivered)))
    texts = [message.payload for message in delivered[:-1]]
    whole = [[payload for pairs in PAIRS[:n] for _, payload in pairs] for n in range(expected_totals, acknowledged + 2)]
    return [] if texts in whole else [f"of {expected_totals} to {acknowledged} entries {texts} are left"]


@pytest.mark.slow
@pytest.mark.parametrize("keeps", _kinds(lambda keeps: keeps in FLUSHED_EACH))
def test_nothing_acknowledged_is_lost_when_every_append_is_flushed(tmp_path: Path, keeps: Keeps) -> None:
    assert losses(tmp_path, keeps) == []


@pytest.mark.slow
@pytest.mark.parametrize("keeps", _kinds(lambda keeps: keeps not in FLUSHED_EACH))
def test_no_more_than_since_the_last_flush_is_lost_otherwise(tmp_path: Path, keeps: Keeps) -> None:
    assert losses(tmp_path, keeps, flush_messages=4) == []


@pytest.mark.slow
def test_without_the_flush_messages_are_lost(tmp_path: Path) -> None:
    header: set[int] = set()

    def of_appends(status: os.stat_result) -> bool:
        """The first fsync of a file is that of its header."""
        first = status.st_ino not in header
        header.add(status.st_ino)
        return stat.S_ISREG(status.st_mode) and not first

    assert losses(tmp_path, _nothing_more, loses=of_appends)


def test_without_the_fsync_of_folders_the_log_is_lost(tmp_path: Path) -> None:
    assert losses(tmp_path, _nothing_more, loses=lambda status: stat.S_ISDIR(status.st_mode))


def test_the_directory_of_the_log_is_durable_before_anything_in_it_counts(tmp_path: Path) -> None:
    """No other code syncs the folder in which it is created."""
    bench = Workbench.embedded(tmp_path)
    topic = bench.topic()
    with PowerLoss(tmp_path / "log") as power:
        produce(topic, [single(b"a", b"1")])
        image = power.image(tmp_path / "image")
    assert {path.suffix for path in image.rglob("*") if path.is_file()} == {".uid", ".log"}
    bench.metadata.close()
