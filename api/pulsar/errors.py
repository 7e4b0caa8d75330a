"""Commands that the gateway sends, and which of the protocol's errors an error of this service is.

A reason is what REST would give: it says what happened, to what, and what to do, and holds no secret.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import IntEnum

from api.broker.refusals import (
    BacklogQuotaExceeded,
    ConsumerBusy,
    ConsumerNotAssigned,
    InvalidTopicEpoch,
    ProducerBusy,
    ProducerFenced,
)
from api.broker.schemas import IncompatibleSchema, InvalidSchema
from api.http.problems import RestException
from api.observability.redaction import excerpt
from storage import errors

LOG = logging.getLogger(__name__)


class ServerError(IntEnum):
    """The errors of Pulsar's protocol that this service sends."""

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
    """A command that is answered with an error of the protocol."""

    def __init__(self, error: ServerError, message: str) -> None:
        message = excerpt(message)  # names of a client have any length
        super().__init__(message)
        self.error = error
        self.message = message


_BY_KIND: Mapping[type[Exception], ServerError] = {
    ConsumerBusy: ServerError.ConsumerBusy,
    ConsumerNotAssigned: ServerError.ConsumerAssignError,
    ProducerBusy: ServerError.ProducerBusy,
    ProducerFenced: ServerError.ProducerFenced,
    IncompatibleSchema: ServerError.IncompatibleSchema,
    InvalidSchema: ServerError.IncompatibleSchema,
    errors.TopicNotFound: ServerError.TopicNotFound,
    errors.InvalidTopicName: ServerError.InvalidTopicName,
    errors.InvalidInput: ServerError.NotAllowedError,
    errors.NotFound: ServerError.MetadataError,
    errors.Conflict: ServerError.ServiceNotReady,
    errors.Misconfigured: ServerError.ServiceNotReady,
    errors.Unavailable: ServerError.ServiceNotReady,
    errors.DataLoss: ServerError.PersistenceError,
}
"""The first that fits decides. ServiceNotReady: a client looks the topic up again and repeats what it asked for."""
_WITHOUT_ADVICE = (ProducerBusy, ProducerFenced, InvalidTopicEpoch)
"""Refusals that the protocol sends without advice, as a broker does."""
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
    """An error as the protocol has it. What is not foreseen is logged, and an UnknownError without
    details."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, RestException):
        return Refused(_BY_STATUS.get(error.status_code, ServerError.UnknownError), excerpt(str(error.detail)))
    if isinstance(error, BacklogQuotaExceeded):
        kind = ServerError.ProducerBlockedQuotaExceededException
        return Refused(ServerError.ProducerBlockedQuotaExceededError if error.holds else kind, str(error))
    if isinstance(error, errors.CompactorError):
        kind = next((found for kind, found in _BY_KIND.items() if isinstance(error, kind)), ServerError.UnknownError)
        return Refused(
            kind,
            error.message
            if isinstance(error, _WITHOUT_ADVICE)
            else excerpt(" ".join(errors.public_text(error).split())),
        )
    LOG.error("a command failed", exc_info=error)
    return Refused(ServerError.UnknownError, "the service failed, and its log says how: try again")
