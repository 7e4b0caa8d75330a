"""The failure of a topic's compaction: what happened, the effect, and the steps, once for all its errors."""

from __future__ import annotations

import pytest

from api.dashboard.failure import Failure, failure_of_read, lost_object, topic_failure
from api.observability.error_text import DASHBOARD_WORDING, OPERATOR_WORDING
from storage.advice import Advice, AdviceKind, damaged_object_advice, missing_object_advice
from storage.errors import CompactorError, ErrorText, ObjectDamaged, ObjectMissing, Unavailable
from storage.ledger import names
from storage.model import TopicName

NAME = TopicName.parse("persistent://a/b/c")
UID, ATTEMPT = "a" * 32, "b" * 32
MANIFEST, PART = names.manifest(UID, 7, ATTEMPT), names.part(UID, ATTEMPT, 0)
INDEX, RAW = names.compacted_index(UID, ATTEMPT, 0), names.ledger_rows(UID, 3, ATTEMPT)


def missing(name: str) -> ObjectMissing:
    return ObjectMissing(f"object {name} does not exist in file:///store", missing_object_advice(name, "file:///store"))


def of_ledger(error: CompactorError, ledger_id: int = 7) -> ErrorText:
    """Return the error of a run that could not read a compacted ledger, as it is stored."""
    assert error.advice is not None
    advice = Advice(AdviceKind.REBUILD_COMPACTED, {**error.advice.arguments, "topic": NAME, "ledger_id": ledger_id})
    reason = f"the compacted ledger {ledger_id} of {NAME} cannot be read"
    text = ErrorText.from_error(type(error)(f"{reason}: {error.message}", advice, public=reason))
    return ErrorText.from_fields("error", text.fields("error"))


def failure(error: ErrorText, manifest_error: CompactorError | None = None, **options: bool) -> Failure:
    result = topic_failure(
        NAME, error, str(error), 7, manifest_error, "the store does not answer", **{"is_raw_whole": True, **options}
    )
    assert result is not None
    return result


def test_a_lost_manifest_and_the_run_that_failed_by_it_are_one_failure() -> None:
    result = failure(of_ledger(missing(MANIFEST)), missing(MANIFEST))
    assert result.what == "The compacted ledger 7 cannot be read: its manifest is not in the object store."
    assert "Raw reads, producers and subscriptions go on." in result.effect
    assert [step.split(",")[0][:26] for step in result.steps] == [
        "Check that the setting sto", "If it does", "If there is no backup",
    ]  # fmt: skip
    command = "compactor cursor delete persistent://a/b/c __compaction"
    assert f"run <code>{command}</code> in a shell. Compacted reads then" in result.steps[-1]
    assert result.lost is not None
    assert (result.lost.name, result.lost.store, result.error) == (MANIFEST, "file:///store", "")


def test_a_damaged_manifest_is_damaged_in_one_sentence() -> None:
    error = ObjectDamaged(f"the manifest {MANIFEST} does not match its checksum", damaged_object_advice(MANIFEST))
    assert failure(ErrorText(), error).what == "The compacted ledger 7 cannot be read: its manifest is damaged."


@pytest.mark.parametrize(
    ("name", "noun", "reads"),
    [
        (RAW, "The raw ledger 3 cannot be read: the object with its rows", "Reads of its messages fail"),
        (
            names.ledger_index(UID, 3, ATTEMPT),
            "The raw ledger 3 cannot be read: its key index",
            "Look-ups of keys that need it fail",
        ),
        (
            names.task_ledger_rows(UID, ATTEMPT, 3, "0123abcd"),
            "A raw ledger that Spark wrote cannot be read: the object with its rows",
            "Reads of its messages fail",
        ),
    ],
)
def test_a_read_names_the_raw_ledger_of_a_lost_object(name: str, noun: str, reads: str) -> None:
    result = failure_of_read(missing(name))
    assert result is not None
    assert result.what == f"{noun} is not in the object store."
    assert result.effect.startswith(f"{reads}, and so does a compaction that reads it.")
    assert len(result.steps) == 2
    assert result.lost is not None
    assert result.lost.name == name
    assert failure_of_read(missing("store.json")) is None


def test_another_error_of_the_last_run_is_kept() -> None:
    assert failure(ErrorText("the disk is full"), missing(MANIFEST)).error == "the disk is full"


