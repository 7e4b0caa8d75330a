"""The error tree in the code is the one that the module's docstring draws."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from storage import errors
from storage.errors import CompactorError

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__]


def drawn_tree() -> dict[str, str]:
    """Kind to parent, from the drawing: a name's column says how deep it stands."""
    parents: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        if found := re.match(r"^    (?P<branches>[ │├└─]*)(?P<name>[A-Z]\w+)(\s|$)", line):
            depth = len(found["branches"])
            while above and above[-1][0] >= depth:
                above.pop()
            parents[found["name"]] = above[-1][1] if above else "Exception"
            above.append((depth, found["name"]))
    return parents


def test_the_tree_is_drawn_as_it_is() -> None:
    assert drawn_tree() == {kind.__name__: kind.__base__.__name__ for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_says_when_it_is_raised(kind: type[CompactorError]) -> None:
    assert "__doc__" in vars(kind)
    assert (kind.__doc__ or "").strip().endswith((".", "`."))


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_is_one_line_of_what_happened_and_what_to_do(kind: type[CompactorError]) -> None:
    error = kind("the topic t does not exist", "create it")
    assert str(error) == "the topic t does not exist: create it"
    assert (error.message, error.remedy) == ("the topic t does not exist", "create it")


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_survives_the_pickle_of_a_spark_worker(kind: type[CompactorError]) -> None:
    again = pickle.loads(pickle.dumps(kind("what", "do")))
    assert type(again) is kind
    assert (again.message, again.remedy) == ("what", "do")
