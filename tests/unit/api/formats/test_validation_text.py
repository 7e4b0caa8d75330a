"""Errors that pydantic finds are worded plainly: the field, what it must be, and what it is."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from api.formats.validation_text import problem_sentence


def refuse(text: str) -> str:
    raise ValueError("no text is good enough")


class Inner(BaseModel):
    field: int


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    number: Annotated[int, Field(ge=1, le=9)] = 1
    ratio: Annotated[float, Field(gt=0, lt=1)] = 0.5
    flag: bool = False
    text: Annotated[str, Field(min_length=2, max_length=3)] = "ab"
    names: Annotated[list[str], Field(min_length=1, max_length=2)] = ["a"]
    table: dict[str, str] = {}
    inner: Inner | None = None
    choice: Literal["earliest", "latest"] = "latest"
    refused: Annotated[str, AfterValidator(refuse)] = ""


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ({"number": "1"}, "number must be a whole number, not '1'"),
        ({"number": 1.5}, "number must be a whole number, not 1.5"),
        ({"number": None}, "number must be a whole number, not null"),
        ({"number": 0}, "number must be at least 1, not 0"),
        ({"number": 10}, "number must be at most 9, not 10"),
        ({"ratio": "a"}, "ratio must be a number, not 'a'"),
        ({"ratio": 0.0}, "ratio must be more than 0.0, not 0.0"),
        ({"ratio": 1.0}, "ratio must be less than 1.0, not 1.0"),
        ({"flag": "yes"}, "flag must be true or false, not 'yes'"),
        ({"text": {"a": 1}}, "text must be a text, not an object"),
        ({"text": True}, "text must be a text, not true"),
        ({"text": "a"}, "text must have at least 2 characters"),
        ({"text": "abcd"}, "text must have at most 3 characters"),
        ({"names": "a"}, "names must be a list, not 'a'"),
        ({"names": []}, "names must hold at least 1, and holds 0"),
        ({"names": ["a", "b", "c"]}, "names must hold at most 2, and holds more"),
        ({"table": [1]}, "table must be an object, not a list"),
        ({"inner": 3}, "inner must be an object, not 3"),
        ({"inner": {}}, "inner.field is missing"),
        ({"choice": "x" * 60}, f"choice must be 'earliest' or 'latest', not '{'x' * 39}…"),
        ({"nosuch": 1}, "nosuch is not known here, leave it out"),
        ({"refused": "a"}, "refused: no text is good enough"),
    ],
)
def test_an_error_names_field_requirement_and_value(body: dict[str, Any], line: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        Model.model_validate(body)
    (error,) = refusal.value.errors()
    assert problem_sentence(".".join(map(str, error["loc"])), error) == line


def test_a_body_that_is_no_json_is_told_with_the_place() -> None:
    with pytest.raises(ValidationError) as refusal:
        Model.model_validate_json('{"number"')
    (error,) = refusal.value.errors()
    assert problem_sentence("the body", error).startswith(
        "the body is not JSON (EOF while parsing an object at line 1 column 9"
    )
