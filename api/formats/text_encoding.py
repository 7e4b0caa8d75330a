"""Bytes as text: keys and values are bytes, files of text want them as UTF-8 or as base64."""

from __future__ import annotations

import base64
import binascii
from enum import StrEnum


class TextEncoding(StrEnum):
    """The encoding of bytes as text."""

    UTF8 = "utf8"
    BASE64 = "base64"


def to_bytes(text: str, encoding: TextEncoding) -> bytes:
    """Raises ValueError, with the reason, for text that is not of that encoding."""
    if encoding is TextEncoding.UTF8:
        return text.encode()
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"{text[:40]!r} is not base64 ({error})") from error


def to_text(data: bytes, encoding: TextEncoding) -> str:
    """Raises ValueError for bytes that are not UTF-8, when that was asked for."""
    return data.decode() if encoding is TextEncoding.UTF8 else base64.b64encode(data).decode()
