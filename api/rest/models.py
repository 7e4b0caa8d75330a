"""Base models of the admin API's bodies and answers, with Pulsar's names, and bodies of one number.

Bodies of Pulsar's calls are read as a broker's JSON parser (Jackson) reads them: a text of digits is a number, a text
`true` or `false` is a boolean, unknown fields are ignored, and null in an optional field means that it is absent. What
Jackson refuses is a 400: another text, a boolean as a number, a number that the type does not hold. A fraction is
refused, too, where Jackson cuts it. Bodies of calls that only this service has are strict: a misspelled `dryRun` must
not delete. A body of one number is read whatever its content type, and refused in a broker's words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from types import UnionType
from typing import Annotated, Any, ClassVar, TypeVar, get_args

from fastapi import Request
from pydantic import AfterValidator, BaseModel, ConfigDict, RootModel, model_validator
from pydantic.alias_generators import to_camel
from starlette.responses import Response

from api.http import json_bounds
from api.http.dependencies import parse_body
from api.http.limits import BODY_BYTES, limit_body
from api.http.problems import UnreadableBody

Value = TypeVar("Value")
EMPTY = "The request entity cannot be empty."
_SHOWN = 100
INT, LONG = (1 << 31) - 1, (1 << 63) - 1
"""The largest numbers that Java's types hold."""
UNREADABLE: dict[int | str, dict[str, Any]] = {
    400: {
        "description": "The body is no number; in plain text, as a broker tells it.",
        "content": {"text/plain": {"schema": {"type": "string"}}, "application/json": {}},
    }
}
"""Answer that a route with such a body declares: `responses=UNREADABLE | refusal_responses(404)`."""


class PulsarAnswer(BaseModel):
    """The base of answers in Pulsar's form: the names of the fields are in camel case."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class PulsarTree(RootModel[Value]):
    """An answer in Pulsar's form that is a tree of dataclasses: the names of the fields are in camel case."""

    model_config = ConfigDict(alias_generator=to_camel)


class StrictBody(BaseModel):
    """The base of bodies of calls that Pulsar does not have: no value is converted, and unknown fields are errors."""

    model_config = ConfigDict(alias_generator=to_camel, strict=True, extra="forbid")


class PulsarBody(BaseModel):
    """The base of bodies of Pulsar's calls, and of objects in them: they are read as a broker's JSON parser, Jackson,
    reads them. The names of the fields are in camel case."""

    model_config = ConfigDict(alias_generator=to_camel, strict=True, extra="ignore")
    _scalars: ClassVar[Mapping[str, Callable[[str], object]]] = {}
    """By the name of a number or boolean in JSON, the conversion of a text."""
    _optional: ClassVar[frozenset[str]] = frozenset()
    """Names in JSON of the fields that may be absent."""

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        super().__pydantic_init_subclass__(**options)
        fields = {field.alias or name: field for name, field in cls.model_fields.items()}
        kinds = {name: set(_union_members(field.annotation)) for name, field in fields.items()}
        cls._scalars = {
            name: _CONVERSIONS[kind]
            for name, types in kinds.items()
            for kind in types & _CONVERSIONS.keys()
            if str not in types
        }
        cls._optional = frozenset(name for name, field in fields.items() if not field.is_required())

    @model_validator(mode="before")
    @classmethod
    def _convert_as_jackson(cls, body: Any) -> Any:
        """Convert texts to numbers and booleans, and leave out null in optional fields, as Jackson does."""
        if not isinstance(body, dict):
            return body
        return {
            name: cls._scalars[name](value) if isinstance(value, str) and name in cls._scalars else value
            for name, value in body.items()
            if value is not None or name not in cls._optional
        }


class MissingBody(UnreadableBody):
    """The error for a missing body where one is required: 400, with plain text that a broker labels JSON."""

    media_type = "application/json"

    def __init__(self) -> None:
        super().__init__(EMPTY)


def _require_unicode(texts: dict[str, str]) -> dict[str, str]:
    """Return the texts unchanged. Raise ValueError for halves of surrogate pairs, which JSON can hold and UTF-8
    cannot."""
    for text in (*texts, *texts.values()):
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ValueError(f"{text[:_SHOWN]!r} is no text of Unicode")
    return texts


TextByName = Annotated[dict[str, str], AfterValidator(_require_unicode)]
"""Properties, as a body or in one: texts that every answer can hold."""


async def read_body(request: Request, parse: Callable[[bytes], Value]) -> Value:
    """Read the body of a request with the size limit of requests that produce nothing, and return the result of
    `parse`. Raise RestException (413) for a larger body."""
    limit_body(request.scope, BODY_BYTES)
    return await parse_body(request, parse)


async def int64_body(request: Request) -> int:
    """Return the body of a request, which is a whole number of 64 bits. Raise UnreadableBody, RestException (413)."""
    return await read_body(request, parse_int64)


