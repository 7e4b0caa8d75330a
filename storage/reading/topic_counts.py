"""Counts of topics in lists: what SQL knows of sealed ledgers and rolled segments, and what open segments hold.

An open segment costs one small file, however large it is; a topic without one costs nothing. One in another machine's
log directory is not counted, nor is one whose file cannot be read: its reader reports why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from storage.errors import CompactorError
from storage.log.directory import LogDirectory
from storage.log.unsealed_counts import unsealed_end
from storage.metadata.records import SegmentState, TopicActiveSegment, TopicSummary
from storage.metadata.store import MetadataStore


def with_open_segments(
    metadata: MetadataStore, log: LogDirectory, summaries: Sequence[TopicSummary]
) -> list[TopicSummary]:
    """Return the summaries with the messages and bytes of open segments added to what is not sealed."""
    uid = log.known_uid
    if uid is None:
        return list(summaries)  # nothing was ever appended here
    listed = {summary.topic_id for summary in summaries}
    written = [topic.id for topic in metadata.segments.topics_with([SegmentState.OPEN], uid) if topic.id in listed]
    active = {item.topic.id: item for item in metadata.segments.active_segments(written)}
    return [
        _counted(log, summary, active[summary.topic_id]) if summary.topic_id in active else summary
        for summary in summaries
    ]


def _counted(log: LogDirectory, summary: TopicSummary, active: TopicActiveSegment) -> TopicSummary:
    if active.open is None:
        return summary
    try:
        end = unsealed_end(log, active.topic, active.open)
    except (CompactorError, OSError):
        return summary
    if end is None:
        return summary
    return replace(
        summary,
        unsealed_messages=summary.unsealed_messages + end.next_offset - active.open.first_offset,
        unsealed_bytes=summary.unsealed_bytes + end.size,
    )
