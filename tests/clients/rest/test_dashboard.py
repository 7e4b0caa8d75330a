"""The dashboard as a browser without scripts has it: pages, forms, the cookie of a token, and who may do what."""

from __future__ import annotations

import html
import re
from collections.abc import Collection
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from markupsafe import escape

from api.broker.serving.connected_clients import LiveSubscriptionState, LiveTopicState
from api.broker.stats_tree import ConsumerStats, SubscriptionStats
from api.dashboard import topic_sizes
from api.dashboard.formats import breakable
from api.observability.error_text import DASHBOARD_WORDING
from storage.advice import NEUTRAL, Advice, AdviceKind, missing_object_advice
from storage.errors import ErrorText
from storage.ledger import names
from storage.ledger.manifest import Part
from storage.metadata.mirrors import MirrorProgress, MirrorRecord
from storage.metadata.records import TopicSummary
from storage.model import TopicName
from tests.clients.rest.conftest import RestTopic
from tests.clients.rest.dashboard_pages import ORIGIN, page, page_of, picture
from tests.serving import Served, serving


def test_the_first_page_lists_topics(served: Served, rest_topic: RestTopic) -> None:
    rest_topic.put(a="1", b="2")
    rest_topic.compact()
    text = page(served.client, f"/?q={rest_topic.local}")
    assert f'href="{page_of(rest_topic)}"' in text
    assert "1 of " in text
    assert page(served.client, "/?q=no-such-topic").count("<tr>") == 2
    assert 'aria-sort="descending"' in page(served.client, "/?sort=-raw")


def test_messages_that_are_not_sealed_yet_are_counted_in_lists(served: Served, rest_topic: RestTopic) -> None:
    """N7: a topic with new messages only showed 0."""
    rest_topic.put(a="1", b="2")
    whole = RestTopic(served, f"{rest_topic.local}-whole")
    assert whole.ask("PUT", "/partitions", 1).status_code == 204
    RestTopic(served, f"{whole.local}-partition-0").put(a="1", b="2")
    served.topic(rest_topic.name).log_manager().roll(served.topic(rest_topic.name).record)  # no file counts it
    rest_topic.put(c="3")
    for path, messages in (
        (f"/?q={rest_topic.local}&sort=name", 3),
        (f"/?q={rest_topic.local}&sort=-messages", 3),
        (page_of(whole), 2),
    ):
        assert f'data-label="Messages">{messages}</td>' in page(served.client, path), path


def test_totals_lead_to_the_topics_that_they_count(served: Served, rest_topic: RestTopic) -> None:
    rest_topic.put(a="1")
    rest_topic.ask("POST", "/compactionThreshold", 1)
    paused = RestTopic(served, f"{rest_topic.local}-paused")
    assert paused.ask("PUT").status_code == 204
    paused.ask("POST", "/compaction/pause")
    text = page(served.client, f"/?q={rest_topic.local}")
    assert re.findall(r'id="total-(\w+)"[^>]*><strong>(\d+)</strong>', text) == [
        ("topics", "2"), ("due", "1"), ("running", "0"), ("failing", "0"), ("paused", "1"),
    ]  # fmt: skip
    for state, topic in (("due", rest_topic), ("paused", paused)):
        (link,) = re.findall(rf'id="total-{state}" [^>]*href="([^"]*)"', text)
        listed = page(served.client, html.unescape(link))
        assert re.findall(r'data-text="([^"]*)"', listed) == [topic.name]
    assert "due <small>by compaction.<wbr>threshold.<wbr>bytes</small>" in text


