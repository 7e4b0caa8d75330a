"""Errors of this service as errors of Pulsar's protocol.

A message is the one that REST sends: what happened, to what, and what to do. It holds no secret.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import IntEnum

from api.broker.refusals import (
    BacklogQuotaExceeded,
    ConsumerBusy,
    IncompatibleKeySharedConsumer,
    InvalidTopicEpoch,
    MissingNamespace,
    MissingTopic,
    PartitionedTopicRefused,
    PartitionOutOfRange,
    ProducerBusy,
    ProducerFenced,
)
from api.broker.schemas import IncompatibleSchema, InvalidSchema
from api.http.problems import RestException
from api.observability.redaction import redacted_excerpt
from storage import errors

LOG = logging.getLogger(__name__)


class ServerError(IntEnum):
    """The error codes of Pulsar's protocol that this service sends."""

    UnknownError = 0
    MetadataError = 1
    PersistenceError = 2
    AuthenticationError = 3
    AuthorizationError = 4
    ConsumerBusy = 5
    ServiceNotReady = 6
    ProducerBlockedQuotaExceededError = 7
    ProducerBlockedQuotaExceededException = 8
    ChecksumError = 9
    UnsupportedVersionError = 10
    TopicNotFound = 11
    ConsumerNotFound = 13
    TooManyRequests = 14
    ProducerBusy = 16
    InvalidTopicName = 17
    IncompatibleSchema = 18
    ConsumerAssignError = 19
    NotAllowedError = 22
    ProducerFenced = 25


class Refused(Exception):
    """The exception that refuses a request, with an error code of Pulsar's protocol."""

    def __init__(self, error: ServerError, message: str) -> None:
        message = redacted_excerpt(message)  # names of a client have any length
        super().__init__(message)
        self.error = error
        self.message = message


_BY_KIND: Mapping[type[Exception], ServerError] = {
    ConsumerBusy: ServerError.ConsumerBusy,
    IncompatibleKeySharedConsumer: ServerError.ConsumerAssignError,
    ProducerBusy: ServerError.ProducerBusy,
    ProducerFenced: ServerError.ProducerFenced,
    IncompatibleSchema: ServerError.IncompatibleSchema,
    InvalidSchema: ServerError.IncompatibleSchema,
    PartitionOutOfRange: ServerError.TopicNotFound,
    MissingNamespace: ServerError.TopicNotFound,
    errors.TopicNotFound: ServerError.TopicNotFound,
    errors.InvalidTopicName: ServerError.InvalidTopicName,
    errors.InvalidInput: ServerError.NotAllowedError,
    errors.NotFound: ServerError.MetadataError,
    errors.Conflict: ServerError.ServiceNotReady,
    errors.Misconfigured: ServerError.ServiceNotReady,
    errors.Unavailable: ServerError.ServiceNotReady,
    errors.DataLoss: ServerError.PersistenceError,
}
"""The first class that fits decides. After ServiceNotReady a client looks the topic up and repeats its request."""
_WITHOUT_ADVICE = (ProducerBusy, ProducerFenced, InvalidTopicEpoch)
"""Refusals that the protocol sends without advice, as a broker does."""
_WORDS: Mapping[type[errors.CompactorError], str] = {
    MissingTopic: "{topic} does not exist, and is not created on first use (broker.auto-topic-creation, or the "
    "client's own choice): create it with `pulsar-admin topics create {topic}`",
    MissingNamespace: "Namespace not found: {message}",
    PartitionedTopicRefused: "{topic} is a partitioned topic: connect to its partitions, as client libraries do",
}
"""Messages of refusals for which the protocol's clients need words of their own, with fields of the error."""
_BY_STATUS: Mapping[int, ServerError] = {
    400: ServerError.NotAllowedError,
    401: ServerError.AuthenticationError,
    403: ServerError.AuthorizationError,
    404: ServerError.TopicNotFound,
    405: ServerError.NotAllowedError,
    412: ServerError.NotAllowedError,
    429: ServerError.TooManyRequests,
    503: ServerError.ServiceNotReady,
}


def refusal(error: BaseException) -> Refused:
    """Convert an exception to a refusal with the error code of the protocol that fits.

    Log an unexpected exception, which becomes an UnknownError without details.
    """
    if isinstance(error, Refused):
        return error
    if isinstance(error, RestException):
        return Refused(_BY_STATUS.get(error.status_code, ServerError.UnknownError), str(error.detail))
    if isinstance(error, BacklogQuotaExceeded):
        if error.holds:
            return Refused(ServerError.ProducerBlockedQuotaExceededError, str(error))
        return Refused(ServerError.ProducerBlockedQuotaExceededException, str(error))
    if isinstance(error, errors.CompactorError):
        code = next((code for kind, code in _BY_KIND.items() if isinstance(error, kind)), ServerError.UnknownError)
        words = next((words for kind, words in _WORDS.items() if isinstance(error, kind)), None)
        if words is not None:
            return Refused(code, words.format_map(vars(error)))
        if isinstance(error, _WITHOUT_ADVICE):
            return Refused(code, error.message)
        return Refused(code, " ".join(errors.public_text(error).split()))
    LOG.error("a command failed", exc_info=error)
    return Refused(ServerError.UnknownError, "the service failed; its log has the reason: try again")
