"""Forms that create and delete a topic, and that produce a message."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fastapi import Request
from starlette.responses import Response

from api.broker import messages, names, partitioned_topics, topics
from api.broker.messages import NewMessage
from api.broker.stats import stats_snapshot
from api.broker.threads import WaitsFor
from api.dashboard.buttons import Button, Form, Refusal, add_button_routes, redirect, redirect_to_topic, refusal_of
from api.dashboard.rendering import (
    FORM_BYTES,
    NEW_TOPIC,
    FormRefused,
    PageRoutes,
    read_same_origin_form,
    render_page,
    require_permission,
)
from api.dashboard.topics_table import partition_rows
from api.http.access import AuthAction, caller_of
from api.http.context import context_of
from api.http.dependencies import Broker
from api.http.problems import RestException
from storage.errors import CompactorError, Conflict, InvalidInput
from storage.metadata.records import COMPACTION_CURSOR
from storage.model import TopicName

router = PageRoutes()
PRODUCER = "Dashboard"
"""The producer of the messages that the form sends."""
_MOST_NAMESPACES = 200
"""The number of namespaces that the form of a new topic proposes."""


@dataclass(frozen=True)
class DeletionImpact:
    """The content of a topic that its deletion removes. `subscriptions` None: they were not counted."""

    messages: int
    bytes: int
    partitions: int
    subscriptions: int | None
    is_compacted: bool


@router.get(NEW_TOPIC)
def show_new_topic(broker: Broker, request: Request) -> Response:
    """Return the form of a new topic."""
    require_permission(request, AuthAction.ANYONE)
    return _render_new_topic_form(request, {}, Refusal())


@router.post(NEW_TOPIC, operation_id="createTopicNow")
async def create_topic(broker: Broker, request: Request) -> Response:
    """Create a topic, with or without partitions, and redirect to its page."""
    require_permission(request, AuthAction.ANYONE)
    refused: FormRefused | None = None
    try:
        form: Form = await read_same_origin_form(request)
    except FormRefused as error:
        form, refused = error.form, error
    return await broker.pools[WaitsFor.DATABASE].run(_create_or_render_form, broker, request, form, refused)


def _create_or_render_form(broker: Broker, request: Request, form: Form, refused: FormRefused | None) -> Response:
    """Create the topic of a form, and redirect to its page; if that is refused, return the form with the reason."""
    try:
        if refused is not None:
            raise refused
        tenant, slash, namespace = (full_name := form.get("namespace", "").strip()).partition("/")
        if not slash:
            raise InvalidInput(f"{full_name[:40]!r} is not a namespace", "give its tenant, too, as in public/default")
        name = TopicName(tenant, namespace, form.get("name", "").strip())
        require_permission(request, AuthAction.ADMIN, topic=name)
        number = form.get("partitions", "").strip()
        if number:
            partitioned_topics.create(broker.environment, name, _parse_partition_count(number), {})
        else:
            topics.create(broker.environment, name, {})
    except (CompactorError, RestException) as error:
        return _render_new_topic_form(request, form, refusal_of(request, error))
    return redirect_to_topic(name, done="created")


def _parse_partition_count(text: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text, re.ASCII):
        raise InvalidInput(f"{text[:20]!r} is not a number of partitions", "give a whole number, or leave it empty")
    return int(text)


def _render_new_topic_form(request: Request, form: Form, refusal: Refusal) -> Response:
    caller = caller_of(request)
    namespaces = context_of(request).access.administered_namespaces(caller)
    if not namespaces:
        raise RestException(403, f"role {caller.role!r} may administer no namespace: ask an administrator of one")
    return render_page(
        request, "new_topic.html", refusal.status, namespaces=namespaces[:_MOST_NAMESPACES], form=form,
        problem=refusal.reason,
    )  # fmt: skip


def _delete_topic(broker: Broker, _request: Request, topic: TopicName, form: Form) -> Response:
    force = form.get("force") == "yes"
    if broker.environment.metadata.partitions.find(topic) is None:
        topics.delete(broker, topic, force)
    else:
        elsewhere = len(partitioned_topics.owned_elsewhere(broker, topic))
        if elsewhere:
            raise Conflict(
                f"{elsewhere} partitions of {topic} have their clients at other services",
                "delete it over REST, which lets these services unload them first",
            )
        partitioned_topics.delete(broker, topic, force)
    return redirect("/", done="deleted")


def _render_delete_form(broker: Broker, request: Request, topic: TopicName, form: Form, refusal: Refusal) -> Response:
    return render_page(
        request, "delete.html", refusal.status, name=topic, losses=_deletion_impact(broker, topic), form=form,
        problem=refusal.reason,
    )  # fmt: skip


def _deletion_impact(broker: Broker, name: TopicName) -> DeletionImpact:
    """Return the content of a topic that its deletion removes. Raise TopicNotFound."""
    environment = broker.environment
    partitioned = environment.metadata.partitions.find(name)
    if partitioned is not None:
        rows = partition_rows(broker, partitioned)
        return DeletionImpact(
            sum(row.messages for row in rows),
            sum(row.raw_bytes for row in rows),
            partitioned.partitions,
            None,
            any(row.summary.compacted_bytes is not None for row in rows),
        )
    snapshot = stats_snapshot(environment, name)
    if snapshot is None:
        raise names.missing_topic_error(environment, name)
    subscriptions = [item for item in snapshot.stats.cursors if item.record.name != COMPACTION_CURSOR]
    is_compacted = snapshot.stats.compacted is not None
    return DeletionImpact(
        snapshot.end_offset - snapshot.first_offset, snapshot.size, 0, len(subscriptions), is_compacted
    )


def _produce_message(broker: Broker, _request: Request, topic: TopicName, form: Form) -> Response:
    message = _parse_message(form)
    records = messages.topic_or_partitions(broker, topic)
    (number,) = messages.assign_to_partitions(broker, [message], records)
    record = records[number]
    if record is None:
        raise Conflict(
            f"the partition {number} of {topic}, to which the key belongs, was deleted",
            "create the missing partitions first, or give another key",
        )
    (answer,) = messages.append(broker, record, [message])
    if isinstance(answer, CompactorError):
        raise answer
    return redirect_to_topic(
        topic, "/produce", done="produced", offset=answer.first.offset, partition=record.name.partition
    )


def _parse_message(form: Form) -> NewMessage:
    """Return the message of a form, in which a browser ends lines with CR LF. Raise InvalidInput."""
    key, value = form.get("key", ""), form.get("value", "").replace("\r\n", "\n")
    if not key and not value:
        raise InvalidInput("the message has neither a key nor a value", "fill in one of them")
    return NewMessage(
        key=key.encode() or None,
        payload=value.encode() or None,
        properties=[_parse_property(line) for line in form.get("properties", "").splitlines() if line.strip()],
        event_time=None,
        publish_time=None,
        sequence_id=0,
        producer=PRODUCER,
    )


def _parse_property(line: str) -> tuple[str, str]:
    name, separator, value = line.partition("=")
    if not separator or not name.strip():
        raise InvalidInput(f"{line[:40]!r} is not a property", "give one name=value in each line")
    return name.strip(), value.strip()


def _render_produce_form(broker: Broker, request: Request, topic: TopicName, form: Form, refusal: Refusal) -> Response:
    partitioned = broker.environment.metadata.partitions.find(topic)
    if partitioned is None:
        names.topic(broker.environment, topic)
    return render_page(
        request, "produce.html", refusal.status, name=topic, is_partitioned=partitioned is not None, form=form,
        problem=refusal.reason, stored=_produced_message_position(request, topic), form_bytes=FORM_BYTES,
    )  # fmt: skip


def _produced_message_position(request: Request, topic: TopicName) -> tuple[TopicName, int] | None:
    """Return the topic or partition and the offset of the message that the form before this page produced; None: there
    was no such form."""
    query = request.query_params
    numbers = [query.get(name, "") for name in ("offset", "partition")]
    if query.get("done") != "produced" or not all(re.fullmatch("-?[0-9]{1,18}", text, re.ASCII) for text in numbers):
        return None
    offset, partition = map(int, numbers)
    return (topic if partition < 0 or topic.partitioned_topic else topic.of_partition(partition)), offset


for _button in (
    Button("delete", "deleteTopicNow", (AuthAction.ADMIN,), _delete_topic, _render_delete_form, WaitsFor.LOG),
    Button("produce", "produceNow", (AuthAction.PRODUCE,), _produce_message, _render_produce_form, WaitsFor.LOG),
):
    add_button_routes(router, _button)