def test_the_first_page_says_why_topics_fail_and_when_they_are_tried_again(
    served: Served, rest_topic: RestTopic
) -> None:
    rest_topic.put(a="1")
    rest_topic.compact()
    summary = served.topic(rest_topic.name)
    compacted = summary.snapshot().compacted
    assert compacted is not None
    control, now = served.broker.environment.metadata.compaction_control, served.broker.environment.clock.now_ms()
    lost = missing_object_advice(names.part("a" * 32, "b" * 32, 0), "file:///s").arguments
    advice = Advice(AdviceKind.REBUILD_COMPACTED, {**lost, "topic": rest_topic.name, "ledger_id": compacted.ledger_id})
    text = f"the compacted ledger {compacted.ledger_id} of {rest_topic.name} cannot be read"
    error = ErrorText(f"{text}: {advice.worded(NEUTRAL)}", advice=advice)
    control.record_failure(summary.record.id, error, now + 3_600_000)
    overview = page(served.client, f"/?q={rest_topic.local}")
    worded = str(escape(advice.worded(DASHBOARD_WORDING)))
    reason = f"the compacted ledger {compacted.ledger_id} cannot be read: {worded}"
    policies = page(served.client, f"{page_of(rest_topic)}/policies")
    assert f"<h1><small>{breakable(rest_topic.name)}</small>Policies</h1>" in policies
    assert '<span class="state failing">failing</span>' in policies
    attention = overview[overview.index('id="attention"') : overview.index("<table")]
    assert f'<b>1 topic:</b> <a href="{page_of(rest_topic)}"' in attention
    assert f"<small>{reason}; next try <time" in attention
    assert overview.count('unreadable" data-label=') == 2, "compacted, and saved"
    assert "<strong>0 B</strong> <span>compacted, with garbage; 1 topic unreadable</span>" in overview
    (link,) = re.findall(r'id="total-failing" [^>]*href="([^"]*)"', overview)
    failing = page(served.client, html.unescape(link))
    assert 'id="attention"' not in failing
    assert re.search(
        rf'<tr class="why"><td colspan="10">{re.escape(reason)}; 1 failure, next try <time [^>]*>in ', failing
    )


