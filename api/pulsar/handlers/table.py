"""The function that handles each type of request."""

from __future__ import annotations

from typing import NoReturn

from api.pulsar.codec import requests
from api.pulsar.errors import Refused, ServerError
from api.pulsar.handlers import consumers, lookup, producers, schemas
from api.pulsar.session import Handlers, Session


def _refuse_transaction(_session: Session, _request: requests.Request) -> NoReturn:
    """Refuse a request about transactions. Raise Refused (NotAllowedError)."""
    raise Refused(ServerError.NotAllowedError, "transactions are not offered")


def _ignore(_session: Session, _request: requests.AuthResponse | requests.Pong) -> None:
    """Ignore AUTH_RESPONSE and PONG.

    The service never asks for a token: a connection ends with its token, and the client reconnects. Any bytes show that
    the client is alive.
    """


HANDLERS: Handlers = {
    requests.Connect: Session.connect,
    requests.Ping: lambda _session, _request: requests.Pong(),
    requests.Pong: _ignore,
    requests.AuthResponse: _ignore,
    requests.Lookup: lookup.look_up,
    requests.PartitionedMetadata: lookup.partitioned_metadata,
    requests.GetTopicsOfNamespace: lookup.list_topics,
    requests.WatchTopicList: lookup.watch,
    requests.WatchTopicListClose: lookup.unwatch,
    requests.Producer: producers.create,
    requests.Send: producers.send,
    requests.CloseProducer: producers.close,
    requests.Subscribe: consumers.subscribe,
    requests.Flow: consumers.flow,
    requests.Ack: consumers.ack,
    requests.RedeliverUnacknowledgedMessages: consumers.redeliver,
    requests.Unsubscribe: consumers.unsubscribe,
    requests.Seek: consumers.seek,
    requests.CloseConsumer: consumers.close,
    requests.GetLastMessageId: consumers.get_last_message_id,
    requests.ConsumerStats: consumers.get_stats,
    requests.GetSchema: schemas.get,
    requests.GetOrCreateSchema: schemas.get_or_create,
    requests.NewTxn: _refuse_transaction,
    requests.AddPartitionToTxn: _refuse_transaction,
    requests.AddSubscriptionToTxn: _refuse_transaction,
    requests.EndTxn: _refuse_transaction,
    requests.TcClientConnectRequest: _refuse_transaction,
}
