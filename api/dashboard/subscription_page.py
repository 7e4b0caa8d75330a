"""Page of a subscription: its position and backlog, and a form that moves it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from fastapi import Request
from starlette.responses import Response

from api.broker import names, subscriptions
from api.broker.positions import CursorPosition
from api.broker.stats import StatsSnapshot, stats_snapshot
from api.broker.threads import WaitsFor
from api.dashboard.buttons import Button, Form, Refusal, RestCall, add_button_routes, redirect_to_topic
from api.dashboard.fields import parse_message, parse_time
from api.dashboard.formats import count
from api.dashboard.rendering import PageRoutes, render_page
from api.http.access import AuthAction
from api.http.dependencies import Broker
from api.http.paths import decode_path_part, encode_path_segment
from storage.errors import CursorNotFound, InvalidInput
from storage.metadata.records import COMPACTION_CURSOR
from storage.metadata.stats import CursorStatsRecord
from storage.model import EARLIEST, LATEST, TopicName
from storage.positions import StartTime

router = PageRoutes()


def _reset_cursor(broker: Broker, request: Request, topic: TopicName, form: Form) -> Response:
    name = _subscription_name(request)
    offsets = subscriptions.reset(broker, topic, name, _parse_position(form))
    place = {"offset": offsets[0]} if len(offsets) == 1 else {}
    return redirect_to_topic(topic, f"/subscriptions/{encode_path_segment(name)}", done="reset", **place)


def _redirect_after_reset(request: Request, topic: TopicName, _: object = None) -> Response:
    return redirect_to_topic(topic, f"/subscriptions/{encode_path_segment(_subscription_name(request))}", done="reset")


def reset_rest_call(request: Request, topic: TopicName, form: Form) -> RestCall:
    """Return the REST call that resets a subscription in all partitions to a time: any other position is one
    partition's, and was refused.

    REST takes no time before 1970. No message is older, so such a time is that of the first message.
    """
    position = _parse_position(form)
    assert isinstance(position, StartTime), "a partitioned topic has no other position"
    path = (
        f"subscription/{encode_path_segment(_subscription_name(request))}/resetcursor/{max(0, position.publish_time)}"
    )
    return RestCall(path, None, partial(_redirect_after_reset, request, topic))


def _parse_position(form: Form) -> CursorPosition:
    """Return the position of a subscription that a form chooses. Raise InvalidInput."""
    match form.get("to"):
        case "earliest":
            return EARLIEST
        case "latest":
            return LATEST
        case "time":
            return parse_time(form.get("time", ""))
        case "message":
            return parse_message(form.get("message", ""))
    raise InvalidInput("no position is chosen", "choose one of those of the form")


def _render_subscription(broker: Broker, request: Request, topic: TopicName, form: Form, refusal: Refusal) -> Response:
    name = _subscription_name(request)
    snapshots = _stats_snapshots(broker, topic)
    cursors = [(snapshot, cursor) for snapshot in snapshots for cursor in [_find_cursor(snapshot, name)] if cursor]
    if not cursors:
        raise CursorNotFound(topic, name)
    return render_page(
        request, "subscription.html", refusal.status, name=topic, subscription=name, cursors=cursors, form=form,
        problem=refusal.reason, is_partitioned=len(snapshots) > 1 or snapshots[0].stats.topic.name != topic,
        is_movable=name != COMPACTION_CURSOR, done=_result_sentence(request, snapshots),
    )  # fmt: skip


def _result_sentence(request: Request, snapshots: Sequence[StatsSnapshot]) -> str | None:
    """Return the sentence about the form that moved the subscription before this page: where it went; None: that of
    `RESULTS`."""
    if request.query_params.get("done") != "reset":
        return None
    if len(snapshots) > 1:
        return "The subscription was moved in each partition."
    offset = request.query_params.get("offset", "")
    if not re.fullmatch("[0-9]{1,18}", offset, re.ASCII):
        return None
    if int(offset) < snapshots[0].first_offset:
        begin = f"its raw messages begin at offset {count(snapshots[0].first_offset)}"
        return f"The subscription was moved to the beginning of the topic; {begin}."
    end = ", the end of the topic: no message follows yet" if int(offset) >= snapshots[0].end_offset else ""
    return f"The subscription was moved to offset {count(int(offset))}{end}."


def _stats_snapshots(broker: Broker, topic: TopicName) -> list[StatsSnapshot]:
    """Return the statistics of a topic, or of each partition. Raise TopicNotFound."""
    records = names.topics(broker.environment, topic)
    return [item for record in records if (item := stats_snapshot(broker.environment, record.name)) is not None]


def _find_cursor(snapshot: StatsSnapshot, name: str) -> CursorStatsRecord | None:
    return next((cursor for cursor in snapshot.stats.cursors if cursor.record.name == name), None)


def _subscription_name(request: Request) -> str:
    return decode_path_part(request.path_params["subscription"])


add_button_routes(
    router,
    Button(
        "subscriptions/{subscription}",
        "resetCursorNow",
        (AuthAction.CONSUME,),
        _reset_cursor,
        _render_subscription,
        WaitsFor.STORE,
        reset_rest_call,
    ),
)
