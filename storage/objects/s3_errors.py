"""Errors of S3 and botocore as errors of this project.

The table below is the only place that reads error codes. It goes by code first, because servers agree on codes more
than on statuses, and by status for unknown codes. It never puts credentials or signed URLs into a message: it quotes
only the code and the server's sentence.
"""

from __future__ import annotations

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    HTTPClientError,
    InvalidProxiesConfigError,
    SSLError,
)

from storage.advice import Advice, AdviceKind, missing_object_advice
from storage.errors import CompactorError, Misconfigured, ObjectExists, ObjectMissing, StorageFull, Unavailable

_CREDENTIALS = frozenset(
    {
        "AccessDenied",
        "AccountProblem",
        "AllAccessDisabled",
        "AuthorizationHeaderMalformed",
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidToken",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
    }
)
_BUSY = frozenset(
    {
        "ConditionalRequestConflict",
        "InternalError",
        "OperationAborted",
        "RequestTimeout",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
    }
)
_FULL = frozenset({"InsufficientStorage", "QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded"})


def code_of(error: Exception) -> str:
    """Return the server's error code, `404` and the like for a HEAD without a body; empty: there was no answer."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def status_of(error: Exception) -> int:
    """Return the HTTP status of the server's answer; 0: there was none."""
    if isinstance(error, ClientError):
        return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return 0


def is_ambiguous(error: Exception) -> bool:
    """Return whether the failed request may have taken effect: it got no answer, or the server failed."""
    return isinstance(error, (HTTPClientError, ConnectionError)) or status_of(error) >= 500


def translate(error: BotoCoreError | ClientError, verb: str, name: str, url: str, bucket: str) -> CompactorError:
    """Return the project's error for an error of S3 or botocore.

    `verb`, `name`: what was done with which object or prefix; `url`: of the store. All are for the text.
    """
    if isinstance(error, ClientError):
        return _translate_answer(error, verb, name, url, bucket)
    what = f"cannot {verb} object {name} in {url}, {type(error).__name__}: {error}"
    if is_ambiguous(error) and not isinstance(error, (SSLError, InvalidProxiesConfigError)):
        return Unavailable(what, "see that the S3 endpoint is right and can be reached, then try again")
    return Misconfigured(
        what,
        "give the process credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or a role), and check "
        "region, endpoint, certificates and bucket name",
    )


def _translate_answer(error: ClientError, verb: str, name: str, url: str, bucket: str) -> CompactorError:
    code, status = code_of(error), status_of(error)
    answer = error.response.get("Error", {}).get("Message") or "no reason given"
    what = f"cannot {verb} object {name} in {url}, the server answered {status} {code}: {answer}"
    if code == "PreconditionFailed" or status == 412:
        return ObjectExists(f"object {name} exists already in {url}", "read it, or write under another name")
    if code == "NoSuchBucket":
        return Misconfigured(
            f"bucket {bucket} of {url} does not exist, asked to {verb} object {name}",
            "make the bucket, or correct the store's URL and endpoint",
        )
    if code in ("NoSuchKey", "404", "NotFound"):
        return ObjectMissing(
            f"object {name} does not exist in {url}",
            missing_object_advice(name, url),
        )
    if code in _FULL or status == 507:
        return StorageFull(what, "free space or raise the bucket's quota, then try again")
    if code in _CREDENTIALS or status in (401, 403):
        return Misconfigured(
            what,
            f"check the credentials and allow them to get, put, delete and list in bucket {bucket}, and the clock",
        )
    if code in _BUSY or status == 429 or (status >= 500 and status != 501):
        return Unavailable(what, "the server is busy or failing; try again later, or see its log")
    return Misconfigured(what, Advice(AdviceKind.CHECK_STORE))
