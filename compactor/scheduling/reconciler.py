"""Walk over all topics, a page at a time, that proves the queue of due topics and sums up their backlogs.

A topic that is due and not queued is a bug, or the work of a version that queues nothing: it is logged, counted and
queued. A topic whose time comes later, or whose open segment alone makes it due, is queued without a word: the owner of
its log may be about to queue it. The walk takes one part in `PARTS` of the time, so about 1 % of a core, and begins
again at most once in `interval_ms`. It goes by topic id; a long walk notes its place in SQL once in `interval_ms`, and
a new leader continues there.

The order of reads makes a false alarm impossible: first backlogs, then the queue, so an event between the two shows in
the queue. Only this thread of the leader removes topics from the queue. Memory: the sums of two walks.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from compactor.scheduling.backlog import BacklogReader
from compactor.scheduling.due import TopicsCheckResult, cause_of
from compactor.scheduling.due_queue import next_check_at
from compactor.scheduling.scan_throttle import TOPICS_AT_ONCE
from storage.clock import Clock, is_due
from storage.metadata.records import TopicRecord
from storage.metadata.store import MetadataStore
from storage.metadata.topic_work import WorkKind

PARTS = 100
"""A page is followed by a rest of this many times the page's own time."""
NOTE = "walk"
"""The name of the note with the place of a walk."""
NOTHING = TopicsCheckResult.of([], {}, 0, 0)
IsFirstPage = bool
"""True: a page was checked, and it is the first one of a walk."""
_log = logging.getLogger(__name__)


class Reconciler:
    """The walk over all topics that proves the queue of due topics. One thread of the leader takes its steps."""

    def __init__(self, metadata: MetadataStore, backlogs: BacklogReader, clock: Clock, interval_ms: int) -> None:
        self._metadata = metadata
        self._backlogs = backlogs
        self._clock = clock
        self._interval_ms = interval_ms
        self._after_id: int | None = None
        """The walk has passed the topics up to this id; None: unknown, since the process has not led yet."""
        self._noted_at: int | None = None
        """When the place was noted last, or the walk began."""
        self._has_note = False
        self._walked: TopicsCheckResult = NOTHING
        self._last: TopicsCheckResult | None = None
        self._begun_at: int | None = None
        self._walked_at: int | None = None
        self._rest_ms = 0
        self.unqueued_due_topics_since_start = 0
        """The number of topics that were due and not queued, since the process began."""

    @property
    def totals(self) -> TopicsCheckResult:
        """The sums over all topics with a trigger, of the last whole walk, or of the first walk while it continues."""
        return self._last or self._walked

    def walk_next_page_if_due(self, leader_token: int) -> IsFirstPage:
        """Check the next page of topics if one is due now. Return whether it is the first of a walk. Raises Fenced."""
        now = self._clock.now_ms()
        if self._after_id is None:
            self._after_id = int(self._metadata.topic_work.leader_note(NOTE) or -1)
            self._has_note = self._after_id >= 0
        begins = self._after_id < 0 or self._begun_at is None
        if begins and not is_due(self._begun_at, self._interval_ms, now):
            return False
        if not is_due(self._walked_at, self._rest_ms, now):
            return False
        if begins:
            self._begun_at, self._walked, self._noted_at = now, NOTHING, now
        page = self._metadata.topics.page_by_id(self._after_id, TOPICS_AT_ONCE)
        if page:
            self._walked = self._walked.plus(self._reconcile_page(page, now))
            self._after_id = page[-1].id
        ends = len(page) < TOPICS_AT_ONCE
        if ends:
            self._after_id, self._last = -1, self._walked
            self._backlogs.drop_unused_segment_counts()
        if (ends and self._has_note) or (not ends and is_due(self._noted_at, self._interval_ms, now)):
            self._metadata.topic_work.set_leader_note(NOTE, str(self._after_id), leader_token)
            self._noted_at, self._has_note = now, not ends
        self._walked_at = self._clock.now_ms()
        self._rest_ms = PARTS * max(0, self._walked_at - now)
        return begins

    def _reconcile_page(self, page: list[TopicRecord], now: int) -> TopicsCheckResult:
        """Queue and log the topics of a page that are due and not queued. Return the sums over the page."""
        backlogs = {
            backlog.topic.id: backlog for backlog in self._backlogs.read_with_trigger([item.id for item in page])
        }
        controls = self._metadata.compaction_control.of_topics(backlogs)
        queued = self._metadata.topic_work.of_topics(WorkKind.COMPACT, backlogs)
        unqueued = []
        for topic_id, backlog in backlogs.items():
            due_at = next_check_at(backlog, controls.get(topic_id), now)
            if due_at is not None and (topic_id not in queued or queued[topic_id].due_at > due_at):
                unqueued.append(topic_id)
        if unqueued:
            due_at_once = [
                item
                for item in self._backlogs.read_with_trigger_without_open_segments(unqueued)
                if cause_of(item, now) is not None
            ]
            for backlog in due_at_once:
                _log.warning(
                    "a compaction of %s is due and was not queued, and is queued now: a bug unless a service of an "
                    "older version works on this database; please report it",
                    backlog.topic.name,
                )
            self.unqueued_due_topics_since_start += len(due_at_once)
            self._metadata.topic_work.queue(WorkKind.COMPACT, unqueued)
        return TopicsCheckResult.of(list(backlogs.values()), controls, 0, now)


def with_totals(check: TopicsCheckResult, totals: TopicsCheckResult) -> TopicsCheckResult:
    """Return the result of a check of the queue, with the sums over all topics."""
    return replace(totals, at=check.at, due=check.due, max_delay_ms=check.max_delay_ms)
