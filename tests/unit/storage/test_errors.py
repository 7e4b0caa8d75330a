"""The error tree in the code is the one that the module's docstring draws."""

from __future__ import annotations

import inspect
import json
import pickle
import re

import pytest

from storage import errors
from storage.advice import Advice, AdviceKind
from storage.errors import NO_ERROR, CompactorError, CursorNotFound, ErrorText, InvalidInput, ObjectDamaged

CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__]
KINDS = [kind for kind in CLASSES if issubclass(kind, BaseException)]
PLAIN_KINDS = [kind for kind in KINDS if kind.__init__ is CompactorError.__init__]


def drawn_tree() -> dict[str, str]:
    """Kind to parent, from the drawing: a name's column says how deep it stands."""
    parents: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        if match := re.match(r"^    (?P<branches>[ │├└─]*)(?P<name>[A-Z]\w+)(\s|$)", line):
            depth = len(match["branches"])
            while above and above[-1][0] >= depth:
                above.pop()
            parents[match["name"]] = above[-1][1] if above else "Exception"
            above.append((depth, match["name"]))
    return parents


def test_the_tree_is_drawn_as_it_is() -> None:
    assert drawn_tree() == {kind.__name__: kind.__base__.__name__ for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_says_when_it_is_raised(kind: type[CompactorError]) -> None:
    assert "__doc__" in vars(kind)
    assert (kind.__doc__ or "").strip().endswith((".", "`."))


@pytest.mark.parametrize("kind", PLAIN_KINDS)
def test_an_error_is_one_line_of_what_happened_and_what_to_do(kind: type[CompactorError]) -> None:
    error = kind("the topic t does not exist", "create it")
    assert str(error) == "the topic t does not exist: create it"
    assert (error.message, error.remedy) == ("the topic t does not exist", "create it")


@pytest.mark.parametrize("kind", PLAIN_KINDS)
def test_an_error_survives_the_pickle_of_a_spark_worker(kind: type[CompactorError]) -> None:
    again = pickle.loads(pickle.dumps(kind("what", "do")))
    assert type(again) is kind
    assert (again.message, again.remedy) == ("what", "do")


def test_an_error_with_fields_of_its_own_survives_the_pickle() -> None:
    error = CursorNotFound("t", "s")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (CursorNotFound, str(error), vars(error))


ADVISED = ObjectDamaged("5.log is damaged", Advice(AdviceKind.ACCEPT_LOSS_OPEN, {"ledger_id": 5, "topic": "t"}))


def test_a_copy_is_equal_and_names_its_origin() -> None:
    error = InvalidInput("secret", ADVISED.advice or "", public="public")
    error.extra = 7  # type: ignore[attr-defined]
    copy = error.copy()
    assert (type(copy), str(copy), copy.args, vars(copy)) == (InvalidInput, str(error), error.args, vars(error))
    assert copy is not error
    assert copy.__cause__ is error


def test_the_text_of_an_error_is_read_as_it_was_stored() -> None:
    text = ErrorText.from_error(ADVISED)
    fields = json.loads(json.dumps(text.fields("error")))
    assert fields.keys() == {"error", "error_detail", "error_advice"}
    words = {AdviceKind.ACCEPT_LOSS_OPEN: "roll {topic}"}
    assert ErrorText.from_fields("error", fields).worded(words) == "5.log is damaged: roll t"
    assert str(ErrorText.from_fields("error", fields)) == str(ADVISED)
    fields["error_advice"]["kind"] = "OF_A_NEWER_VERSION"
    assert ErrorText.from_fields("error", fields).worded(words) == str(ADVISED)
    assert ErrorText.from_fields("error", {}) == NO_ERROR
    assert not NO_ERROR
