"""The error kind of each HTTP status; it decides the exit code of `compactor-admin` (`api/cli/kit/exit_codes.py`)."""

from __future__ import annotations

from collections.abc import Mapping

from storage import errors

KINDS: Mapping[int, tuple[type[errors.CompactorError], str]] = {
    401: (errors.Misconfigured, "give a token with --token-file, or in COMPACTOR_TOKEN"),
    403: (errors.Misconfigured, "use the token of a role that may do this, or ask for the permission"),
    404: (errors.NotFound, "check the name: the `list` command of its group shows what exists"),
    409: (errors.Conflict, "check the present state, then try again"),
    410: (errors.NotFound, "check the name: the `list` command of its group shows what exists"),
    429: (errors.Unavailable, "wait, then try again"),
    501: (errors.InvalidInput, "this service cannot do that"),
    502: (errors.Unavailable, "try again later"),
    503: (errors.Unavailable, "try again later"),
    504: (errors.Unavailable, "try again later"),
    507: (errors.DataLoss, "restore what it names from a backup"),
}
"""The error of each status, with the remedy if the service names none; other 4xx are invalid input."""
