"""Exit codes of `compactor`: one table from kinds of errors. A contract: scripts depend on it."""

from __future__ import annotations

import typer

from storage import errors

OK = 0
UNEXPECTED = 1
INVALID_INPUT = 2
NOT_FOUND = 3
CONFLICT = 4
MISCONFIGURED = 5
UNAVAILABLE = 6
DATA_LOSS = 7
NO_VALUE = 8
INTERRUPTED = 130

BY_KIND: dict[type[Exception], int] = {
    errors.InvalidInput: INVALID_INPUT,
    errors.NotFound: NOT_FOUND,
    errors.Conflict: CONFLICT,
    errors.Misconfigured: MISCONFIGURED,
    errors.Unavailable: UNAVAILABLE,
    errors.DataLoss: DATA_LOSS,
    OSError: UNAVAILABLE,
    typer.TyperException: INVALID_INPUT,
}

HELP = (
    "Exit codes: 0 done; 1 unexpected error; 2 wrong usage or input; 3 no such topic, cursor or run; "
    "4 conflict (another writer or run, or this run was cancelled); "
    "5 settings, credentials, bucket, schema or Java are wrong; 6 store, database or disk cannot serve now; "
    "7 data is missing or damaged; 8 the key has no value; 130 interrupted."
)


def of(error: Exception) -> int:
    """Return the exit code of an error."""
    return next((code for kind, code in BY_KIND.items() if isinstance(error, kind)), UNEXPECTED)
