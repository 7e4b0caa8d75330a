"""Redaction of secrets in texts that are displayed, logged or answered. Pure.

Every way out goes through here: answers other than success (`api/http/problems.py`) and errors in documents
(`api/reports.py`), what the commands say (`api/cli/kit/stderr.py`), the log (`api/observability/logs.py`), `config
show` (`redacted_url`, for a setting that is a URL, and `redacted`).

Redacted are passwords in URLs and in libpq's `name=value` form, secrets in the query of a URL, tokens (JWT, `Bearer
…`), keys given inline (`data:…`), AWS keys, PEM private keys, and values behind names that say what they are
(`password=…`, `"secret": "…"`). It is the second fence: nothing should hand a secret to a log in the first place.

Texts come from callers, and some are redacted on the event loop: the time that a rule takes grows with the text's
length and no faster. A rule that looks far ahead therefore takes all that it has checked, or looks `_FAR` characters
ahead.
"""

from __future__ import annotations

import re
from collections.abc import Callable

HIDDEN = "***"
_FAR = 200
"""Characters that a rule looks ahead."""
_NAMED = (
    r"(?:password|passwd|passphrase|pwd|secret(?:[_ .-]?(?:access[_ .-]?)?key)?|session[_ .-]?token"
    r"|(?:api|access|private|account|shared)[_-]?key|signature|credentials?|authorization|token"
    r"|scram[_-]?(?:client|server)[_-]?key)"
)
"""What the name of a secret ends with."""
_RULES: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), HIDDEN),
    # Before the first slash only a user's name and password end with an @.
    (re.compile(r"(?<=://)([^\s/:@?#'\"]*):[^\s/?#'\"]*@"), rf"\1:{HIDDEN}@"),
    # A password may hold what a URL's may not (SQLAlchemy takes it so); what looks like a port and a path is none.
    # Without an @ it is taken as it is, or each :// in it would search for that @ again.
    (
        re.compile(r"(?<=://)([^\s/:@?#'\"]*):(?!\*\*\*@|\d{1,5}[/?#])(?:[^\s'\"]+(@)|[^\s'\"]+)"),
        lambda match: f"{match[1]}:{HIDDEN}@" if match[2] else match[0],
    ),
    (re.compile(rf"(?i)([?&;][\w.%-]*{_NAMED}=)(?!\*\*\*)[^\s\"'&;#]+"), rf"\1{HIDDEN}"),
    # libpq's: a value may stand in quotes, with spaces and with quotes behind a backslash.
    (re.compile(rf"(?i)\b(\w*{_NAMED}\s*=\s*)'(?!\*\*\*')(?:\\.|[^'\\])*(?:'|\Z)"), rf"\1'{HIDDEN}'"),
    (
        re.compile(r"\beyJ[\w-]{5,}(\.[\w-]+(?:\.[\w-]*)?)?"),
        lambda match: HIDDEN if match[1] else match[0],
    ),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{4,}"), rf"\1 {HIDDEN}"),
    (re.compile(r"\bdata:[\w/;=.-]*,(?!…)[^\s'\"]+"), f"data:{HIDDEN}"),
    (re.compile(r"\b(?:AKIA|ASIA|AROA|AIDA)[0-9A-Z]{12,}\b"), HIDDEN),
    # An AWS secret key stands by itself: 40 characters of Base64, of all kinds. No hash or number in hex has them.
    (
        re.compile(r"(?<![\w/+=.-])(?=\S{0,39}[A-Z])(?=\S{0,39}[a-z])(?=\S{0,39}\d)[A-Za-z0-9/+]{40}(?![\w/+=.-])"),
        HIDDEN,
    ),
    # `"secret": "…"`, and `secret=…`; `secret: …` only where it looks like one, or prose would be hidden.
    (
        re.compile(rf"(?i)({_NAMED}[\"']\s*:\s*[\"']?)(?!\*\*\*|file:|bearer\b|basic\b)[^\s\"'&,;}}]{{3,}}"),
        rf"\1{HIDDEN}",
    ),
    (re.compile(rf"(?i)({_NAMED}\s*=\s*[\"']?)(?!'?\*\*\*|file:|bearer\b|basic\b)[^\s\"'&,;}}]+"), rf"\1{HIDDEN}"),
    (
        re.compile(rf"(?i)({_NAMED}:\s*)(?!\*\*\*|file:|bearer\b|basic\b)(?=\S{{0,{_FAR}}}\d)[^\s\"'&,;}}]{{6,}}"),
        rf"\1{HIDDEN}",
    ),
)


SHOWN = 1000
"""Characters of one text that an answer shows."""
LOGGED = 16_000
"""Characters of one text that a line of the log has."""


def shortened_in_middle(text: str, limit: int) -> str:
    """Return the text if it has at most `limit` characters, else its start and its end with `…` between.

    The end of an error is its advice, and the end of a traceback is the error.
    """
    half = (limit - 3) // 2
    return text if len(text) <= limit else f"{text[: limit - 3 - half]} … {text[-half:]}"


def redacted_excerpt(text: str, limit: int = SHOWN) -> str:
    """Return a text with secrets redacted, shortened to `limit` characters. The time depends on `limit` alone.

    The text is shortened twice, before and after the redaction. A part of a secret may not look like one.
    """
    return shortened_in_middle(redacted(shortened_in_middle(text, 3 * limit)), limit)


def redacted(text: str) -> str:
    """Return a text in which passwords, tokens and keys are replaced by `***`. Idempotent."""
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text


def redacted_url(url: str) -> str:
    """Return a URL with its password hidden, whatever characters the password has; any other text `redacted`."""
    scheme, separator, rest = url.partition("://")
    user_info, at, place = rest.rpartition("@")
    if separator and at:
        user, colon, _ = user_info.partition(":")
        url = f"{scheme}://{user}{f':{HIDDEN}' if colon else ''}@{place}"
    return redacted(url)
