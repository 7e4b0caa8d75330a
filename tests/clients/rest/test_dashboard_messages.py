"""The dashboard's pages of messages, as a browser without scripts has them."""

from __future__ import annotations

import base64
import html
import re
from typing import Any

import pytest

from api.broker.schema_compatibility import SchemaType
from api.dashboard import message_browser, topic_page
from api.dashboard.message_browser import PAGE_MESSAGES
from api.http.tokens import create_token
from storage.errors import SegmentNotLocal
from storage.ledger import names
from storage.ledger.names import ObjectKind
from storage.metadata.schemas import SchemaRecord
from storage.model import TopicName
from storage.reading.key_lookup import SearchStopped
from storage.topic import Topic
from tests.clients.rest.conftest import SECRET, RestTopic
from tests.clients.rest.dashboard_pages import ORIGIN, logged_in, page, page_of, states_of
from tests.serving import Served


@pytest.fixture(autouse=True)
def every_key_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is."""
    monkeypatch.setattr(message_browser, "SEARCH_MS", 60_000)


def rows(text: str) -> list[str]:
    """Each row of the table in words: offset, key, value and marks; `~` before a value that is struck through."""
    body = text[text.index('<table class="messages">') :].partition("<tbody>")[2].partition("</tbody>")[0]
    lines = []
    for row in body.split("<tr")[1:]:
        row = row.partition('<td class="time"')[0].replace("<del", "~<del")
        lines.append(" ".join(html.unescape(re.sub("<[^>]*>", " ", "<tr" + row)).split()))
    return lines


def messages(topic: RestTopic, query: str = "") -> str:
    return page(topic.served.client, f"{page_of(topic)}/messages?{query}")


def test_both_reads_in_one_column(served: Served, rest_topic: RestTopic) -> None:
    rest_topic.put(a="1", b="1")
    rest_topic.put(a="<2>")
    rest_topic.compact()
    rest_topic.put(b=None)
    assert rows(messages(rest_topic, "order=oldest")) == [
        "0 a ~ 1 superseded by offset 2 ; a compacted read leaves it out",
        "1 b 1 superseded by offset 3 , a deletion; a compacted read returns it until the next run",
        "2 a <2> current",
        "compacted ↑ Horizon: offset 2 not compacted yet ↓",
        "3 b deletes the key b key is deleted",
    ]
    assert [row.split()[0] for row in rows(messages(rest_topic))] == ["3", "not", "2", "1", "0"]
    assert "Offsets 3 to 0<" in messages(rest_topic)
    assert "Offsets 2 to 0, compacted<" in messages(rest_topic, "before=3")
    assert "Offset 3, not compacted yet<" in messages(rest_topic, "offset=3")
    assert rows(messages(rest_topic, "view=compacted&order=oldest"))[:2] == ["1 b 1", "2 a <2>"]
    assert rows(messages(rest_topic, "view=raw&order=oldest"))[:3] == ["0 a 1", "1 b 1", "2 a <2>"]


def test_a_deletion_that_was_compacted_and_messages_that_raw_has_no_more(served: Served, rest_topic: RestTopic) -> None:
    rest_topic.put(a="1", b="1")
    rest_topic.put(a=None)
    rest_topic.compact()
    rest_topic.put(c="1")
    topic = served.topic(rest_topic.name)
    topic.log_manager().roll_and_seal(topic.record)
    served.broker.environment.metadata.trimming.trim(topic.record.id, 2, [], force=True)
    assert rows(messages(rest_topic, "order=oldest")) == [
        "1 b 1 current trimmed from raw, only compacted",
        "2 a ~ deletes the key a compaction has removed the deletion itself",
        "compacted ↑ Horizon: offset 2 not compacted yet ↓",
        "3 c 1 current",
    ]


def test_pages_lead_to_their_neighbours(served: Served, rest_topic: RestTopic) -> None:
    rest_topic.put(**{f"k{number}": "v" for number in range(60)})
    rest_topic.compact()
    for order in ("newest", "oldest"):
        for view in ("both", "raw", "compacted"):
            seen: list[int] = []
            query: str | None = f"view={view}&order={order}"
            links = {"newest": "Older →", "oldest": "Newer →"}
            while query is not None:
                text = messages(rest_topic, query)
                offsets = [int(row.split()[0]) for row in rows(text)]
                assert len(offsets) <= PAGE_MESSAGES
                seen += offsets
                link = re.search(rf'<a href="\?([^"]*)" rel="next">{links[order]}</a>', text)
                query = html.unescape(link[1]) if link else None
            assert seen == (list(range(60)) if order == "oldest" else list(reversed(range(60)))), (order, view)
            assert ("← Newer</a>" if order == "newest" else "← Older</a>") in text


def test_messages_by_offset_time_and_key(served: Served, rest_topic: RestTopic) -> None:
    acks = rest_topic.produce(*({"key": f"k{n % 3}", "payload": str(n), "eventTime": 1} for n in range(6)))
    assert len(acks) == 6
    rest_topic.compact()
    assert [row[0] for row in rows(messages(rest_topic, "offset=4&order=oldest"))] == ["4", "5"]
    assert rows(messages(rest_topic, "key=k1")) == [
        "4 k1 4 current",
        "1 k1 ~ 1 superseded by offset 4 ; a compacted read leaves it out",
    ]
    assert "The key “none” has no value" in rows(messages(rest_topic, "key=none"))[0]
    assert len(rows(messages(rest_topic, "time=1970-01-01T00:00"))) == 6
    assert rows(messages(rest_topic, "time=2999-01-01T00:00:01")) == [
        "No message was published since 2999-01-01T00:00:01: raw messages have the offsets 0 to 5."
    ]
    assert rows(messages(rest_topic, "time=2999-01-01T00:00:01&view=compacted"))[0].startswith(
        "A compacted read returns no message that was published since 2999-01-01T00:00:01: "
    )
    assert "is not a time" in page(served.client, f"{page_of(rest_topic)}/messages?time=soon", 400)
    assert "There is no message here" in messages(rest_topic, "offset=4,999")
    assert "has no message at offset 4,999" in page(served.client, f"{page_of(rest_topic)}/messages/4,999", 404)
    for field in ("offset=x", "offset=-5", "before=-1", "offset=1,00"):
        name = field.partition("=")[0]
        assert f"{name} must be" in page(served.client, f"{page_of(rest_topic)}/messages?{field}", 400)
    for place in ("yesterday", "2026-13-01"):
        assert "is not a time" in page(served.client, f"{page_of(rest_topic)}/messages?time={place}", 400)
    text = page(served.client, f"{page_of(rest_topic)}/messages/99", 404)
    assert "has no message at offset 99" in text
    assert f'<a href="{page_of(rest_topic)}">Back to the topic</a>' in text
    assert f'<a href="{page_of(rest_topic)}/messages">Its messages</a>' in text
    unknown = page(served.client, f"{page_of(rest_topic)}-unknown/messages/99", 404)
    assert "Its messages" not in unknown
    assert "Back to the topic" not in unknown


def test_a_lost_compacted_ledger_leaves_the_raw_messages(served: Served, rest_topic: RestTopic) -> None:
    rest_topic.put(a="1")
    rest_topic.put(a="2")
    rest_topic.compact()
    rest_topic.lose(ObjectKind.MANIFEST)
    text = messages(rest_topic)
    assert [row[0] for row in rows(text)] == ["1", "0"]
    assert "cannot be read: its manifest is not in the object store." in text
    assert "says what to do" not in text
    assert "<li>If there is no backup, run <code>compactor cursor delete " in text
    assert '<span class="state unreadable">unreadable</span>' in text
    assert "superseded by" not in text
    assert "A read failed, so marks are missing" in text
    assert text.count("cannot be read") == 1, "the card says it once"
    assert "Message 1 of" in page(served.client, f"{page_of(rest_topic)}/messages/1")


def test_a_message_without_a_key_says_why_a_compacted_read_leaves_it_out(served: Served, rest_topic: RestTopic) -> None:
    rest_topic.produce({"payload": "x"})
    rest_topic.compact()
    assert rows(messages(rest_topic)) == ["0 no key ~ x no key: a compacted read leaves it out"]


def test_a_page_says_why_it_has_few_messages(
    served: Served, rest_topic: RestTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest_topic.put(a="1", b="2" * 100)
    assert "Large values" not in messages(rest_topic)
    monkeypatch.setattr(message_browser, "PAGE_BYTES", 50)
    text = messages(rest_topic)
    assert [row[0] for row in rows(text)] == ["1"]
    assert "Large values: this page has fewer messages than others." in text


def test_times_of_a_message_have_milliseconds(served: Served, rest_topic: RestTopic) -> None:
    rest_topic.produce({"key": "k", "payload": "x", "eventTime": 1_700_000_000_007})
    assert "<dd>2023-11-14 22:13:20.007 UTC</dd>" in page(served.client, f"{page_of(rest_topic)}/messages/0")
    assert re.search(r'<td class="time" title="[^"]*\.\d{3} UTC">', messages(rest_topic))


def test_a_character_that_turns_the_direction_of_a_value_is_visible(served: Served, rest_topic: RestTopic) -> None:
    rest_topic.put(a="user\u202egnp", b='{"name": "user\u202egnp"}')
    for path in ("/messages", "/messages/0", "/messages/1"):
        text = html.unescape(page(served.client, page_of(rest_topic) + path))
        assert "user\\u202egnp" in text
        assert "\u202e" not in text


def test_a_newest_page_that_needs_no_compacted_message_says_that_the_ledger_is_lost(
    served: Served, rest_topic: RestTopic
) -> None:
    rest_topic.put(a="1")
    rest_topic.compact()
    rest_topic.produce(*({"key": f"k{n}", "payload": "1"} for n in range(PAGE_MESSAGES + 2)))
    lost = rest_topic.lose(ObjectKind.MANIFEST)
    what = f"<h2>The compacted ledger {lost.ledger_id} cannot be read: its manifest is not in the object store.</h2>"
    for view in ("both", "compacted"):
        text = messages(rest_topic, f"view={view}")
        assert len(rows(text)) == PAGE_MESSAGES
        assert "takes too long" not in text
        assert text.count(what) == 1
        assert "Missing object: " + lost.name in text.replace("<wbr>", "")
    assert what not in messages(rest_topic, "view=raw")
    assert "not searched to the end" not in page(served.client, f"{page_of(rest_topic)}/messages/{PAGE_MESSAGES}")
    for place in ("", "/messages", "/messages?view=raw", "/messages?view=compacted", "/messages/0", "/messages/25"):
        assert states_of(page(served.client, page_of(rest_topic) + place)) == ["unreadable"], place


def test_pages_agree_on_a_part_that_one_of_them_has_met(served: Served, rest_topic: RestTopic) -> None:
    rest_topic.put(a="1", b="2")
    rest_topic.compact()
    lost, store = rest_topic.lose(ObjectKind.PART), served.broker.environment.store
    places = ("", "/messages?view=raw", "/messages/1", "/messages", "/messages?view=raw&offset=7")

    def states() -> list[list[str]]:
        return [states_of(page(served.client, page_of(rest_topic) + place)) for place in places]

    assert states_of(page(served.client, page_of(rest_topic))) == ["up to date"], "no read has met it"
    assert states_of(page(served.client, f"{page_of(rest_topic)}/messages?view=compacted")) == ["unreadable"]
    assert states() == [["unreadable"]] * len(places)
    text = page(served.client, page_of(rest_topic))
    assert "cannot be read in full: one of its parts is not in the object store." in text
    assert "<strong>Compacted reads fail</strong>" in text
    store.put(lost.name, lost.content[:-1])
    assert states() == [["unreadable"]] * len(places), "a truncated copy is no restored object"
    store.delete(lost.name)
    store.put(lost.name, lost.content)
    assert states() == [["up to date"]] * len(places)
    assert "one of its parts" not in page(served.client, page_of(rest_topic))


def lose_raw_rows(served: Served, topic: RestTopic) -> str:
    """Delete the rows of the topic's first raw ledger; their name."""
    opened, store = served.topic(topic.name), served.broker.environment.store
    opened.log_manager().roll_and_seal(opened.record)
    name = opened.snapshot().ledgers[0].rows.name
    store.delete(name)
    return name


