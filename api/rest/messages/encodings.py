"""Encodings of keys and values in requests and answers."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from fastapi import Depends, Query

from api.formats.text_encoding import TextEncoding


class MessageEncodings(NamedTuple):
    """The encodings of keys and of values in a request and its answer."""

    key: TextEncoding
    value: TextEncoding


async def _query_encodings(
    key_encoding: Annotated[
        TextEncoding, Query(alias="keyEncoding", description="The encoding of keys.")
    ] = TextEncoding.UTF8,
    value_encoding: Annotated[
        TextEncoding, Query(alias="valueEncoding", description="The encoding of values.")
    ] = TextEncoding.UTF8,
) -> MessageEncodings:
    return MessageEncodings(key_encoding, value_encoding)


Encodings = Annotated[MessageEncodings, Depends(_query_encodings)]
"""A route's parameter: the encodings in the request's query."""
