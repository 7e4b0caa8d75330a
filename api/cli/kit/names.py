"""What several commands say alike."""

from __future__ import annotations

from enum import StrEnum

TOPIC_HELP = "persistent://tenant/namespace/topic; topic alone means persistent://public/default/topic."


class EncodingName(StrEnum):
    """Text encodings by name; `api.formats.encoding` has them (a test keeps the two equal)."""

    UTF8 = "utf8"
    BASE64 = "base64"
