"""Text of an error for a person or the log: one line with what happened, to what, and what to do."""

from __future__ import annotations

import errno

from storage.errors import CompactorError, WrongStore

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def one_line(error: Exception) -> str:
    """Return an error as one line."""
    if isinstance(error, WrongStore):
        adopt = "`compactor store adopt` shows which store and database belong together, and binds them"
        return f"{' '.join(error.message.split())}: check the URLs of store and database; {adopt}"
    if isinstance(error, CompactorError):
        return " ".join(str(error).split())
    if isinstance(error, OSError) and error.strerror:
        failure = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        remedy = "free some space" if error.errno in _FULL else "check the disk and permissions"
        return f"{failure}: {remedy}, then try again"
    text = " ".join(str(error).split())[:300]
    return f"unexpected {type(error).__name__}: {text}: try again with --debug and report it"
