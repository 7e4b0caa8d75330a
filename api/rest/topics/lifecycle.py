"""Routes of persistent topics: list, create, delete and truncate them, their properties, the writer's lease.

`partitioned.py` has the routes of partitioned topics as a whole; properties, unloading and truncation are for both. The
lease of an owner that died on another machine can be released before its TTL ends. An owner that is alive is fenced.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Body, Query
from pydantic import BaseModel, Field

from api.broker import topics
from api.broker.refusals import PartitionedTopicRefused
from api.broker.threads import WaitsFor
from api.http.access import ANY_USE, AuthAction
from api.http.dependencies import Broker
from api.http.paths import TOPIC_PATH, Namespace, Topic
from api.http.problems import RestException, reword_errors
from api.http.query_parameters import AUTHORITATIVE, KNOWN_QUERY
from api.http.router import Routes
from api.rest.brokers.unsupported_features import check_not_shadow_topic
from api.rest.models import StrictBody, TextByName
from api.rest.tenancy.bundles import bundle_of, parse_bundle

router = Routes("topics")

EXISTS = "This topic already exists"
NO_NAMESPACE = "Namespace not found"
Properties = Annotated[TextByName | None, Body(description="Properties of the topic; may be left out.")]


class ReleaseLeaseRequest(StrictBody):
    """Options of the release of a lease. `force`: release also the lease of an owner that is known to be alive."""

    force: bool = False
    dry_run: bool = Field(default=True, description="Say who owns it, and change nothing.")


class LeaseReport(BaseModel):
    """The lease that was released, or would be. `owner` and `expires_at` (ms since 1970) null: no process owned it."""

    topic: str
    dry_run: bool
    owner: str | None
    expires_at: int | None


@router.get("/persistent/{tenant}/{namespace}", *ANY_USE)
def list_topics(
    broker: Broker,
    namespace: Namespace,
    bundle: Annotated[str | None, Query(description="Only of this bundle.")] = None,
) -> list[str]:
    """Return the topics of a namespace, partitions one by one."""
    listed = topics.in_namespace(broker.environment, namespace)
    range_name = None if bundle is None else parse_bundle(bundle)
    return [str(name) for name in listed if range_name is None or bundle_of(name) == range_name]


@router.put(TOPIC_PATH, AuthAction.ADMIN, refuses=(409,))
def create_topic(broker: Broker, topic: Topic, properties: Properties = None) -> None:
    """Create a topic without partitions."""
    check_not_shadow_topic(properties or {})
    with reword_errors(NO_NAMESPACE, EXISTS):
        topics.create(broker.environment, topic, properties or {})


@router.delete(TOPIC_PATH, AuthAction.ADMIN, refuses=(409,), waits_for=WaitsFor.LOG)
def delete_topic(broker: Broker, topic: Topic, force: bool = False) -> None:
    """Delete a topic with all that belongs to it; an active compaction is stopped and never publishes (S8).

    Refused while clients are connected to the topic, or while a process other than a service (an import, for example)
    writes it. With `force`, clients are disconnected, and the process can write no more.
    """
    try:
        topics.delete(broker, topic, force)
    except PartitionedTopicRefused as error:
        advice = "instead of calling delete topic, please call delete-partitioned-topic."
        raise RestException(409, f"{topic} is a partitioned topic, {advice}") from error


@router.delete(TOPIC_PATH + "/truncate", AuthAction.ADMIN, AUTHORITATIVE, refuses=(409,), waits_for=WaitsFor.WORK)
def truncate_topic(broker: Broker, topic: Topic) -> None:
    """Delete all messages of a topic, raw and compacted; offsets continue. All partitions are truncated, or none.

    Cursors and compaction lose the messages that they have not read.
    """
    topics.truncate(broker, topic)


@router.get(TOPIC_PATH + "/properties", *ANY_USE)
def get_topic_properties(broker: Broker, topic: Topic) -> dict[str, str]:
    """Return the properties of a topic, or of a partitioned topic."""
    return topics.properties(broker.environment, topic)


@router.put(TOPIC_PATH + "/properties", AuthAction.ADMIN)
def update_topic_properties(
    broker: Broker,
    topic: Topic,
    properties: Annotated[TextByName, Body(description="Those to add or replace.")],
) -> None:
    """Add or replace properties of a topic; its other properties stay."""
    topics.set_properties(broker.environment, topic, properties)


@router.delete(TOPIC_PATH + "/properties", AuthAction.ADMIN)
def remove_topic_property(
    broker: Broker,
    topic: Topic,
    key: Annotated[str, Query(description="The property to remove; none of that name is no error.")],
) -> None:
    """Remove one property of a topic."""
    topics.set_properties(broker.environment, topic, {}, [key])


@router.put(TOPIC_PATH + "/unload", AuthAction.ADMIN)
def unload_topic(broker: Broker, topic: Topic) -> None:
    """Release the writer's lease of a topic, and let clients look the topic up again. A compaction continues, and its
    status stays (S7)."""
    topics.unload(broker, topic)


@router.post(TOPIC_PATH + "/release-lease", AuthAction.ADMIN, KNOWN_QUERY, refuses=(409,))
def release_lease(
    broker: Broker,
    topic: Topic,
    request: Annotated[ReleaseLeaseRequest, Body()] = ReleaseLeaseRequest(),  # noqa: B008
) -> list[LeaseReport]:
    """Release the writer's lease of a topic, or of each partition, whose owner died. A dry run by default.

    409 if the owner is known to be alive, unless `force` is given: then its later appends fail.
    """
    dry_run = request.dry_run
    released = topics.revoke_leases(broker.environment, topic, force=request.force, dry_run=dry_run)
    return [
        LeaseReport(topic=str(record.name), dry_run=dry_run, owner=None, expires_at=None)
        if lease is None
        else LeaseReport(topic=str(record.name), dry_run=dry_run, owner=lease.owner, expires_at=lease.expires_at)
        for record, lease in released
    ]
