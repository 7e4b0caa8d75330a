"""Commands that the gateway sends, and which of the protocol's errors an error of this service is.

A reason is what REST would give: it says what happened, to what, and what to do, and holds no secret.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

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
from api.observability.redaction import shown
from api.pulsar.pulsar_api_pb2 import (
    BaseCommand,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadataResponse,
    MessageIdData,
    ServerError,
)
from storage import errors
from storage.model import MessageId

LOG = logging.getLogger(__name__)
_UINT64 = (1 << 64) - 1
_SIGN = 1 << 63


class Refused(Exception):
    """A command that is answered with an error of the protocol."""

    def __init__(self, error: ServerError, message: str) -> None:
        message = shown(message)  # names of a client have any length
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
        return Refused(_BY_STATUS.get(error.status_code, ServerError.UnknownError), shown(str(error.detail)))
    if isinstance(error, BacklogQuotaExceeded):
        kind = ServerError.ProducerBlockedQuotaExceededException
        return Refused(ServerError.ProducerBlockedQuotaExceededError if error.holds else kind, str(error))
    if isinstance(error, errors.CompactorError):
        kind = next((found for kind, found in _BY_KIND.items() if isinstance(error, kind)), ServerError.UnknownError)
        return Refused(
            kind,
            error.message if isinstance(error, _WITHOUT_ADVICE) else shown(" ".join(errors.public_text(error).split())),
        )
    LOG.error("a command failed", exc_info=error)
    return Refused(ServerError.UnknownError, "the service failed, and its log says how: try again")


def success(request_id: int) -> BaseCommand:
    """The answer to a request that has no other."""
    found = BaseCommand(type=BaseCommand.SUCCESS)
    found.success.request_id = request_id
    return found


def failure(request_id: int, error: Refused, kind: int = BaseCommand.ERROR) -> BaseCommand:
    """Return the answer that refuses a request. `kind`: the type of the request, if its answer is of a type of its
    own: clients do not relate another one to it."""
    answer_type, field, result, error_field, message_field = _FAILURES.get(kind, _ERROR)
    answer = BaseCommand(type=answer_type)
    response = getattr(answer, field)
    response.request_id = request_id
    if result is not None:
        response.response = result
    setattr(response, error_field, error.error)
    setattr(response, message_field, error.message)
    return answer


_FailureForm = tuple[BaseCommand.Type, str, int | None, str, str]
_ERROR: _FailureForm = (BaseCommand.ERROR, "error", None, "error", "message")
_FAILURES: Mapping[int, _FailureForm] = {
    BaseCommand.LOOKUP: (
        BaseCommand.LOOKUP_RESPONSE,
        "lookup_topic_response",
        CommandLookupTopicResponse.Failed,
        "error",
        "message",
    ),
    BaseCommand.PARTITIONED_METADATA: (
        BaseCommand.PARTITIONED_METADATA_RESPONSE,
        "partition_metadata_response",
        CommandPartitionedTopicMetadataResponse.Failed,
        "error",
        "message",
    ),
    BaseCommand.GET_SCHEMA: (
        BaseCommand.GET_SCHEMA_RESPONSE,
        "get_schema_response",
        None,
        "error_code",
        "error_message",
    ),
    BaseCommand.GET_OR_CREATE_SCHEMA: (
        BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE,
        "get_or_create_schema_response",
        None,
        "error_code",
        "error_message",
    ),
    BaseCommand.CONSUMER_STATS: (
        BaseCommand.CONSUMER_STATS_RESPONSE,
        "consumer_stats_response",
        None,
        "error_code",
        "error_message",
    ),
}
"""Of requests with an answer of their own: its type and field, the result that it has, fields of error and message."""


def id_data(message_id: MessageId, partition: int = -1) -> MessageIdData:
    """A message id as the protocol has it; `earliest` is -1:-1."""
    found = MessageIdData(ledger_id=message_id.ledger_id & _UINT64, entry_id=message_id.entry_id & _UINT64)
    if partition >= 0:
        found.partition = partition
    if message_id.batch_index >= 0:
        found.batch_index = message_id.batch_index
    return found


def message_id(data: MessageIdData) -> MessageId:
    """The message id that a client sent."""
    return MessageId(signed(data.ledger_id), signed(data.entry_id), data.partition, data.batch_index)


def signed(number: int) -> int:
    """A uint64 of the protocol as Java's clients mean it."""
    return number - 2 * _SIGN if number >= _SIGN else number


def ack_set(live: int, messages: int) -> list[int]:
    """The slots of a batch that are to be delivered, 64 a number, as java.util.BitSet has them."""
    words = []
    for first in range(0, messages, 64):
        word = live >> first & _UINT64
        words.append(signed(word))
    while words and not words[-1]:
        words.pop()
    return words
