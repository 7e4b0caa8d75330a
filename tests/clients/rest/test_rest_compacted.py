"""The compacted ledger of a replicated topic over REST, by positions of its source."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import pytest
from sqlalchemy import update

from compactor.maintenance.retention import Retention
from storage.entries.entry import parse_metadata
from storage.entries.source_position import with_position
from storage.errors import ErrorText
from storage.log.group_commit import AppendOutcome
from storage.metadata.policy_store import topic_scope
from storage.metadata.producer_sequences import ProducerSequences
from storage.metadata.tables import compacted_ledgers
from storage.model import SourcePosition, SourceProgress
from tests.clients.rest.conftest import RestTopic, assert_refused
from tests.pulsar_entries import PUBLISHED, entry, metadata

FRAME = struct.Struct(">qqI")


def replicate(topic: RestTopic, first: int, keys: Sequence[bytes | None], ledger: int = 7) -> None:
    """Append an entry a key, as the replicator of one cluster does."""
    opened, broker = topic.served.topic(topic.name), topic.served.broker
    entries = []
    for number, key in enumerate(keys, first):
        described = metadata(partition_key=key, replicated_from="us", publish_time=PUBLISHED + number)
        entries.append(with_position(entry(described, b"%d" % number), SourcePosition(ledger, number)))
    answered: SimpleQueue[list[AppendOutcome]] = SimpleQueue()
    broker.logs.submit(opened, entries, answered.put)
    answered.get()
    progress = SourceProgress(SourcePosition(ledger, first + len(keys) - 1), PUBLISHED)
    stored = ProducerSequences(opened.snapshot_reader().end, None, {"us": progress})
    broker.environment.metadata.producer_sequences.replace(opened.record.id, stored)


def ask_up_to(topic: RestTopic, upto: str, request: str = "") -> dict[str, Any]:
    answer = topic.ask("PUT", f"/compaction?upto={upto}" + (f"&request={request}" if request else ""))
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def compact_up_to(topic: RestTopic, upto: str) -> dict[str, Any]:
    """One run, which succeeds; the last answer."""
    first = ask_up_to(topic, upto)
    assert (first["status"], first["run"], first["error"]) == ("RUNNING", None, None)
    topic.served.compact_requested()
    return ask_up_to(topic, upto, first["request"])


def set_min_lag(topic: RestTopic, milliseconds: int) -> None:
    scope = topic_scope(topic.served.topic(topic.name).record)
    topic.served.broker.environment.metadata.policies.change([scope], {"min.compaction.lag.ms": milliseconds})


def page(topic: RestTopic, query: str = "") -> list[tuple[int, int, bytes]]:
    """The entries of a page: ids and payload."""
    answer = topic.ask("GET", f"/compacted/entries?{query}")
    assert answer.status_code == 200, answer.text
    content, at, entries = answer.content, 0, []
    while at < len(content):
        ledger, number, size = FRAME.unpack_from(content, at)
        data = content[at + FRAME.size : at + FRAME.size + size]
        assert not parse_metadata(data).metadata.HasField("replicated_from")
        entries.append((ledger, number, data[parse_metadata(data).payload_at :]))
        at += FRAME.size + size
    return entries


def ids(topic: RestTopic, query: str = "") -> list[int]:
    return [number for _, number, _ in page(topic, query)]


def test_a_run_up_to_a_position(rest_topic: RestTopic) -> None:
    replicate(rest_topic, 0, [b"a", b"b", b"a", b"c"])
    done = compact_up_to(rest_topic, "7:3")
    assert (done["status"], done["error"], done["run"]["state"]) == ("SUCCESS", None, "SUCCESS")
    assert done["run"]["statistics"]["messages_in"] == 4
    view = rest_topic.ask("GET", "/compacted").json()
    assert view.pop("logical_bytes") > 0
    assert view.pop("stored_bytes") > 0
    assert view == {
        "generation": 1,
        "horizon": "7:3",
        "last_message": {"position": "7:3", "batch_index": -1, "publish_time": PUBLISHED + 3},
        "first": "7:0",
        "messages": 3,
    }
    assert page(rest_topic) == [(7, 1, b"1"), (7, 2, b"2"), (7, 3, b"3")]


def test_messages_without_a_key_stay_if_the_source_says_so(rest_topic: RestTopic) -> None:
    """A policy of the topic, for its later runs, too."""
    replicate(rest_topic, 0, [b"a", None, b"a"])
    compact_up_to(rest_topic, "7:2&retain-null-key=true")
    assert ids(rest_topic) == [1, 2]
    replicate(rest_topic, 3, [None, b"a"])
    compact_up_to(rest_topic, "7:4")
    assert ids(rest_topic) == [1, 3, 4]


def test_the_policy_for_messages_without_a_key_is_that_of_all_partitions(rest_topic: RestTopic) -> None:
    whole = f"{rest_topic.local}-parted"
    assert replace(rest_topic, local=whole).ask("PUT", "/partitions", 2).status_code == 204
    partitions = [replace(rest_topic, local=f"{whole}-partition-{number}") for number in range(2)]
    ask_up_to(partitions[1], "7:0&retain-null-key=true")
    policies = rest_topic.served.broker.environment.metadata.policies
    records = [rest_topic.served.topic(partition.name).record for partition in partitions]
    assert [policies.effective(record).compaction_retain_null_key for record in records] == [True, True]


def test_pages(rest_topic: RestTopic) -> None:
    replicate(rest_topic, 0, [b"k%d" % number for number in range(10)])
    compact_up_to(rest_topic, "7:9")
    assert ids(rest_topic, "limit=3") == [0, 1, 2]
    assert ids(rest_topic, "ledger=7&entry=8") == [8, 9]
    assert ids(rest_topic, "ledger=8&entry=0") == []
    assert ids(rest_topic, "ledger=7&entry=4&bytes=1") == [4], "at least one"
    assert ids(rest_topic, "horizon=7:2") == [0, 1, 2]
    size = len(rest_topic.ask("GET", "/compacted/entries?limit=1").content)
    assert ids(rest_topic, f"bytes={3 * size}") == [0, 1, 2]
    for query, is_last in (("limit=20", True), ("ledger=8&entry=0", True), ("limit=3", False), ("bytes=1", False)):
        headers = rest_topic.ask("GET", f"/compacted/entries?{query}").headers
        assert headers["X-Compactor-Generation"] == "1"
        assert headers.get("X-Compactor-Last") == ("true" if is_last else None)
    assert rest_topic.ask("GET", f"/compacted/position?publish-time={PUBLISHED + 4}").json() == {"position": "7:4"}
    assert rest_topic.ask("GET", f"/compacted/position?publish-time={PUBLISHED + 10}").json() == {"position": None}


def test_nothing_new_needs_no_run(rest_topic: RestTopic) -> None:
    replicate(rest_topic, 0, [b"a", b"b"])
    compact_up_to(rest_topic, "7:1")
    assert ask_up_to(rest_topic, "7:1")["status"] == "SUCCESS"
    assert ask_up_to(rest_topic, "7:5")["status"] == "SUCCESS", "markers after the last entry never arrive"
    replicate(rest_topic, 2, [b"a"])
    assert ask_up_to(rest_topic, "7:1")["status"] == "SUCCESS", "what the caller needs is compacted"
    assert len(rest_topic.ask("GET", "/compactions").json()) == 1


def test_a_run_that_is_under_way_is_joined(rest_topic: RestTopic) -> None:
    replicate(rest_topic, 0, [b"a"])
    assert rest_topic.ask("GET", "/compacted").json()["first"] == "7:0"
    first = ask_up_to(rest_topic, "7:0")
    replicate(rest_topic, 1, [b"b"])
    second = ask_up_to(rest_topic, "7:1")
    assert (first["status"], second["status"]) == ("RUNNING", "RUNNING")
    rest_topic.served.compact_requested()
    assert ask_up_to(rest_topic, "7:0", first["request"])["status"] == "SUCCESS"
    assert ask_up_to(rest_topic, "7:1", second["request"])["status"] == "SUCCESS"


def test_a_run_that_ends_too_early_is_followed_by_another(rest_topic: RestTopic) -> None:
    replicate(rest_topic, 0, [b"a"])
    first = ask_up_to(rest_topic, "7:0")
    rest_topic.served.compact_requested()
    replicate(rest_topic, 1, [b"b"])
    later = ask_up_to(rest_topic, "7:1")
    assert later["status"] == "RUNNING"
    assert ask_up_to(rest_topic, "7:0", first["request"])["status"] == "SUCCESS"
    rest_topic.served.compact_requested()
    assert ask_up_to(rest_topic, "7:1", later["request"])["status"] == "SUCCESS"
    assert rest_topic.ask("GET", "/compacted").json()["generation"] == 2


def test_messages_that_are_too_young_are_not_waited_for(rest_topic: RestTopic) -> None:
    replicate(rest_topic, 0, [b"a"])
    set_min_lag(rest_topic, 10**12)
    done = compact_up_to(rest_topic, "7:0")
    assert (done["status"], done["error"], done["run"]["state"]) == ("SUCCESS", None, "SUCCESS")
    assert rest_topic.ask("GET", "/compacted").json()["generation"] == 0
    replicate(rest_topic, 1, [b"b"])
    again = compact_up_to(rest_topic, "7:1")
    assert (again["status"], again["run"]) == ("SUCCESS", None), "nothing was new, so there was no run"
    assert rest_topic.served.broker.environment.metadata.compaction_control.requests() == []


def test_a_run_up_to_the_young_messages_is_enough(rest_topic: RestTopic) -> None:
    opened, day_ms = rest_topic.served.topic(rest_topic.name), 86_400_000
    replicate(rest_topic, 0, [b"a"])
    opened.log_manager().roll_and_seal(opened.record)
    replicate(rest_topic, day_ms, [b"b"])
    now = rest_topic.served.broker.environment.clock.now_ms()
    set_min_lag(rest_topic, now - PUBLISHED - day_ms // 2)
    first = ask_up_to(rest_topic, f"7:{day_ms}")
    rest_topic.served.compact_requested()
    set_min_lag(rest_topic, 0)  # by now the rest is old enough; a caller would wait for as long as messages arrive
    done = ask_up_to(rest_topic, f"7:{day_ms}", first["request"])
    assert (done["status"], done["run"]["statistics"]["messages_in"]) == ("SUCCESS", 1)
    assert rest_topic.ask("GET", "/compacted").json()["horizon"] == "7:0"


def test_a_run_that_missed_messages_is_followed_by_another(rest_topic: RestTopic) -> None:
    """They arrived between its tail and its claim, before which the request was made."""
    opened = rest_topic.served.topic(rest_topic.name)
    replicate(rest_topic, 0, [b"a"])
    compact_up_to(rest_topic, "7:0")
    replicate(rest_topic, 1, [b"b"])
    request = "2.0.0"
    assert ask_up_to(rest_topic, "7:1", request)["status"] == "RUNNING"
    rest_topic.served.broker.environment.metadata.compaction_control.withdraw(opened.record.id)
    opened.log_manager().roll_and_seal(opened.record)
    assert ask_up_to(rest_topic, "7:1", request)["status"] == "RUNNING", "also if they are sealed by now"
    rest_topic.served.compact_requested()
    assert ask_up_to(rest_topic, "7:1", request)["status"] == "SUCCESS"


def test_a_topic_that_was_emptied_is_not_waited_for(rest_topic: RestTopic) -> None:
    replicate(rest_topic, 0, [b"a", b"b"])
    first = ask_up_to(rest_topic, "7:1")
    assert rest_topic.ask("DELETE", "/truncate").status_code == 204
    rest_topic.served.compact_requested()
    assert ask_up_to(rest_topic, "7:1", first["request"])["status"] == "SUCCESS"


def test_the_error_of_a_run(rest_topic: RestTopic) -> None:
    replicate(rest_topic, 0, [b"a"])
    first = ask_up_to(rest_topic, "7:0")
    metadata_store = rest_topic.served.broker.environment.metadata
    record = rest_topic.served.topic(rest_topic.name).record
    metadata_store.compaction_control.record_failure(record.id, ErrorText("the disk is full"), 2**50)
    metadata_store.compaction_control.withdraw(record.id)
    failed = ask_up_to(rest_topic, "7:0", first["request"])
    assert (failed["status"], failed["error"]) == ("ERROR", "the disk is full")
    again = compact_up_to(rest_topic, "7:0")
    assert again["status"] == "SUCCESS"


def test_a_cancelled_run_is_an_error(rest_topic: RestTopic) -> None:
    replicate(rest_topic, 0, [b"a"])
    first = ask_up_to(rest_topic, "7:0")
    metadata_store = rest_topic.served.broker.environment.metadata
    record = rest_topic.served.topic(rest_topic.name).record
    run = metadata_store.runs.claim(record.id, "elsewhere:1:ab", {}, 60_000)
    assert ask_up_to(rest_topic, "7:0", first["request"])["status"] == "RUNNING"
    metadata_store.runs.cancel(run.run_id, "enough")
    failed = ask_up_to(rest_topic, "7:0", first["request"])
    assert (failed["status"], failed["error"], failed["run"]["run"]) == ("ERROR", "enough", run.run_id)


def test_a_topic_that_was_never_compacted(rest_topic: RestTopic) -> None:
    assert ask_up_to(rest_topic, "7:0")["status"] == "SUCCESS", "it is empty"
    view = rest_topic.ask("GET", "/compacted").json()
    assert (view["generation"], view["horizon"], view["last_message"], view["first"]) == (0, None, None, None)
    assert page(rest_topic) == []
    assert rest_topic.ask("GET", "/compacted/position?publish-time=0").json() == {"position": None}


@pytest.mark.parametrize("below", ["/compacted/entries?", "/compacted/position?publish-time=0&"])
def test_less_than_the_caller_knows_is_refused(rest_topic: RestTopic, below: str) -> None:
    assert_refused(rest_topic.ask("GET", f"{below}horizon=7:1"), 409, "up to nothing", "knows the horizon 7:1")
    assert_refused(rest_topic.ask("GET", f"{below}generation=1"), 409, "generation 0", "knows generation 1")
    replicate(rest_topic, 0, [b"a", b"b"])
    compact_up_to(rest_topic, "7:1")
    assert rest_topic.ask("GET", f"{below}horizon=7:1&generation=1").status_code == 200
    assert_refused(rest_topic.ask("GET", f"{below}horizon=7:2"), 409, "up to 7:1", "knows the horizon 7:2", "restore")
    assert_refused(rest_topic.ask("GET", f"{below}generation=2"), 409, "generation 1", "restore")


def test_another_compacted_ledger_of_the_same_generation_is_refused(rest_topic: RestTopic) -> None:
    """A restored database has compacted again, without entries that the source sent before: the page would be empty."""
    replicate(rest_topic, 5, [b"a", b"b"])
    compact_up_to(rest_topic, "7:6")
    assert_refused(
        rest_topic.ask("GET", "/compacted/entries?horizon=7:4&generation=1"),
        409,
        "up to 7:6",
        "knows the horizon 7:4 of the same generation, 1",
        "restore",
    )
    assert ids(rest_topic, "horizon=7:6&generation=1") == [5, 6]


def test_services_agree_about_a_horizon(rest_topic: RestTopic) -> None:
    replicate(rest_topic, 0, [b"a", b"b"])
    compact_up_to(rest_topic, "7:1")
    with rest_topic.served.broker.environment.metadata.database.write() as connection:  # as an older version did
        connection.execute(
            update(compacted_ledgers).values(source_horizon_ledger_id=None, source_horizon_entry_id=None)
        )
    assert rest_topic.ask("GET", "/compacted").json()["horizon"] == "7:1"
    replicate(rest_topic, 0, [b"c"], ledger=8)
    opened = rest_topic.served.topic(rest_topic.name)
    Retention(rest_topic.served.broker.environment).trim(opened.record, 2, force=True)
    # Of a service that was asked only now, a broker learns 8:-1.
    assert ids(rest_topic, "horizon=8:-1&generation=1") == [0, 1]


def test_a_topic_of_other_producers_has_no_positions(rest_topic: RestTopic) -> None:
    rest_topic.put(a="1")
    rest_topic.compact()
    for below in ("/compacted", "/compacted/entries"):
        assert_refused(rest_topic.ask("GET", below), 409, "no replicator sent")
    assert_refused(rest_topic.ask("PUT", "/compaction?upto=1:1"), 409, "no replicator sent")


def test_wrong_requests(rest_topic: RestTopic) -> None:
    for query in ("upto=7", "upto=earliest", "upto=7:0:1", "upto=7:1&request=mine"):
        assert_refused(rest_topic.ask("PUT", f"/compaction?{query}"), 400)
    assert rest_topic.ask("GET", "/compacted/entries?limit=0").status_code == 400
    assert rest_topic.ask("GET", "/compacted/entries?ledgr=1").status_code == 400
    assert rest_topic.ask("GET", "/compacted/position").status_code == 400
    assert rest_topic.ask("GET", "/compacted/entries?horizon=x").status_code == 400
