"""What bodies and answers of the admin API are made from: base models with Pulsar's names, and bodies of one number.

A body that is one number is read as strictly as a broker's JSON parser reads it, and refused in its words: a text, a
fraction, a boolean and a number that 64 bits do not hold are not numbers. It is read whatever its content type.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

from fastapi import Request
from pydantic import AfterValidator, BaseModel, ConfigDict
from pydantic.alias_generators import to_camel
from starlette.responses import Response

from api.http import json_bounds
from api.http.limits import BODY_BYTES, hold_body_to
from api.http.problems import UnreadableBody
from api.http.thread_pools import parse_body

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
"""What a route with such a body declares: `responses=UNREADABLE | refusals(404)`."""


class PulsarAnswer(BaseModel):
    """An answer with Pulsar's names: those of the fields, in camel case."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class PulsarBody(BaseModel):
    """A body that is an object, with Pulsar's names: nothing is converted, and an unknown field is an error."""

    model_config = ConfigDict(alias_generator=to_camel, strict=True, extra="forbid")


class MissingBody(UnreadableBody):
    """A missing body where one is required. A broker answers this with plain text that it labels JSON."""

    media_type = "application/json"

    def __init__(self) -> None:
        super().__init__(EMPTY)


def _of_unicode(given: dict[str, str]) -> dict[str, str]:
    """JSON can tell of halves of surrogate pairs, but no answer could: UTF-8 has none."""
    for text in (*given, *given.values()):
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ValueError(f"{text[:_SHOWN]!r} is no text of Unicode")
    return given


TextByName = Annotated[dict[str, str], AfterValidator(_of_unicode)]
"""Properties, as a body or in one: texts that every answer can hold."""


async def read_body(request: Request, parse: Callable[[bytes], Value]) -> Value:
    """What `parse` makes of the body, which has the bounds of all that produce nothing. Raises RestException (413)."""
    hold_body_to(request.scope, BODY_BYTES)
    return await parse_body(request, parse)


async def long_body(request: Request) -> int:
    """A whole number of 64 bits. Raises UnreadableBody, RestException (413)."""
    return await read_body(request, long_number)


def number_schema(description: str, example: int) -> dict[str, Any]:
    """The OpenAPI of a body that is a number: `openapi_extra=number_schema(…)`."""
    schema = {"type": "integer", "format": "int64", "example": example}
    return {
        "requestBody": {
            "description": description,
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    }


def whole_number(body: bytes, java: str, most: int) -> int:
    """The number that a JSON body is, from `-most - 1` to `most`; `java` names its type in errors. Raises
    UnreadableBody."""
    value = parsed(body)
    if value is None or value == "":
        raise MissingBody
    if isinstance(value, str):
        raise unreadable(
            f'Cannot deserialize value of type `{java}` from String "{value[:_SHOWN]}": not a valid `{java}` value'
        )
    if isinstance(value, bool) or not isinstance(value, int):
        raise unreadable(f"Cannot deserialize value of type `{java}` from {_kind(value)}")
    if not -most - 1 <= value <= most:
        raise unreadable(f"Numeric value ({str(value)[:_SHOWN]}) out of range of `{java}` ({-most - 1} - {most})")
    return value


def long_number(body: bytes) -> int:
    """A whole number of 64 bits. Raises UnreadableBody."""
    return whole_number(body, "long", LONG)


def int_number(body: bytes) -> int:
    """As `whole_number`, of 32 bits."""
    return whole_number(body, "int", INT)


def parsed(body: bytes) -> Any:
    """The JSON value; None for an empty body. Raises UnreadableBody."""
    if not body.strip():
        return None
    try:
        return json_bounds.load(body)
    except (ValueError, RecursionError):
        # A body that has nothing but Unicode's white space has no word that could be shown.
        token = next(iter(body.decode(errors="replace").split()), "")[:_SHOWN]
        raise unreadable(
            f"Unrecognized token '{token}': was expecting (JSON String, Number, Array, Object or token 'null', 'true' "
            "or 'false')"
        ) from None


def unreadable(what: str) -> UnreadableBody:
    """With the place, as little as a broker gives of it. Halves of surrogate pairs, as JSON may hold, are `?`."""
    text = what.encode(errors="replace").decode()
    return UnreadableBody(
        f"{text}\n at [Source: REDACTED (`StreamReadFeature.INCLUDE_SOURCE_IN_LOCATION` disabled); line: 1, column: 1]"
    )


def moment(milliseconds: int) -> str:
    """As Pulsar writes times: 2026-11-21T11:44:01.827Z; the number itself where no calendar has it."""
    try:
        whole = datetime.fromtimestamp(milliseconds // 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(milliseconds)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{milliseconds % 1000:03d}Z"


def done() -> Response:
    """204: done, with no content."""
    return Response(status_code=204)


def unset() -> Response:
    """What a broker answers for a policy that is not set: 200, an empty body, no content type."""
    return Response(status_code=200)


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return f"Boolean value (token `JsonToken.VALUE_{str(value).upper()}`)"
    if isinstance(value, float):
        return "Floating-point value (token `JsonToken.VALUE_NUMBER_FLOAT`)"
    kind = "Array" if isinstance(value, list) else "Object"
    return f"{kind} value (token `JsonToken.START_{kind.upper()}`)"