def test_values_whose_raw_messages_are_trimmed_are_lost() -> None:
    result = failure(ErrorText(), missing(MANIFEST), is_raw_whole=False)
    assert "__compaction --force</code> " in result.steps[-1]
    assert result.steps[-1].endswith("Values whose raw messages are trimmed are lost.")


def test_a_store_that_does_not_answer_asks_for_no_deletion() -> None:
    result = failure(ErrorText(), Unavailable("the store does not answer", "wait"))
    assert result.what == "The compacted ledger 7 cannot be read: the store does not answer."
    assert result.steps == ("Remove the cause that the error names.",)


@pytest.mark.parametrize(
    ("name", "noun", "effect", "breaks_reads"),
    [
        (PART, "one of its parts", "compacted reads that need it", True),
        (INDEX, "its key index", "look-ups of keys that need it", False),
    ],
)
def test_a_lost_object_of_the_compacted_ledger(name: str, noun: str, effect: str, breaks_reads: bool) -> None:
    error = of_ledger(missing(name))
    result = failure(error)
    assert result.what == f"The compacted ledger 7 cannot be read in full: {noun} is not in the object store."
    assert effect in result.effect
    assert "compactor cursor delete" in result.steps[-1]
    lost = lost_object(error)
    assert lost is not None
    assert lost.breaks_compacted_reads(7) is breaks_reads
    assert not lost.breaks_compacted_reads(8)


def test_a_lost_object_of_raw_messages_asks_for_no_deletion() -> None:
    result = failure(ErrorText.from_error(missing(RAW)))
    assert result.what == "The last compaction failed: an object with raw messages is not in the object store."
    assert not any("delete" in step for step in result.steps)


def test_a_damaged_object_without_a_name_may_be_raw_or_compacted() -> None:
    error = ErrorText.from_error(
        ObjectDamaged("a key index names offset 5, which nothing holds", damaged_object_advice())
    )
    result = failure(error, is_raw_whole=False)
    assert result.what == "The last compaction failed: an object that the error describes is damaged."
    assert "a key index names offset 5" in result.error
    assert result.steps[-1].startswith(
        "If there is no backup and the compacted ledger needs the object, run <code>compactor cursor delete "
    )
    assert "__compaction --force" in result.steps[-1]


def test_the_key_index_of_a_raw_ledger_has_its_name() -> None:
    result = failure(ErrorText.from_error(missing(names.ledger_index(UID, 3, ATTEMPT))))
    assert result.what == "The last compaction failed: the key index of a raw ledger is not in the object store."


def test_a_shorter_copy_of_a_missing_object_is_damaged() -> None:
    result = failure(of_ledger(missing(PART)), is_truncated=True)
    assert result.what == "The compacted ledger 7 cannot be read in full: one of its parts is damaged."
    assert result.lost is not None
    assert not result.lost.is_missing


@pytest.mark.parametrize(
    "error",
    [
        ErrorText("object p does not exist: check that COMPACTOR_STORE is the store, else restore it"),
        ErrorText("the compacted ledger is lost: restore the object from a backup"),
        ErrorText.from_fields(
            "error",
            {
                "error": f"the compacted ledger is lost: {AdviceKind.READ_RAW}",
                "error_advice": {"kind": "READ_RAW", "arguments": {}},
            },
        ),
    ],
)
def test_a_loss_that_an_older_version_stored_says_nothing_of_compacted_reads(error: ErrorText) -> None:
    result = failure(error)
    assert result.effect == "Producers and subscriptions go on."
    assert "restore" in error.worded(DASHBOARD_WORDING)
    assert "delete the cursor" not in error.worded(OPERATOR_WORDING)


@pytest.mark.parametrize("name", [MANIFEST, PART])
def test_an_object_that_is_back_makes_the_failure_history(name: str) -> None:
    result = failure(of_ledger(missing(name)), is_restored=True)
    assert result.is_over
    assert result.what.endswith("an object that is in the object store again.")
    assert result.steps == ()
    assert name in result.error


def test_the_lost_object_of_a_compacted_ledger_that_was_given_up_is_history() -> None:
    assert failure(of_ledger(missing(PART), ledger_id=5)).is_over


def test_a_run_that_failed_otherwise_and_one_that_succeeded() -> None:
    other = failure(ErrorText("the disk is full"))
    assert other.what == "The last compaction failed: the disk is full"
    assert other.effect.startswith("Compacted reads go on with the last compacted ledger.")
    assert topic_failure(NAME, ErrorText(), "", 7, None, is_raw_whole=True) is None
