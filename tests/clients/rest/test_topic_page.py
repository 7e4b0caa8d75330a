"""The page of a topic: its runs, its clients, its schema, and what it shows when something is wrong."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api.broker.serving.connected_clients import LiveSubscriptionState, LiveTopicState
from api.broker.stats_tree import ConsumerStats, ProducerStats, SubscriptionStats, TopicStats
from compactor.scheduling.backlog import BacklogReader
from storage.environment import Environment
from storage.errors import ErrorText
from storage.ledger.names import ObjectKind
from storage.log.directory import LogDirectory
from storage.log.segment_reader import SegmentReader
from storage.metadata.records import ServiceRecord
from storage.owner import Owner
from storage.topic import Topic
from tests.clients.rest.conftest import RestTopic
from tests.clients.rest.dashboard_pages import page, page_of, picture, states_of
from tests.entries import produce, single
from tests.serving import Served


def section(text: str, title: str) -> str:
    """Return the part of a page after the heading with that id."""
    return text.partition(f'<h2 id="{title}">')[2].partition("<h2")[0]


def fail_to_compact(served: Served, topic: RestTopic) -> None:
    """Request a compaction, which fails; the time of the next try has come 11 seconds ago."""
    assert topic.ask("PUT", "/compaction").status_code == 204
    served.compact_requested()
    metadata, topic_id = served.broker.environment.metadata, served.topic(topic.name).record.id
    ((_, last),) = metadata.runs.newest(1, topic_ids=[topic_id])
    assert last.error
    metadata.compaction_control.record_failure(topic_id, last.error, served.broker.environment.clock.now_ms() - 11_000)


def test_a_run_is_drawn_and_its_numbers_are_in_words(served: Served, rest_topic: RestTopic) -> None:
    rest_topic.put(a="1", b="1")
    rest_topic.put(a="2")
    rest_topic.compact()
    runs = section(page(served.client, page_of(rest_topic)), "compactions")
    assert re.findall('<svg class="panel".*?aria-label="([^"]*)"', runs)[0] == "Messages of 1 compactions, at most 3"
    assert re.search(r"success, [^;]*; 3 new and 0 compacted messages in, 2 out; [^;]* read, [^;]* written; took", runs)
    assert "Why runs ended early" not in runs


@pytest.mark.parametrize("local", ["", "-partition-0"], ids=["topic", "partitioned"])
def test_a_run_that_ends_while_a_page_is_read_is_not_missed(
    served: Served, rest_topic: RestTopic, monkeypatch: pytest.MonkeyPatch, local: str
) -> None:
    """A page that is not busy is not loaded again: it has to show the run's result."""
    name = f"public/default/{rest_topic.local}"
    if local:
        name += "-parted"
        assert served.ask("PUT", f"/admin/v2/persistent/{name}/partitions", "1").status_code == 204
    body = json.dumps({"messages": [{"key": "a", "payload": "1"}]})
    assert served.ask("POST", f"/topics/persistent/{name}{local}", body).status_code == 200
    assert served.ask("PUT", f"/admin/v2/persistent/{name}/compaction").status_code == 204
    runs, pending = served.broker.environment.metadata.runs, [served.compact_requested]
    newest = runs.newest

    def newest_then_compact(*arguments: Any, **options: Any) -> Any:
        records = newest(*arguments, **options)
        while pending:
            pending.pop()()
        return records

    monkeypatch.setattr(runs, "newest", newest_then_compact)
    text = page(served.client, f"/dashboard/topics/{name}")
    assert not pending
    assert 'data-busy="true"' in text
    assert 'data-busy="false"' in page(served.client, f"/dashboard/topics/{name}")


def test_the_reason_of_failures_is_listed_once(served: Served, rest_topic: RestTopic) -> None:
    rest_topic.put(a="1")
    rest_topic.compact()
    record = served.topic(rest_topic.name).record
    runs = served.broker.environment.metadata.runs
    for _ in range(3):
        runs.fail(runs.claim(record.id, "worker", {}, 60_000), ErrorText("the disk is <full>"))
    text = section(page(served.client, page_of(rest_topic)), "compactions")
    assert text.count("the disk is &lt;full&gt;") == 1
    assert "3 times, last in run" in text
    assert text.count('<span class="state error">error</span>') == 4
    control = served.broker.environment.metadata.compaction_control
    control.record_failure(
        record.id, ErrorText("the disk is <full>"), served.broker.environment.clock.now_ms() + 60_000
    )
    text = page(served.client, page_of(rest_topic))
    assert text.count("the disk is &lt;full&gt;") == 1
    assert '<a href="#failure">the failure above</a>' in section(text, "compactions")


