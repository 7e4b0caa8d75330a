"""Check of the queued topics: which of them are due (storage/metadata/topic_work.py).

A check reads the topics whose queued time has come, and no others, so it costs what happened since the check before it,
and what is due. A topic that is due stays queued until it is not due any more; a paused topic is removed, and queued
again by its resumption. The leader calls this, in one thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compactor.scheduling.backlog import Backlog, BacklogReader
from compactor.scheduling.due import DueTopic, due_topics, next_due_at, priority
from compactor.scheduling.scan_throttle import TOPICS_AT_ONCE, Throttle, throttle_items
from storage.clock import Clock
from storage.metadata.records import CompactionControl
from storage.metadata.store import MetadataStore
from storage.metadata.topic_work import TopicWork, WorkKind


@dataclass(frozen=True)
class DueQueue:
    """The queue of topics whose compaction may be due. `throttle` waits between pages (scan_throttle.py)."""

    metadata: MetadataStore
    backlogs: BacklogReader
    clock: Clock
    throttle: Throttle = lambda _: None

    def check(self, now: int, leader_token: int) -> list[DueTopic]:
        """Return the topics that are due at `now` (ms), in the order of `due_topics`; reschedule the others.

        Raises Fenced if the leadership was lost.
        """
        due: list[DueTopic] = []
        queued = self.metadata.topic_work.due(WorkKind.COMPACT, now)
        pages = (queued[first : first + TOPICS_AT_ONCE] for first in range(0, len(queued), TOPICS_AT_ONCE))
        for page in throttle_items(pages, self.clock, self.throttle):
            due += self._check_page(page, now, leader_token)
        return sorted(due, key=priority)

    def _check_page(self, page: Sequence[TopicWork], now: int, leader_token: int) -> list[DueTopic]:
        topic_ids = [work.topic_id for work in page]
        backlogs = {backlog.topic.id: backlog for backlog in self.backlogs.read_with_trigger(topic_ids)}
        controls = self.metadata.compaction_control.of_topics(backlogs)
        rescheduled = []
        for work in page:
            due_at = next_check_at(backlogs.get(work.topic_id), controls.get(work.topic_id), now)
            if due_at is None or due_at > now:
                rescheduled.append((work, due_at))
        if rescheduled:
            self.metadata.topic_work.reschedule(rescheduled, leader_token)
        return due_topics(list(backlogs.values()), controls, now)


def next_check_at(backlog: Backlog | None, control: CompactionControl | None, now: int) -> int | None:
    """Return the time (ms) at which a topic is to be checked next; `now`: it is due, None: not before an event.

    `backlog` None: the topic has no trigger, or was deleted.
    """
    if backlog is None or (control is not None and control.paused):
        return None
    return next_due_at(backlog, now)
