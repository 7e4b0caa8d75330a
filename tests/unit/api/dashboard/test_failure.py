"""The failure of a topic's compaction: what happened, the effect, and the steps, once for all its errors."""

from __future__ import annotations

from api.dashboard.failure import topic_failure
from storage.errors import ObjectMissing, Unavailable
from storage.model import TopicName

NAME = TopicName.parse("persistent://a/b/c")
MISSING = "object topics/x/1.json does not exist in file:///store: check that COMPACTOR_STORE is the store"
LOST = ObjectMissing("object topics/x/1.json does not exist in file:///store", "restore it")


def test_a_lost_manifest_and_the_run_that_failed_by_it_are_one_failure() -> None:
    error = f"the compacted ledger 7 of persistent://a/b/c cannot be read: {MISSING}"
    result = topic_failure(NAME, error, 7, MISSING, LOST, is_raw_whole=True)
    assert result is not None
    assert result.what == "The compacted ledger 7 cannot be read: its manifest is not in the object store."
    assert "Raw reads, producers and subscriptions go on." in result.effect
    assert [step.split(",")[0][:26] for step in result.steps] == [
        "Check that the setting sto", "If it does", "If there is no backup",
    ]  # fmt: skip
    assert "compactor cursor delete persistent://a/b/c __compaction. Compacted reads then" in result.steps[-1]
    assert (result.missing, result.error) == ("topics/x/1.json in file:///store", "")


def test_another_error_of_the_last_run_is_kept() -> None:
    result = topic_failure(NAME, "the disk is full", 7, MISSING, LOST, is_raw_whole=True)
    assert result is not None
    assert result.error == "the disk is full"


def test_values_whose_raw_messages_are_trimmed_are_lost() -> None:
    result = topic_failure(NAME, "", 7, MISSING, LOST, is_raw_whole=False)
    assert result is not None
    assert "__compaction --force. " in result.steps[-1]
    assert result.steps[-1].endswith("Values whose raw messages are trimmed are lost.")


def test_a_store_that_does_not_answer_asks_for_no_deletion() -> None:
    result = topic_failure(
        NAME, "", 7, "the store does not answer", Unavailable("the store does not answer", "wait"), is_raw_whole=True
    )
    assert result is not None
    assert result.what == "The compacted ledger 7 cannot be read: the store does not answer."
    assert result.steps == ("Remove the cause that the error names.",)


def test_a_run_that_missed_an_object_and_one_that_failed_otherwise() -> None:
    missed = topic_failure(NAME, f"run 3: {MISSING}", 7, "", None, is_raw_whole=True)
    assert missed is not None
    assert missed.missing == "topics/x/1.json in file:///store"
    assert len(missed.steps) == 3
    other = topic_failure(NAME, "the disk is full", 7, "", None, is_raw_whole=True)
    assert other is not None
    assert other.what == "The last compaction failed: the disk is full"
    assert other.effect.startswith("Compacted reads go on with the last compacted ledger.")
    assert topic_failure(NAME, "", 7, "", None, is_raw_whole=True) is None
