"""Verifying a topic: the compacted ledger is derived again, and every difference named. Changes nothing.

One at a time a service: it reads all objects of the topic. The report is the one of `compactor verify --output json`.
"""

from __future__ import annotations

from typing import Any

from api.broker import names
from api.broker.threads import WaitsFor
from api.documents import VerifyReport
from api.http.access import AuthAction, InFull
from api.http.dependencies import Broker
from api.http.paths import TOPIC_PATH, Topic
from api.http.problems import RestException
from api.http.router import Routes
from api.reports import verify_document
from compactor.engines.engine import InProcessEngine
from compactor.verify.verify import Verifier

router = Routes("compactions", known_query=True)


@router.post(
    TOPIC_PATH + "/compaction/verify",
    AuthAction.COMPACT,
    AuthAction.ADMIN,
    refuses=(409,),
    waits_for=WaitsFor.WORK,
    response_model=list[VerifyReport],
)
def verify_topic(broker: Broker, topic: Topic, in_full: InFull) -> Any:
    """A report of the topic, or one of each partition. 409 while another one is under way here."""
    records = names.topics(broker.environment, topic)
    if not broker.verify_lock.acquire(blocking=False):
        raise RestException(409, "another topic is being verified by this service: try again when it has finished")
    try:
        verifier = Verifier(broker.patient, InProcessEngine())
        return [verify_document(verifier.verify(record.name), in_full=in_full) for record in records]
    finally:
        broker.verify_lock.release()
