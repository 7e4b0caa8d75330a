"""What must not be seen: secrets in texts that are shown, logged or answered. Pure.

Masked are passwords in URLs, tokens (JWT, `Bearer …`), keys given inline (`data:…`), AWS keys, PEM private keys, and
values behind names that say what they are (`password=…`, `"secret": "…"`). It is the second fence: nothing should
hand a secret to a log in the first place.
"""

from __future__ import annotations

import re

HIDDEN = "***"
_RULES = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), HIDDEN),
    # A password may hold what a URL's may not (SQLAlchemy takes it so); what looks like a port and a path is none.
    (re.compile(r"(?<=://)([^\s/:@?#'\"]*):(?!\d{1,5}[/?#])[^\s'\"]+@"), rf"\1:{HIDDEN}@"),
    (re.compile(r"\beyJ[\w-]{5,}\.[\w-]+(?:\.[\w-]*)?"), HIDDEN),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{4,}"), rf"\1 {HIDDEN}"),
    (re.compile(r"\bdata:[\w/;=.-]*,[^\s'\"]+"), f"data:{HIDDEN}"),
    (re.compile(r"\b(?:AKIA|ASIA|AROA|AIDA)[0-9A-Z]{12,}\b"), HIDDEN),
    (
        re.compile(
            r"(?i)((?:password|passwd|passphrase|secret(?:[_ .-]?(?:access[_ .-]?)?key)?|session[_ .-]?token"
            r"|api[_ .-]?key|x-amz-(?:signature|credential|security-token)|authorization|token)[\"']?\s*[=:]\s*[\"']?)"
            r"(?!\*\*\*|file:|bearer\b|basic\b)[^\s\"'&,;}]{3,}"
        ),
        rf"\1{HIDDEN}",
    ),
)


def masked(text: str) -> str:
    """The text with its secrets hidden."""
    for pattern, shown in _RULES:
        text = pattern.sub(shown, text)
    return text
