"""A ledger that a real broker offloaded to S3: all its messages, with their ids, and the compacted topic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from api.formats.input_files import open_paths
from api.formats.pulsar_ledgers import find_ledgers
from storage.log.bulk_append import SourceLedger
from storage.model import Message
from tests.budgets import IN_CI
from tests.workbench import Workbench, compacted_only

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "pulsar-offloaded"
MESSAGES = 680


@pytest.fixture(scope="module")
def recording() -> dict[str, Any]:
    if not DATA.exists():
        if IN_CI:
            pytest.fail("pulsar-offloaded is missing: CI needs ../shared beside the clone")
        pytest.skip("pulsar-offloaded is not beside this clone (../shared/data)")
    result: dict[str, Any] = json.loads((DATA / "offloaded.json").read_text(encoding="utf-8"))
    assert len(result["messages"]) == MESSAGES
    return result


def test_messages_ids_and_the_compacted_topic(recording: dict[str, Any], tmp_path: Path) -> None:
    bench = Workbench.embedded(tmp_path)
    topic = bench.topic()
    writer = topic.bulk_append()
    with open_paths([str(DATA)], None) as files, writer.lease() as lease:
        (ledger,) = find_ledgers(files)
        assert f"persistent://{ledger.index.managed_ledger.replace('/persistent', '')}" == recording["topic"]
        appended = writer.append_ledgers_under(lease, [SourceLedger(ledger.ledger_id, ledger.entries())])
    assert [stored.ledger_id for stored in appended.ledgers] == [746]
    messages = list(topic.messages())
    assert [as_recorded(message) for message in messages] == [
        (sent["id"], sent["key"], sent["payload"]) for sent in recording["messages"]
    ]
    assert len({message.message_id for message in messages}) == MESSAGES
    assert [message.offset for message in messages] == list(range(MESSAGES))
    bench.compact(topic)
    assert [message.offset for message in compacted_only(topic)] == recording["read_compacted_after_offload"]


def as_recorded(message: Message) -> tuple[str, str | None, str]:
    """Id, key and payload as the recording has them: an id ends with its batch index, -1 for a single message."""
    place = message.message_id
    key = None if message.key is None else message.key.decode()
    return f"{place.ledger_id}:{place.entry_id}:{place.batch_index}", key, (message.payload or b"").decode()
