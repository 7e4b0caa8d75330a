"""Exit codes of `compactor` and `compactor-admin`: one table from kinds of errors. A contract: scripts depend on it."""

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
RUN_FAILED = 9
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
    "Exit codes: 0 done; 1 unexpected error; 2 wrong usage or input, or the request is refused; "
    "3 no such tenant, namespace, topic, cursor, message or run; "
    "4 conflict (it exists, it is not empty, it has clients, another writer or run has it, it is paused); "
    "5 settings, data directory, URL, credentials, permission, bucket, schema or Java are wrong; "
    "6 service, store, database or disk cannot serve now; "
    "7 data is missing or damaged, or verify found differences; 8 the key has no value; "
    "9 the compaction that the command waited for failed or was cancelled; 130 interrupted."
)
"""The help of both programs: a cause has the same code in each."""


def exit_code_of(error: Exception) -> int:
    """Return the exit code of an error, by its kind; that of an unexpected error if it has none."""
    return next((code for kind, code in BY_KIND.items() if isinstance(error, kind)), UNEXPECTED)
