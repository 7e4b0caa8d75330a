"""Requests for compactions of a partitioned topic."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.broker import compaction
from api.broker.refusals import MissingPartition
from storage.model import TopicName
from tests.serving import serving


def test_a_partition_that_is_deleted_meanwhile_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = TopicName.parse("persistent://public/default/whole")
    with serving(tmp_path) as served:
        metadata = served.broker.environment.metadata
        metadata.partitions.create(whole, 2, {})
        check_requestable = metadata.compaction_control.check_requestable

        def delete_before_check(topic_id: int) -> None:
            metadata.tenancy.delete_topic(topic_id)
            check_requestable(topic_id)

        monkeypatch.setattr(metadata.compaction_control, "check_requestable", delete_before_check)
        with pytest.raises(MissingPartition):
            compaction.trigger(served.broker, whole, "ann")