def test_the_sizes_of_many_topics_are_shared_for_some_seconds(
    served: Served, rest_topic: RestTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of the page have the present numbers nevertheless."""
    rest_topic.put(a="1")
    page(served.client, "/")
    monkeypatch.setattr(topic_sizes, "FEW_TOPICS", 0)
    monkeypatch.setattr(topic_sizes, "RENEW_AFTER_MS", 3_600_000)
    monkeypatch.setattr(topic_sizes, "MAX_SIZES_AGE_MS", 3_600_000)
    rest_topic.put(b="2")
    text = page(served.client, f"/?q={rest_topic.local}")
    assert 'data-label="Messages">2</td>' in text
    assert "raw, 1 message<" in text, "the totals may be old"


def test_pages_of_the_table(served: Served) -> None:
    for number in range(60):
        served.ask("PUT", f"/admin/v2/persistent/public/default/many-{number:03}")
    first, last = page(served.client, "/?q=many-"), page(served.client, "/?q=many-&page=2")
    assert "many-000" in first
    assert "many-050" not in first
    assert "many-059" in last
    second = 'aria-label="Page 2 of 2" aria-current="page"'
    assert second in last
    assert second in page(served.client, "/?q=many-&page=99")
    assert "many-059" in page(served.client, "/?q=many-&sort=-name")


def test_a_topic_is_drawn_with_its_compactions_cursors_and_policies(served: Served, rest_topic: RestTopic) -> None:
    rest_topic.put(a="1", b="1", c="1")
    rest_topic.put(a="2")
    rest_topic.compact()
    rest_topic.put(a="3333")
    assert rest_topic.ask("PUT", "/subscription/mine").status_code == 204
    rest_topic.ask("POST", "/compactionThreshold", 1)

    text = page(served.client, page_of(rest_topic))

    assert str(picture(text).get("aria-label")).startswith(
        "Offsets 0 to 5: 4 sealed, 1 not sealed, 3 left by compaction; the horizon"
    )
    assert [str(item.text) for item in picture(text).iter("text")] == ["compacted up to 3", "mine at 5"]
    assert f'for="slice">{html.escape(str(next(picture(text).iter("title")).text))}</output>' in text
    assert '<span class="state due">due</span>' in text
    assert "A compacted read returns 4 of 5 messages, " in text
    assert (
        "Next run: due now by compaction.threshold.bytes; 1 message not compacted yet, 500 % of the threshold of 1 B."
        in text
    )
    titles = [str(item.text) for item in picture(text).iter("title")]
    assert "the horizon: compacted up to offset 3" in titles[4]
    assert sum("subscription mine: all before offset 5 is acknowledged" in title for title in titles) == 1
    assert "so it is due" in text
    assert '<span class="state success">success</span>' in text
    assert "compaction.<wbr>threshold.<wbr>bytes" in text


def test_the_size_of_a_compacted_ledger_is_that_of_its_garbage_too(
    served: Served, rest_topic: RestTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest_topic.put(a="1", b="1", c="1")
    rest_topic.compact()
    assert "of garbage" not in page(served.client, page_of(rest_topic))
    monkeypatch.setattr(Part, "dead", 1)
    text = page(served.client, page_of(rest_topic))
    assert re.search(r"<dt>Compacted</dt><dd>[^<]* B: 3 messages and 1 row of garbage</dd>", text)
    assert re.search(r"returns 3 of 3 messages, and reads \d+ B, with garbage, instead of \d+ B\.", text)


def test_readers_that_are_connected_are_in_the_picture(
    served: Served, rest_topic: RestTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest_topic.put(a="1", b="1", c="1")
    reader = LiveSubscriptionState(SubscriptionStats(durable=False, consumers=(ConsumerStats(),)), delivered_end=2)
    ended = LiveSubscriptionState(SubscriptionStats(durable=False))
    clients = LiveTopicState(subscriptions={"reader-1": reader, "gone": ended})
    monkeypatch.setattr(served.broker.clients, "of_topic", lambda _: clients)
    drawing = picture(page(served.client, page_of(rest_topic)))
    assert [item.get("class") for item in drawing.iter("line")].count("reader") == 1
    titles = [str(item.text) for item in drawing.iter("title")]
    assert ["reader reader-1: all before offset 2 is sent" in title for title in titles] == [False, False, True]


def test_a_key_is_looked_up(served: Served, rest_topic: RestTopic) -> None:
    rest_topic.put(a="1", gone="1", b="<i>")
    rest_topic.compact()
    rest_topic.put(a="2", gone=None)

    def key_section(key: str) -> str:
        text = page(served.client, f"{page_of(rest_topic)}?key={key}")
        return text[text.index('<h2 id="look-up">') : text.index('<h2 id="compactions">')]

    assert '<pre tabindex="0">2</pre>' in key_section("a")
    assert f'<a href="{page_of(rest_topic)}/messages/' in key_section("a")
    assert "&lt;i&gt;" in key_section("b")
    assert "The key is deleted: its newest message is a deletion." in key_section("gone")
    assert "The key “none” has no value: it was never written, or it was removed" in key_section("none")


def test_a_name_is_shown_as_text_and_found_again(served: Served) -> None:
    name = "/admin/v2/persistent/public/default/%3Cb%3E%26x"
    assert served.ask("PUT", name).status_code == 204
    text = page(served.client, "/?q=%3Cb%3E")
    assert "<b>" not in text
    (path,) = set(re.findall(r'href="(/dashboard/topics/public/[^"]+)"', text))
    assert "&lt;b&gt;" in page(served.client, path)


def test_buttons_compact_pause_resume_and_cancel(served: Served, rest_topic: RestTopic) -> None:
    rest_topic.put(a="1")

    def press(button: str) -> str:
        answer = served.client.post(f"{page_of(rest_topic)}/{button}", headers=ORIGIN)
        assert answer.status_code == 200, answer.text
        assert str(answer.url).partition("?")[0].endswith(page_of(rest_topic))
        return str(answer.text)

    assert "a compaction is requested" in press("compact").lower()
    press("abort")
    assert "Compaction is paused." in press("pause")
    refused = served.client.post(f"{page_of(rest_topic)}/compact", headers=ORIGIN)
    assert refused.status_code == 409
    assert 'class="note error"' in refused.text
    assert "Compaction is paused." not in press("resume")
    press("compact")
    served.compact_requested()
    assert '<span class="state success">success</span>' in page(served.client, page_of(rest_topic))


def notice(text: str) -> str:
    """The sentence about the button that led to a page."""
    line = re.search(r'role="status">([^<]*)</p>', text)
    return line[1] if line else ""


@pytest.mark.parametrize("partitions", [0, 2])
def test_a_topic_that_was_paused_twice_is_still_paused(served: Served, rest_topic: RestTopic, partitions: int) -> None:
    topic = RestTopic(served, f"{rest_topic.local}-{partitions}")
    assert topic.ask("PUT", "/partitions" if partitions else "", partitions or None).status_code == 204

    def press(button: str) -> str:
        return notice(served.client.post(f"{page_of(topic)}/{button}", headers=ORIGIN).text)

    assert press("pause") == "Compaction was paused."
    again = "Compaction was paused again: it is paused 2 times, and continues after as many presses of “Resume”."
    assert press("pause") == again
    if partitions:
        other = RestTopic(served, f"{topic.local}-partition-1")
        assert other.ask("POST", "/compaction/pause").status_code == 200
        assert press("resume") == "One pause was undone: compaction is still paused, at most 2 times."
        assert other.ask("POST", "/compaction/resume").status_code == 200
    else:
        assert press("resume") == "One pause was undone: compaction is still paused, 1 time."
    assert press("resume") == "Compaction was resumed."


def test_a_request_is_not_stated_after_its_run(served: Served, rest_topic: RestTopic) -> None:
    rest_topic.put(a="1")
    answer = served.client.post(f"{page_of(rest_topic)}/compact", headers=ORIGIN)
    assert notice(answer.text) == "A compaction was requested."
    served.compact_requested()
    assert notice(served.client.get(str(answer.url)).text) == ""


def test_a_request_that_finds_nothing_new_says_so(served: Served, rest_topic: RestTopic) -> None:
    words = "Nothing is new since the last run: no run is needed."

    def press() -> tuple[str, str]:
        answer = served.client.post(f"{page_of(rest_topic)}/compact", headers=ORIGIN)
        assert words not in answer.text, "it is requested"
        served.compact_requested()
        place = str(answer.url).partition("/dashboard")[2]
        return place, page(served.client, f"/dashboard{place}")

    rest_topic.put(a="1")
    place, text = press()
    assert words not in text, "there was a run"
    again, text = press()
    assert words in text
    assert "A run begins only if something is new since the last one." in text
    assert words not in page(served.client, f"/dashboard{place}")
    assert words not in page(served.client, page_of(rest_topic))
    rest_topic.put(a="2")
    assert words not in page(served.client, f"/dashboard{again}")


def test_policies_are_set_refused_and_removed(served: Served, rest_topic: RestTopic) -> None:
    def post(**form: str) -> tuple[int, str]:
        body = "&".join(f"{name}={value}" for name, value in form.items())
        answer = served.client.post(f"{page_of(rest_topic)}/policies", content=body, headers=ORIGIN)
        return answer.status_code, str(answer.text)

    def applied() -> Any:
        return rest_topic.ask("GET", "/policies/min.compaction.lag.ms").json()

    rest_topic.put(a="1")
    status, text = post(name="min.compaction.lag.ms", value="60000", do="set")
    assert status == 200
    assert "min.compaction.lag.ms is changed." in text
    assert applied() == {"value": 60_000, "origin": "topic"}
    assert 'value="remove"' in text
    status, text = post(name="min.compaction.lag.ms", value="soon", do="set")
    assert status == 400
    assert "min.compaction.lag.ms is not changed: " in text
    assert post(name="min.compaction.lag.ms", do="remove")[0] == 200
    assert applied()["origin"] != "topic"


def test_partitions_stand_together(served: Served) -> None:
    assert served.ask("PUT", "/admin/v2/persistent/public/default/parted/partitions", b"3").status_code == 204
    text = page(served.client, "/dashboard/topics/public/default/parted")
    assert text.count("/dashboard/topics/public/default/parted-partition-") == 3
    assert "/dashboard/topics/public/default/parted" in page(
        served.client, "/dashboard/topics/public/default/parted-partition-1"
    )
    assert "Policy" in page(served.client, "/dashboard/topics/public/default/parted/policies")


def test_the_page_of_partitions_reads_no_other_topics(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    parted = RestTopic(served, "parted-alone")
    assert parted.ask("PUT", "/partitions", 2).status_code == 204
    topics, requested = served.broker.environment.metadata.topics, list[Collection[int] | None]()
    summaries = topics.summaries

    def recorded(topic_ids: Collection[int] | None = None) -> list[TopicSummary]:
        requested.append(topic_ids)
        return summaries(topic_ids)

    monkeypatch.setattr(topics, "summaries", recorded)
    assert "2 partitions have a log" in page(served.client, page_of(parted))
    assert [None if topic_ids is None else len(topic_ids) for topic_ids in requested] == [2]


def test_settings_are_shown_with_their_origin(served: Served) -> None:
    text = page(served.client, "/dashboard/settings")
    row = re.search(r'<th scope="row">\s*dashboard<.*?</tr>', text, re.DOTALL)
    assert row
    assert re.findall(r"<td[^>]*>\s*(\w+)", row[0]) == ["true", "default"]


def test_what_the_dashboard_is_made_of(served: Served) -> None:
    assert served.client.get("/dashboard/dashboard.js").headers["content-type"].startswith("text/javascript")
    assert served.client.get("/dashboard/none.js").status_code == 404


def test_pages_name_no_calls_of_rest_and_no_commands() -> None:
    for template in (files("api.dashboard") / "templates").iterdir():
        calls = re.findall(r"\b(?:GET|PUT|POST|DELETE) |readCompacted|compactor-admin", template.read_text())
        assert not calls, template.name


@pytest.mark.parametrize("headers", [{}, {"Origin": "http://elsewhere.example"}, {"Origin": "null"}])
def test_a_form_of_another_site_is_refused(served: Served, rest_topic: RestTopic, headers: dict[str, str]) -> None:
    answer = served.client.post(f"{page_of(rest_topic)}/pause", headers=headers)
    assert answer.status_code == 403
    assert rest_topic.ask("GET", "/compaction/control").json()[0]["paused"] == 0


def test_what_is_missing_is_a_page(served: Served) -> None:
    assert "the topic persistent://public/default/no-such does not exist: the first page lists the topics" in page(
        served.client, "/dashboard/topics/public/default/no-such", 404
    )


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/?page=two", ": the page must be a whole number"),
        ("/dashboard/topics/public/default/t/messages?offset=1.5", ": the offset must be a whole number"),
        ("/dashboard/topics/pub%20lic/default/t", "of a topic name has other characters than letters"),
        ("/?name=%FF", "the query of the URL is not UTF-8"),
        ("/dashboard/topics/public/default/t/messages?key=%FF", "the query of the URL is not UTF-8"),
        ("/dashboard/topics/public/default/%FF", "the path of the URL is not UTF-8"),
        ("/dashboard/%FF", "the path of the URL is not UTF-8"),
    ],
)
def test_a_refused_path_or_query_is_a_page(served: Served, path: str, reason: str) -> None:
    answer = served.client.get(path)
    assert (answer.status_code // 100, answer.headers["content-type"]) == (4, "text/html; charset=utf-8")
    assert reason in answer.text


def test_the_first_page_leads_to_partitioned_topics(served: Served, rest_topic: RestTopic) -> None:
    local = f"{rest_topic.local}-parted"
    whole = RestTopic(served, local)
    assert whole.ask("PUT", "/partitions", "3").status_code == 204
    alone = RestTopic(served, f"{local}-alone")
    assert alone.ask("PUT").status_code == 204
    link = re.compile(rf'<a id="whole-[0-9]+" href="{re.escape(page_of(whole))}"')
    text = page(served.client, f"/?q={local}")
    assert len(link.findall(text)) == 1
    assert "<span>3 partitions</span>" in text
    assert text.index(f'href="{page_of(alone)}"') < text.index('id="whole-') < text.index(f"{local}-partition-0")
    by_size = page(served.client, f"/?q={local}&sort=-raw")
    assert len(link.findall(by_size)) == 3, "partitions of one topic are not together"
    assert "<span>3 partitions</span>" not in by_size
    assert 'id="whole-' not in page(served.client, f"/?q={alone.local}")


def test_the_service_page_names_the_leader(served: Served, rest_topic: RestTopic) -> None:
    rest_topic.put(a="1")
    rest_topic.ask("POST", "/compaction/pause")
    text = page(served.client, "/dashboard/service")
    assert "Paused topics" in text
    assert '<td data-label="State">paused</td>' in text, "in words, not those of Kafka's classes"
    assert f'<a href="{page_of(rest_topic)}">' in text


def test_the_service_page_lists_mirrors(served: Served) -> None:
    assert "Mirrors of Kafka" not in page(served.client, "/dashboard/service")
    mirrors, topic = served.broker.environment.metadata.mirrors, TopicName.parse("mirrored")
    mirrors.add(MirrorRecord(topic, "kafka://broker:9092/<users>", {}, "cluster", "ab" * 16))
    mirrors.store_progress(topic, {0: MirrorProgress(1_000, 4_000, 20), 1: MirrorProgress(5, 5, 3)})
    mirrors.store_error(topic, ErrorText("Kafka does not answer"))
    text = page(served.client, "/dashboard/service")
    mirrors.remove(topic)
    assert '<a href="/dashboard/topics/public/default/mirrored">' in text
    for label, value in (
        ("State", "running"),
        ("Lag", "3,000"),
        ("Records a second", "23"),
        ("Error", "Kafka does not answer"),
    ):
        assert f'<td data-label="{label}">{value}</td>' in text
    assert "&lt;users&gt;" in text


def test_a_service_without_topics_leads_to_the_form_of_one(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        text = page(served.client, "/")
    assert 'No topic. <a href="/dashboard/topics/new">Create a new topic</a>, produce to one, or import' in text


def test_it_can_be_turned_off(tmp_path: Path) -> None:
    with serving(tmp_path, dashboard=False) as served:
        assert served.client.get("/").status_code == 404
        assert served.client.get("/dashboard/service").status_code == 404
