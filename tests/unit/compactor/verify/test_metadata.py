"""The metadata stage: rows of the database against each other and against the manifest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from compactor.verify.findings import DifferenceKind, Findings
from compactor.verify.metadata import check_metadata
from storage.ledger.key_index import HashRange, IndexDirectory
from storage.ledger.manifest import Manifest
from storage.metadata.records import (
    COMPACTED_LEDGER_PROPERTY,
    CompactedLedgerRecord,
    CursorRecord,
    RunRecord,
    RunState,
    TopicRecord,
    TopicSnapshot,
)
from storage.model import IndexLocation, LogPosition, MessageId, StoredObject, TopicName
from tests.unit.compactor.verify.records import ledger, manifest

HORIZON = LogPosition(4, MessageId(1, 4))
TOPIC = TopicRecord(1, "uid", TopicName.parse("t"), 0, 1, 1, 10, 0)
ROW = CompactedLedgerRecord(9, 1, HORIZON, StoredObject("manifest", 0, 0), 0, 0, 0, None, "a", 0)
CURSOR = CursorRecord("__compaction", HORIZON, {COMPACTED_LEDGER_PROPERTY: "9"})
RUN = RunRecord(1, 1, "a", "owner", 1, RunState.SUCCESS, "", {}, 0, 0, horizon=HORIZON, compacted_ledger_id=9)
LEDGERS = (ledger(0, 4, ledger_id=1), ledger(5, 9, ledger_id=2))
MANIFEST = replace(manifest(4), topic=str(TOPIC.name), topic_uid="uid", horizon=HORIZON)


def snapshot(**fields: Any) -> TopicSnapshot:
    return TopicSnapshot(
        **{"topic": TOPIC, "ledgers": LEDGERS, "cursor": CURSOR, "compacted": ROW, "last_run": RUN} | fields
    )


def differences(rows: TopicSnapshot, record: Manifest | None = MANIFEST, run: RunRecord | None = RUN) -> list[str]:
    findings = Findings(limit=9)
    check_metadata(rows, record, [run] if run else [], findings)
    assert len(findings.named) == sum(findings.counts.values())
    return [f"{difference.where}: {difference.what}" for difference in findings.named]


def test_rows_that_agree_have_no_difference() -> None:
    assert differences(snapshot()) == []
    assert differences(snapshot(compacted=None, cursor=None), record=None, run=None) == []
    assert differences(snapshot(ledgers=LEDGERS[1:])) == []
    assert differences(snapshot(ledgers=(), topic=replace(TOPIC, next_offset=5))) == []


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (snapshot(ledgers=(ledger(0, 4, ledger_id=2), ledger(5, 9, ledger_id=1))), "it does not follow ledger 2"),
        (snapshot(ledgers=(ledger(0, 5, ledger_id=1), ledger(5, 9, ledger_id=2))), "it does not follow ledger 1"),
        (snapshot(topic=replace(TOPIC, next_offset=11)), "next_offset is 11, its ledgers and rolled segments end at 9"),
        (snapshot(topic=replace(TOPIC, generation=2)), "generation is 1, not 2"),
        (snapshot(cursor=replace(CURSOR, mark_delete=None)), "mark_delete is None, not"),
        (snapshot(cursor=replace(CURSOR, properties={})), f"{COMPACTED_LEDGER_PROPERTY} is None, not 9"),
        (snapshot(cursor=None), "mark_delete is None, not"),
        (snapshot(ledgers=(ledger(0, 9, ledger_id=1),)), "the horizon 4 is inside ledger 1"),
        (
            snapshot(ledgers=(LEDGERS[0], ledger(7, 9, ledger_id=2))),
            "offsets 5 to 6, after the horizon, are in no ledger",
        ),
    ],
)
def test_each_contradiction_among_the_rows_is_a_difference(rows: TopicSnapshot, text: str) -> None:
    assert text in " | ".join(differences(rows))


def test_offsets_below_the_start_of_the_topic_are_not_missing() -> None:
    rows = snapshot(ledgers=(LEDGERS[0], ledger(7, 9, ledger_id=2)), topic=replace(TOPIC, start_offset=7))
    assert differences(rows) == []


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (replace(MANIFEST, generation=2), "generation is 1, not 2"),
        (replace(MANIFEST, topic_uid="another"), "topic_uid is another, not uid"),
        (replace(MANIFEST, dropped_to=5), "dropped_to 5 is above the horizon"),
        (replace(MANIFEST, frozen_at=3), "frozen_at is 3, not 0"),
        (replace(MANIFEST, policies={"key_ttl_ms": 1}), "policies is {'key_ttl_ms': 1}, not {}"),
        (replace(MANIFEST, run_id=2), "run 2, which published it, is not in the database"),
    ],
)
def test_each_contradiction_of_the_manifest_is_a_difference(record: Manifest, text: str) -> None:
    assert text in " | ".join(differences(snapshot(), record))


def test_a_failed_run_cannot_have_published_the_manifest() -> None:
    assert "row of run 1" in " | ".join(differences(snapshot(), run=replace(RUN, state=RunState.ERROR)))


@pytest.mark.parametrize(("prefixes", "count"), [((0, 1), 0), ((1, 0), 1), ((0, 0), 1)])
def test_the_indexes_of_a_level_must_ascend_without_overlap(prefixes: tuple[int, int], count: int) -> None:
    directories = (IndexDirectory(HashRange(prefix, 1), (0,), (0,)) for prefix in prefixes)
    level = tuple(IndexLocation("index", 0, 0, directory.encode()) for directory in directories)
    named = differences(snapshot(), replace(MANIFEST, index=(level,)))
    assert [text for text in named if "overlap or do not ascend" in text] == named
    assert len(named) == count


def test_an_undecodable_directory_is_damage_of_the_manifest() -> None:
    findings = Findings(limit=9)
    level = (IndexLocation("index", 0, 0, b"no directory"),)
    check_metadata(snapshot(), replace(MANIFEST, index=(level,)), [RUN], findings)
    assert [(each.kind, each.where) for each in findings.named] == [(DifferenceKind.DAMAGED, "manifest")]
