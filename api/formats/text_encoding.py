"""Encodings of keys and values, which are bytes, in files of text."""

from __future__ import annotations

import base64
import binascii
from enum import StrEnum

from storage.errors import InvalidInput


class TextEncoding(StrEnum):
    """The encoding of bytes as text."""

    UTF8 = "utf8"
    BASE64 = "base64"


def to_bytes(text: str, encoding: TextEncoding) -> bytes:
    """Return the bytes that a text encodes. Raises ValueError, with the reason, if it is not of that encoding."""
    if encoding is TextEncoding.UTF8:
        return text.encode()
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"{text[:40]!r} is not base64 ({error})") from error


def parse_key(text: str, encoding: TextEncoding) -> bytes:
    """Decode a key that a user typed to bytes. Raises InvalidInput."""
    try:
        return to_bytes(text, encoding)
    except ValueError as error:
        raise InvalidInput(f"the key is not of the given encoding: {error}", "see --key-encoding") from error


def to_text(data: bytes, encoding: TextEncoding) -> str:
    """Return bytes as text. Raises ValueError for bytes that are not UTF-8, if the encoding is UTF-8."""
    return data.decode() if encoding is TextEncoding.UTF8 else base64.b64encode(data).decode()