def number_body_schema(description: str, example: int) -> dict[str, Any]:
    """Return the OpenAPI declaration of a body that is a number: `openapi_extra=number_body_schema(…)`."""
    schema = {"type": "integer", "format": "int64", "example": example}
    return {
        "requestBody": {
            "description": description,
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    }


def parse_integer(body: bytes, java_type: str, max_value: int) -> int:
    """Return the number in a JSON body, from `-max_value - 1` to `max_value`. `java_type`: the name of the type in
    errors. Raise UnreadableBody for another body, MissingBody for an empty one."""
    value = parse_json_body(body)
    if value is None or value == "":
        raise MissingBody
    if isinstance(value, str):
        value = _number_or_text(value)
    if isinstance(value, str):
        raise unreadable_body_error(
            f'Cannot deserialize value of type `{java_type}` from String "{value[:_SHOWN]}": not a valid '
            f"`{java_type}` value"
        )
    if isinstance(value, bool) or not isinstance(value, int):
        raise unreadable_body_error(f"Cannot deserialize value of type `{java_type}` from {_jackson_value_kind(value)}")
    if not -max_value - 1 <= value <= max_value:
        raise unreadable_body_error(
            f"Numeric value ({str(value)[:_SHOWN]}) out of range of `{java_type}` ({-max_value - 1} - {max_value})"
        )
    return value


def parse_int64(body: bytes) -> int:
    """Return the whole number of 64 bits in a JSON body. Raise UnreadableBody."""
    return parse_integer(body, "long", LONG)


def parse_int32(body: bytes) -> int:
    """Return the whole number of 32 bits in a JSON body. Raise UnreadableBody."""
    return parse_integer(body, "int", INT)


def parse_json_body(body: bytes) -> Any:
    """Return the JSON value of a body; None for an empty body. Raise UnreadableBody for a body that is not JSON."""
    if not body.strip():
        return None
    try:
        return json_bounds.parse_bounded_json(body)
    except (ValueError, RecursionError):
        # A body that has nothing but Unicode's white space has no word that could be shown.
        token = next(iter(body.decode(errors="replace").split()), "")[:_SHOWN]
        raise unreadable_body_error(
            f"Unrecognized token '{token}': was expecting (JSON String, Number, Array, Object or token 'null', 'true' "
            "or 'false')"
        ) from None


def unreadable_body_error(fault: str) -> UnreadableBody:
    """Return the error for a body that cannot be read, with `fault` in the form of a broker's parser. Halves of
    surrogate pairs in `fault` become `?`."""
    text = fault.encode(errors="replace").decode()
    return UnreadableBody(
        f"{text}\n at [Source: REDACTED (`StreamReadFeature.INCLUDE_SOURCE_IN_LOCATION` disabled); line: 1, column: 1]"
    )


def pulsar_time(milliseconds: int) -> str:
    """Return a time as Pulsar writes it: 2026-11-21T11:44:01.827Z; the number itself where no calendar has it."""
    try:
        whole = datetime.fromtimestamp(milliseconds // 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(milliseconds)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{milliseconds % 1000:03d}Z"


def no_content_response() -> Response:
    """Return the answer of a call that succeeded and has no content: 204."""
    return Response(status_code=204)


def unset_policy_answer() -> Response:
    """Return a broker's answer for a policy that is not set: 200, an empty body, no content type."""
    return Response(status_code=200)


_DIGITS = re.compile(r"[+-]?[0-9]{1,19}")
_BOOLEANS: Mapping[str, bool] = {
    text: value for value in (True, False) for text in (str(value), str(value).lower(), str(value).upper())
}


def _number_or_text(text: str) -> int | str:
    """Return the whole number that Java parses from a text; the text itself if Java parses none."""
    digits = text.strip(" \t\r\n")
    return int(digits) if _DIGITS.fullmatch(digits) else text


def _boolean_or_text(text: str) -> bool | str:
    """Return the boolean that Jackson parses from a text; the text itself if Jackson parses none."""
    return _BOOLEANS.get(text.strip(" \t\r\n"), text)


_CONVERSIONS: Mapping[type, Callable[[str], object]] = {int: _number_or_text, bool: _boolean_or_text}


def _union_members(annotation: Any) -> Iterator[Any]:
    """Yield the members of a union type, or the type itself if it is no union."""
    members = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    yield from members


def _jackson_value_kind(value: object) -> str:
    """Return the words of a broker's JSON parser for the kind of a JSON value: a boolean, fraction, array or object."""
    if isinstance(value, bool):
        return f"Boolean value (token `JsonToken.VALUE_{str(value).upper()}`)"
    if isinstance(value, float):
        return "Floating-point value (token `JsonToken.VALUE_NUMBER_FLOAT`)"
    kind = "Array" if isinstance(value, list) else "Object"
    return f"{kind} value (token `JsonToken.START_{kind.upper()}`)"
