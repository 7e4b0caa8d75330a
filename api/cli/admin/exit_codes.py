"""Exit codes of `compactor-admin`: those of the kit, one of its own, and the error kind of each HTTP status.

A contract: scripts depend on it.
"""

from __future__ import annotations

from collections.abc import Mapping

from storage import errors

RUN_FAILED = 9

HELP = (
    "Exit codes: 0 done; 1 unexpected error; 2 wrong usage, or the service refused the request; "
    "3 no such tenant, namespace, topic, subscription, message or run; 4 conflict (it exists, it is not empty, a run "
    "is under way or paused); 5 URL, token, permission or certificate are wrong; 6 the service cannot be reached or "
    "cannot serve now; 7 data is missing or damaged, or verify found differences; 8 the key has no value; "
    "9 the compaction ended with an error or was cancelled; 130 interrupted."
)

KINDS: Mapping[int, tuple[type[errors.CompactorError], str]] = {
    401: (errors.Misconfigured, "give a token with --token-file, or in COMPACTOR_TOKEN"),
    403: (errors.Misconfigured, "use the token of a role that may do this, or ask for the permission"),
    404: (errors.NotFound, "check the name: the `list` command of its group shows what exists"),
    409: (errors.Conflict, "check what is there, then try again"),
    410: (errors.NotFound, "check the name: the `list` command of its group shows what exists"),
    429: (errors.Unavailable, "wait, then try again"),
    501: (errors.InvalidInput, "this service cannot do that"),
    502: (errors.Unavailable, "try again later"),
    503: (errors.Unavailable, "try again later"),
    504: (errors.Unavailable, "try again later"),
    507: (errors.DataLoss, "restore what it names from a backup"),
}
"""The error of each status, with the remedy if the service names none; other 4xx are invalid input."""
