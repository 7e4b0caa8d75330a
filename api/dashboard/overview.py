"""First page: totals, and the table of the topics that the caller may see.

States are of the request's moment. The sizes of all topics are passed in, and those of many topics may be some seconds
old (`TopicSizesCache`); the rows of the page get present ones. The object store is not asked whether the losses that
pages have met are over: each topic's page does that. While a compaction runs that the caller may watch, the
page names the run, so that a script follows it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from urllib.parse import urlencode

from fastapi import Request
from starlette.responses import Response

from api.dashboard.attention import EXAMPLES, REASONS, failing_topics, group_by_reason
from api.dashboard.lost_objects import loss_cache_of
from api.dashboard.rendering import ANY_ROLE, operator_wording, render_page
from api.dashboard.topic_sizes import TopicSizes, sizes_cache_of
from api.dashboard.topics_table import (
    COLUMNS,
    NAME,
    REQUESTED,
    STATES,
    CompactionStates,
    TableView,
    TopicRow,
    filter_by_name,
    topics_page,
    totals,
)
from api.http.access import AuthAction, caller_of
from api.http.context import context_of

POLL_MS = 5_000
"""The interval at which a script replaces the page while a compaction runs."""


def render_overview(request: Request, view: TableView, sizes: TopicSizes) -> Response:
    """Render the page with the table of all topics. `sizes`: of all topics. Waits for the database."""
    context, caller = context_of(request), caller_of(request)

    may_see = context.access.topic_filter(caller, ANY_ROLE)
    may_watch = context.access.topic_filter(caller, (AuthAction.COMPACT,))

    def read_again(rows: Sequence[TopicRow]) -> Sequence[TopicRow]:
        present = sizes_cache_of(request).read_sizes([row.summary.topic_id for row in rows])
        by_id = {row.summary.topic_id: row for row in states.rows_with_states(present.rows)}
        return [by_id[row.summary.topic_id] for row in rows if row.summary.topic_id in by_id]

    visible = [row for row in sizes.rows if may_see(row.name)]
    states = CompactionStates.read(context.broker.environment)
    rows = filter_by_name(states.rows_with_states(visible), view.name_filter)
    run = next((run.run_id for name, run in states.running if may_watch(name)), None)
    is_requested = any(row.states and REQUESTED in row.states and may_watch(row.name) for row in rows)
    failing = failing_topics(rows, states.controls, may_watch, operator_wording(request))
    unserved = {name for log in context.broker.ownership.unserved_log_directories() for name in log.topics}
    waiting = [row for row in rows if row.name in unserved] if unserved else []
    lost = loss_cache_of(request).topic_ids() - failing.keys()
    unreadable = [row for row in rows if row.summary.topic_id in lost] if lost else []
    table = topics_page(rows, view, read_again)
    wholes = {name for group in table.groups for row in group.rows if (name := row.name.partitioned_topic) is not None}
    wholes = {name for name in wholes if may_see(name)}
    partitioned = context.broker.environment.metadata.partitions.by_names(wholes) if wholes else {}
    return render_page(
        request, "topics.html", view=view, columns=COLUMNS, states=STATES, totals=totals(rows), topics=len(visible),
        failing=failing, reasons=group_by_reason(failing.values())[:REASONS], page=table, partitioned=partitioned,
        waiting=waiting, unreadable=unreadable, examples=EXAMPLES, run=run, is_busy=run is not None or is_requested,
        poll_ms=POLL_MS, link=functools.partial(_overview_path, view),
    )  # fmt: skip


def _overview_path(view: TableView, **changes: object) -> str:
    """Return the path of the table of topics with changed choices; it begins with the first page unless `page` is one
    of them."""
    choices = {"q": view.name_filter, "state": view.state, "sort": view.sort, **changes}
    defaults = {"q": "", "state": "", "sort": NAME.key, "page": 1}
    chosen = {name: value for name, value in choices.items() if value != defaults[name]}
    return f"/?{urlencode(chosen)}" if chosen else "/"