def test_the_table_has_the_newest_runs(served: Served, rest_topic: RestTopic) -> None:
    record = served.topic(rest_topic.name).record
    runs = served.broker.environment.metadata.runs
    for _ in range(12):
        runs.fail(runs.claim(record.id, "worker", {}, 60_000), ErrorText("no"))
    text = section(page(served.client, page_of(rest_topic)), "compactions")
    assert text.count('<th scope="row"') == 10
    assert "The newest 10; the chart has 12." in text


def test_connected_clients_are_listed(served: Served, rest_topic: RestTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    rest_topic.put(a="1", b="1", c="1")
    assert rest_topic.ask("PUT", "/subscription/mine", "earliest").status_code == 204
    producer = ProducerStats(producer_name="<crm>", address="/10.0.0.1:5", msg_rate_in=2.5, msg_throughput_in=2048.0)
    consumer = ConsumerStats(consumer_name="sync-1", unacked_messages=2, available_permits=998)
    live = LiveTopicState(
        TopicStats(publishers=(producer,), msg_rate_in=2.5),
        {"mine": LiveSubscriptionState(SubscriptionStats(type="Shared", unacked_messages=2, consumers=(consumer,)))},
    )
    monkeypatch.setattr(served.broker.clients, "of_topic", lambda _: live)
    text = section(page(served.client, page_of(rest_topic)), "clients")
    assert "&lt;crm&gt;" in text
    assert "10.0.0.1:5" in text
    assert "2.5 msg/s<small>2.0 KiB/s</small>" in text
    assert "Shared; acknowledged: none" in text
    assert "sync-1" in text
    assert "998 permits" in text
    assert re.search(
        r'<td class="number" data-label="Backlog">3</td>\s*<td class="number" data-label="Unacked">2</td>', text
    )


def test_clients_of_another_service_are_named(
    served: Served, rest_topic: RestTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest_topic.put(a="1")
    metadata = served.broker.environment.metadata
    other = ServiceRecord("other:1:aa", "http://other.example:8080", None, 1, 1)
    monkeypatch.setattr("api.broker.ownership.same_process", lambda *_: False)
    monkeypatch.setattr(metadata.services, "of_owner", lambda _: other)
    text = section(page(served.client, page_of(rest_topic)), "clients")
    assert "are connected to the service http://other.example:8080" in text


def test_versions_of_the_schema_are_compared(served: Served, rest_topic: RestTopic) -> None:
    assert "The topic has no schema." in page(served.client, page_of(rest_topic))
    id_field, town = {"name": "id", "type": "int"}, {"name": "town", "type": ["null", "string"], "default": None}
    for fields in ([id_field], [id_field, town]):
        definition = json.dumps({"type": "record", "name": "User", "fields": fields})
        body = json.dumps({"type": "AVRO", "schema": definition, "properties": {}})
        path = f"/admin/v2/schemas/public/default/{rest_topic.local}/schema"
        assert served.ask("POST", path, body).status_code == 200
    text = section(page(served.client, page_of(rest_topic)), "schemas")
    assert re.search(r"Version 1, AVRO, [-0-9: ]+, compared with version 0", text)
    assert '<span class="added">+      &#34;name&#34;: &#34;town&#34;,</span>' in text
    assert text.index("Version 1, ") < text.index("Version 0, ")


def test_a_topic_whose_manifest_is_lost_has_its_page(served: Served, rest_topic: RestTopic) -> None:
    """N5: it was a 507 "Not possible", without the last error, the next try and the buttons."""
    rest_topic.put(a="1")
    rest_topic.compact()
    lost, environment = rest_topic.lose(ObjectKind.MANIFEST), served.broker.environment
    topic_id = served.topic(rest_topic.name).record.id
    retry_at = environment.clock.now_ms() + 60_000
    environment.metadata.compaction_control.record_failure(topic_id, ErrorText("the manifest is gone"), retry_at)

    text = page(served.client, f"{page_of(rest_topic)}?key=a")

    assert f"The compacted ledger {lost.ledger_id} cannot be read: its manifest is not in the object store." in text
    whole = text.replace("<wbr>", "")
    assert whole.count(lost.name) == 1, "without access control anyone is an operator"
    assert "the manifest is gone" in text
    assert re.search(r"Next try: <time [^>]*>in ", text)
    assert "or wait for the next try" not in text, "a try finds the object as lost as before"
    assert text.count('action="' + page_of(rest_topic) + '/compact"') == 1
    assert '<span class="state failing">failing</span>' in text
    assert "<strong>Compacted reads fail</strong>" in text
    assert "below blank" not in text
    assert "compacted ledger that cannot be read" in text
    assert "The key could not be looked up: " in text
    assert "live" not in str(picture(text).get("aria-label"))
    titles = [str(item.text) for item in picture(text).iter("title")]
    assert any("the horizon: compacted up to offset 0" in title for title in titles)


def test_a_lost_manifest_is_no_topic_that_is_up_to_date(served: Served, rest_topic: RestTopic) -> None:
    rest_topic.put(a="1")
    rest_topic.compact()
    rest_topic.lose(ObjectKind.MANIFEST)
    text = page(served.client, page_of(rest_topic))
    assert states_of(text) == ["unreadable"]
    assert "Next run: none; there is no message to compact." in text
    assert "its manifest is not in the object store." in text
    assert "Next try" not in text
    assert "Failures since the last success" not in text
    assert states_of(page(served.client, f"{page_of(rest_topic)}/messages")) == ["unreadable"]


@pytest.mark.parametrize("kind", [ObjectKind.PART, ObjectKind.INDEX])
def test_a_look_up_that_meets_a_lost_object_shows_what_to_do(
    served: Served, rest_topic: RestTopic, kind: ObjectKind
) -> None:
    rest_topic.put(a="1", b="1")
    rest_topic.compact()
    lost = rest_topic.lose(kind)
    text = page(served.client, f"{page_of(rest_topic)}?key=b").replace("<wbr>", "")
    noun = {ObjectKind.PART: "one of its parts", ObjectKind.INDEX: "its key index"}[kind]
    what = f"The compacted ledger {lost.ledger_id} cannot be read in full: {noun} is not in the object store."
    assert f"<h2>{what}</h2>" in text
    assert "<li>If there is no backup, run <code>compactor cursor delete " in text
    assert lost.name in text
    assert "The key could not be looked up: " in text
    assert "page says what to do" not in text
    assert "Error of the last run" not in text, "it did not fail"
    assert (" saved</strong>" in text) is (kind is ObjectKind.INDEX), "compacted reads need no index"
    assert ('<span class="state unreadable">' in text) is (kind is ObjectKind.PART)
    messages = page(served.client, f"{page_of(rest_topic)}/messages?key=b")
    assert f"<h2>{what}</h2>" in messages
    assert "<li>If there is no backup, run <code>compactor cursor delete " in messages
    assert "page says what to do" not in messages


@pytest.mark.slow
def test_a_topic_of_which_a_part_is_lost_has_its_page(served: Served, rest_topic: RestTopic) -> None:
    rest_topic.put(a="1", b="1")
    rest_topic.compact()
    lost = rest_topic.lose(ObjectKind.PART)
    rest_topic.put(a="2")
    fail_to_compact(served, rest_topic)

    text = page(served.client, f"{page_of(rest_topic)}?key=b")

    assert "Why runs ended early" in text
    whole = text.replace("<wbr>", "")
    assert lost.name in whole
    assert (
        f"The compacted ledger {lost.ledger_id} cannot be read in full: one of its parts is not in the object "
        "store." in whole
    )
    assert "The key could not be looked up: " in text
    assert "page says what to do" not in text
    assert "Error of the last run" in text
    assert "<strong>Compacted reads fail</strong>" in text
    assert " saved</strong>" not in text, "a compacted read fails"
    assert "left by compaction" not in str(picture(text).get("aria-label"))
    assert "the compacted ledger cannot be read" in str(picture(text).get("aria-label"))
    row = page(served.client, f"/?q={rest_topic.local}").partition("<tbody>")[2]
    assert row.count(">unreadable</td>") == 2


@pytest.mark.parametrize("kind", [ObjectKind.MANIFEST, ObjectKind.PART])
def test_an_object_that_was_restored_makes_the_failure_history(
    served: Served, rest_topic: RestTopic, kind: ObjectKind
) -> None:
    rest_topic.put(a="1", b="1")
    rest_topic.compact()
    lost, store = rest_topic.lose(kind), served.broker.environment.store
    rest_topic.put(a="2")
    fail_to_compact(served, rest_topic)
    assert "<strong>Compacted reads fail</strong>" in page(served.client, page_of(rest_topic))

    store.put(lost.name, lost.content[:-1])
    text = page(served.client, page_of(rest_topic))
    assert "<strong>Compacted reads fail</strong>" in text, "a truncated copy is no restored object"
    assert "is damaged." in text
    store.delete(lost.name)
    store.put(lost.name, lost.content)
    text = page(served.client, f"{page_of(rest_topic)}?key=b")

    assert "an object that is in the object store again." in text
    assert "<strong>Compacted reads fail</strong>" not in text
    assert " saved</strong> A compacted read returns 3 of 3 messages" in text
    assert "2 left by compaction" in str(picture(text).get("aria-label"))
    assert "cannot be read in full" not in text
    assert "Error of the last run" in text
    assert re.search(r"<p>Next run: <time [^>]*>now</time> as the next try", text)
    assert re.search(r"<p>Next try: <time [^>]*>now</time>\.", text)


def test_a_trimmed_topic_does_not_return_more_messages_than_there_are(served: Served, rest_topic: RestTopic) -> None:
    rest_topic.put(a="1", b="1")
    rest_topic.compact()
    rest_topic.put(c="1")
    topic = served.topic(rest_topic.name)
    topic.log_manager().roll_and_seal(topic.record)
    assert "saved</strong> A compacted read returns 3 of 3 messages" in page(served.client, page_of(rest_topic))
    ledger_ids = [ledger.ledger_id for ledger in topic.snapshot().ledgers if ledger.last_offset < 2]
    served.broker.environment.metadata.trimming.trim(topic.record.id, 2, ledger_ids, force=True)
    text = page(served.client, page_of(rest_topic))
    status = " ".join(text.partition('id="status"')[2][:600].split())
    assert (
        "<strong>Raw is trimmed</strong> A compacted read returns 3 messages, and reads 6 B. Raw has 1 message"
        in status
    )


def test_a_compacted_ledger_that_was_given_up_is_not_never_compacted(served: Served, rest_topic: RestTopic) -> None:
    rest_topic.put(a="1")
    assert "<strong>Never compacted</strong>" in page(served.client, page_of(rest_topic))
    rest_topic.compact()
    assert rest_topic.ask("DELETE", "/subscription/__compaction").status_code == 204
    text = page(served.client, page_of(rest_topic))
    assert "Never compacted" not in text
    assert "<strong>Not compacted now</strong> A compacted read returns all that raw has: 1 message." in text
    assert "<dd>no compacted ledger</dd>" in text


def test_a_failure_by_a_compacted_ledger_that_was_given_up_is_no_restored_object(
    served: Served, rest_topic: RestTopic
) -> None:
    """The page says so after its own third step, before the next run."""
    rest_topic.put(a="1")
    rest_topic.compact()
    compacted = served.topic(rest_topic.name).snapshot().compacted
    assert compacted is not None
    served.broker.environment.store.delete(compacted.manifest.name)
    rest_topic.put(a="2")
    fail_to_compact(served, rest_topic)
    assert rest_topic.ask("DELETE", "/subscription/__compaction").status_code == 204
    text = page(served.client, page_of(rest_topic))
    assert "an object that is not needed any more." in text
    assert "in the object store again" not in text
    assert "<strong>Not compacted now</strong>" in text


@pytest.mark.slow
def test_a_first_run_that_failed_by_a_lost_ledger(served: Served, rest_topic: RestTopic) -> None:
    rest_topic.put(a="1")
    topic, store = served.topic(rest_topic.name), served.broker.environment.store
    topic.log_manager().roll_and_seal(topic.record)
    name = topic.snapshot().ledgers[0].rows.name
    content = store.get(name)
    store.delete(name)
    fail_to_compact(served, rest_topic)
    text = page(served.client, page_of(rest_topic))
    assert "<strong>Never compacted</strong>" in text
    assert "<dd>never</dd>" in text
    assert "an object with raw messages is not in the object store." in text

    store.put(name, content[:-1])
    assert "an object with raw messages is damaged." in page(served.client, page_of(rest_topic))

    store.delete(name)
    store.put(name, content)
    assert "an object that is in the object store again." in page(served.client, page_of(rest_topic))


def test_a_service_that_is_gone_is_named_with_the_topics_that_wait(
    served: Served, rest_topic: RestTopic, tmp_path: Path
) -> None:
    environment = served.broker.environment
    log = LogDirectory(tmp_path / "log")
    writer = Environment(environment.metadata, environment.store, environment.clock, log)
    produce(Topic(writer, served.topic(rest_topic.name).record), [single(b"k", b"v")])
    living = ServiceRecord("living.example:7:aa", "http://living.example:8080", log.uid, 1, 1)
    environment.metadata.services.heartbeat(living)
    assert "Services that are gone" not in page(served.client, "/dashboard/service")
    environment.metadata.services.leave(living.name)
    ended = str(replace(Owner.current(), start="1"))  # a process of this machine that does not exist any more
    environment.metadata.services.heartbeat(ServiceRecord(ended, "http://gone.example:8080", log.uid, 1, 1))

    text = page(served.client, "/dashboard/service")
    assert f"<b>{ended}</b>, http://gone.example:8080, last sign of life" in text
    assert f'<a href="{page_of(rest_topic)}">{rest_topic.name}</a>' in text
    text = page(served.client, page_of(rest_topic))
    assert re.search(f"in the log directory {log.uid}, which no service has since [-0-9]+ [:0-9]+\\.", text)
    assert "gone.example" not in text
    assert '<span class="state waiting-for-a-service">waiting for a service</span>' in text
    assert "<p>Next run: none until a service has all messages that are not sealed yet." in text
    assert "no service has, are not counted." in text
    assert ">waiting for a service</span>" in page(served.client, f"{page_of(rest_topic)}/produce")
    first = page(served.client, f"/?q={rest_topic.local}").partition('<li id="waiting">')[2].partition("</li>")[0]
    assert "<b>1 topic:</b>" in first
    assert f'<a href="{page_of(rest_topic)}" title="{rest_topic.name}">' in first
    assert '<a href="/dashboard/service">Service</a> names it' in first
    environment.metadata.services.leave(ended)
    writing = Topic(writer, served.topic(rest_topic.name).record)
    writing.log_manager().roll_and_seal(writing.record)
    assert 'id="waiting"' not in page(served.client, "/")


def test_pages_of_a_topic_with_a_lag_read_its_open_segment_once(
    served: Served, rest_topic: RestTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times are in the entries alone, and a segment may have a million."""
    rest_topic.put(a="1", b="2")
    assert rest_topic.ask("PUT", "/policies/max.compaction.lag.ms", 1_000_000).status_code == 204
    begun: list[int] = []
    entries = SegmentReader.entries

    def recorded(reader: SegmentReader, offset: int = 0) -> Any:
        begun.append(offset)
        return entries(reader, offset)

    monkeypatch.setattr(SegmentReader, "entries", recorded)
    for place in ("", "/policies", "/trim", "/delete", ""):
        page(served.client, page_of(rest_topic) + place)
    assert begun.count(0) == 1


def test_a_topic_that_is_deleted_while_its_page_is_made_is_missing(
    served: Served, rest_topic: RestTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BacklogReader, "read", lambda *_: [])
    assert served.client.get(page_of(rest_topic)).status_code == 404


def test_a_topic_without_sealed_messages_has_no_cleanable_ratio(served: Served, rest_topic: RestTopic) -> None:
    ratio = "<dt>Cleanable ratio</dt><dd>"
    rest_topic.put(a="1")
    assert f"{ratio}none: nothing is sealed</dd>" in page(served.client, page_of(rest_topic))
    topic = served.topic(rest_topic.name)
    topic.log_manager().roll_and_seal(topic.record)
    assert f"{ratio}100 %</dd>" in page(served.client, page_of(rest_topic))