@pytest.mark.parametrize("place", ["/messages", "/messages?view=raw", "/messages?key=a", "/messages/1", "?key=a"])
def test_a_lost_raw_ledger_is_named_with_its_object(
    served: Served, rest_topic: RestTopic, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    rest_topic.put(a="1", b="2")
    name = lose_raw_rows(served, rest_topic)
    for _ in range(2):
        text = page(served.client, page_of(rest_topic) + place, 507 if place == "/messages/1" else 200)
    ledger_id = names.parse(name).number  # type: ignore[union-attr]
    assert (
        f"<h2>The raw ledger {ledger_id} cannot be read: the object with its rows is not in the object store." in text
    )
    assert "Missing object: " + name in text.replace("<wbr>", "")
    assert "<li>If it does, restore the object from a backup (docs/operations.md).</li>" in text
    assert "Spark is damaged" not in text
    assert [name in record.getMessage() for record in caplog.records if record.name == "api.http.problems"] == [True]


def test_the_pages_of_a_topic_keep_the_loss_of_a_raw_ledger(served: Served, rest_topic: RestTopic) -> None:
    rest_topic.put(a="1", b="2")
    opened, store = served.topic(rest_topic.name), served.broker.environment.store
    opened.log_manager().roll_and_seal(opened.record)
    rows, first = opened.snapshot().ledgers[0].rows, f"/?q={rest_topic.local}"
    content = store.get(rows.name)
    store.delete(rows.name)
    places = ("", "/messages", "/messages?view=compacted&offset=7", "?key=c")
    what = f"The raw ledger {opened.snapshot().ledgers[0].ledger_id} cannot be read: the object with its rows is not"
    assert states_of(page(served.client, page_of(rest_topic))) == ["not due"], "no read has met it"
    assert 'id="lost"' not in page(served.client, first)

    messages(rest_topic)

    assert [states_of(page(served.client, page_of(rest_topic) + place)) for place in places] == [["unreadable"]] * 4
    text = page(served.client, page_of(rest_topic))
    assert f"<h2>{what} in the object store.</h2>" in text
    assert "<li>If it does, restore the object from a backup (docs/operations.md).</li>" in text
    assert "<strong>Compacted reads fail</strong>" not in text
    listed = page(served.client, first).partition('<li id="lost">')[2].partition("</li>")[0]
    assert f'<a href="{page_of(rest_topic)}"' in listed
    assert "the topic's page checks whether it still is lost, and says what to do" in listed

    store.put(rows.name, content[:-1])
    assert what in page(served.client, page_of(rest_topic)), "a truncated copy is no restored object"
    store.delete(rows.name)
    store.put(rows.name, content)
    text = page(served.client, page_of(rest_topic))
    assert states_of(text) == ["not due"]
    assert what not in text
    assert 'id="lost"' not in page(served.client, first)


def test_only_operators_read_the_name_of_a_lost_raw_object(guarded: Served) -> None:
    root, topic = logged_in(guarded, "root"), RestTopic(guarded, "lost-raw")
    token = {"Authorization": f"Bearer {create_token(SECRET, 'root', {})}"}
    granted = f"{topic.path}/permissions/reader"
    assert guarded.client.put(topic.path, headers=token).status_code == 204
    assert guarded.client.post(granted, json=["consume"], headers=token).status_code == 204
    assert root.post(f"{page_of(topic)}/produce", content="key=a&value=1", headers=ORIGIN).status_code == 200
    name = lose_raw_rows(guarded, topic)
    for client, is_named in ((logged_in(guarded, "reader"), False), (root, True)):
        for place in ("/messages", "/messages/0"):
            text = page(client, page_of(topic) + place, 200 if place == "/messages" else 507).replace("<wbr>", "")
            assert "the object with its rows is not in the object store." in text
            assert (name in text) is is_named


def test_one_message_with_all_that_was_sent(served: Served, rest_topic: RestTopic) -> None:
    value = '{"name":"<script>","list":[1,2]}'
    rest_topic.produce(
        {"key": "k", "payload": value, "properties": {"p<": "v&"}, "eventTime": 1_700_000_000_000},
        {"key": "k", "payload": "x" * 100_000},
    )
    text = page(served.client, f"{page_of(rest_topic)}/messages/0")
    assert f'<a href="{page_of(rest_topic)}/messages" aria-current="page">' in text
    assert "&lt;script&gt;" in text
    assert "<script>" not in text
    assert '"list": [\n    1,\n    2\n  ]' in html.unescape(text)
    assert "p&lt;</th><td>v&amp;</td>" in text
    assert "2023-11-14 22:13:20" in text
    assert re.search(r"superseded by offset <a [^>]*>1</a>; a compacted read returns it until the next run", text)
    assert "0000  7b 22 6e" in text
    large = page(served.client, f"{page_of(rest_topic)}/messages/1")
    assert "The first 65,536 of 100,000 bytes are shown." in large
    assert "The first 1,024 of 100,000 bytes are shown." in large


def test_a_value_is_decoded_by_the_schema_of_its_topic(served: Served, rest_topic: RestTopic) -> None:
    rest_topic.produce({"key": "k", "payload": "\x06abc"}, {"key": "k", "payload": "\x06ab"})
    definition = b'{"type": "record", "name": "R", "fields": [{"name": "field", "type": "string"}]}'
    schema = SchemaRecord(-1, int(SchemaType.AVRO), "s", definition)
    served.broker.schemas.ensure(TopicName.parse(rest_topic.name), schema)
    text = html.unescape(page(served.client, f"{page_of(rest_topic)}/messages/0"))
    assert '"field": "abc"' in text
    assert "version 0 (AVRO, the newest: the message names none)" in text
    damaged = page(served.client, f"{page_of(rest_topic)}/messages/1")
    assert "The payload cannot be decoded by it: it ends before the value does." in damaged


def test_messages_need_the_permission_to_consume(guarded: Served) -> None:
    client = logged_in(guarded, "root")
    assert guarded.broker.environment.metadata.tenancy.ensure_topic(TopicName.parse("closed"))
    path = "/dashboard/topics/public/default/closed/messages"
    page(client, path)
    assert "no message at offset 0" in page(client, f"{path}/0", 404)
    for below in ("", "/0"):
        assert "does not have the permission consume" in page(logged_in(guarded, "stranger"), path + below, 403)


@pytest.mark.slow
def test_partitions_have_messages_and_the_whole_topic_leads_to_them(served: Served) -> None:
    whole = RestTopic(served, "parted-messages")
    assert whole.ask("PUT", "/partitions", 1).status_code == 204
    assert "open the page of one of its partitions" in page(served.client, f"{page_of(whole)}/messages", 405)
    assert "open the page of one of its partitions" in page(served.client, f"{page_of(whole)}/messages/0", 405)


def test_a_page_after_the_end_says_which_offsets_exist(served: Served, rest_topic: RestTopic) -> None:
    assert "There is no message here: there are no raw messages." in messages(rest_topic)
    rest_topic.put(a="1", b="2")
    assert "There is no message here: raw messages have the offsets 0 to 1." in messages(rest_topic, "offset=7")
    text = page(served.client, f"{page_of(rest_topic)}/messages/7", 404)
    assert "has no message at offset 7, raw or compacted: raw messages have the offsets 0 to 1" in text


def test_a_deleted_key_is_not_one_that_was_never_written(served: Served, rest_topic: RestTopic) -> None:
    rest_topic.put(a="1", b="2")
    rest_topic.put(b=None)
    assert "The key is deleted: its newest message is a deletion." in page(
        served.client, f"{page_of(rest_topic)}?key=b"
    )
    unknown = (
        "has no value: it was never written, or it was removed (deletion, time to live, retention, trim). Raw reads "
        "may still return its messages."
    )
    assert unknown in page(served.client, f"{page_of(rest_topic)}?key=c")
    assert unknown in messages(rest_topic, "key=c")


def test_a_search_for_a_key_ends_in_time_and_says_so(
    served: Served, rest_topic: RestTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest_topic.put(a="1")
    monkeypatch.setattr(message_browser, "LOOKUP_MS", -1)
    monkeypatch.setattr(topic_page, "LOOKUP_MS", -1)
    reason = "the newest message of the key was not found within the time that its search may take: try again"
    for text in (messages(rest_topic, "key=a"), page(served.client, f"{page_of(rest_topic)}?key=a")):
        assert reason in text
        assert "never written" not in text


def not_local(*_arguments: Any, sealed_only: bool = False, **_options: Any) -> None:
    """Find no sealed message of a key; the others are at another service."""
    if not sealed_only:
        raise SegmentNotLocal("it is in another log directory", "start its service", is_public=True)


def test_a_search_of_the_sealed_messages_says_that_it_is_one(
    served: Served, rest_topic: RestTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest_topic.put(a="1")
    monkeypatch.setattr(Topic, "newest_message", not_local)
    text = messages(rest_topic, "key=a")
    assert "it is in another log directory" in text
    assert "The topic has no sealed message of the key “a”." in text
    assert "never written" not in text


def test_an_error_of_the_search_of_the_sealed_messages_is_on_the_page(
    served: Served, rest_topic: RestTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*arguments: Any, sealed_only: bool = False, **options: Any) -> None:
        not_local(*arguments, sealed_only=sealed_only, **options)
        raise SearchStopped

    rest_topic.put(a="1")
    monkeypatch.setattr(Topic, "newest_message", stopped)
    text = messages(rest_topic, "key=a")
    assert "it is in another log directory" in text
    assert "was not found within the time that its search may take" in text
    assert "has no sealed message" not in text


def test_times_that_no_calendar_has_are_shown_as_numbers(served: Served, rest_topic: RestTopic) -> None:
    """One message of a producer must not make the page of all messages fail."""
    (answer,) = rest_topic.produce({"payload": "1", "publishTime": -(2**63), "eventTime": 2**63 - 1})
    assert answer["errorCode"] == 0
    published, event = f"{-(2**63):,} ms since 1970", f"{2**63 - 1:,} ms since 1970"
    assert published in messages(rest_topic)
    text = page(served.client, f"{page_of(rest_topic)}/messages/0")
    assert published in text
    assert event in text


def test_a_text_that_is_cut_within_a_character_is_still_a_text(served: Served, rest_topic: RestTopic) -> None:
    rest_topic.put(a="x" + "я" * 2_000)
    assert "xяяяя" in messages(rest_topic)


def test_a_binary_value_is_marked_and_has_one_representation(served: Served, rest_topic: RestTopic) -> None:
    value, key = b"\xff\x00\xfe", b"\x01\xff"
    rest_topic.produce(
        {"key": base64.b64encode(key).decode(), "payload": base64.b64encode(value).decode()},
        query="?keyEncoding=base64&valueEncoding=base64",
    )
    assert rest_topic.ask("GET", "/messages?keyEncoding=base64&valueEncoding=base64").status_code == 200
    (row,) = rows(messages(rest_topic))
    assert row == "0 01 ff binary, in hexadecimal ff 00 fe binary, in hexadecimal current"
    text = page(served.client, f"{page_of(rest_topic)}/messages/0")
    assert ">01 ff</span>" in text
    assert "ff 00 fe" in text
    assert text.count("binary, in hexadecimal") == 1, "the view of the value has a title"
