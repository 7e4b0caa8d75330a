"""The dashboard as a browser without scripts has it: pages, forms, the cookie of a token, and who may do what."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Collection, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit
from xml.etree import ElementTree

import pytest
from markupsafe import escape

from api.broker.serving.connected_clients import LiveSubscriptionState, LiveTopicState
from api.broker.stats_tree import ConsumerStats, SubscriptionStats
from api.dashboard import changes, topic_sizes
from api.dashboard.formats import breakable
from api.http.tokens import create_token
from api.observability.error_text import DASHBOARD_WORDING
from api.reports import trim_document
from storage.advice import NEUTRAL, Advice, AdviceKind, missing_object_advice
from storage.errors import ErrorText
from storage.ledger import names
from storage.ledger.manifest import Part, read_manifest
from storage.metadata.records import TopicSummary
from tests.asgi import TestClient
from tests.clients.rest.conftest import RestTopic
from tests.serving import Served, serving

SECRET = bytes(32)
ORIGIN = {"Origin": "http://127.0.0.1:8080"}


def page_of(topic: RestTopic) -> str:
    return f"/dashboard/topics/public/default/{topic.local}"


def page(client: Any, path: str, status: int = 200) -> str:
    """A page: with our script alone, and with headers that forbid inline ones and other hosts."""
    answer = client.get(path)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-security-policy"].startswith("default-src 'none'; style-src 'self'")
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert re.findall("<script.*", answer.text) == ['<script src="/dashboard/dashboard.js" defer></script>']
    assert not re.search(r"<[^>]* (on\w+|style)=", answer.text)
    assert not re.search(r"(src|href|action)=\"(https?:)?//", answer.text)
    return str(answer.text)


def picture(text: str) -> ElementTree.Element:
    """Return the drawing along the offsets, which has another one inside."""
    (drawing,) = re.findall('<svg class="picture".*?</svg>.*?</svg>', text, re.DOTALL)
    return ElementTree.fromstring(drawing)


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


def test_the_first_page_follows_a_run_that_the_caller_may_watch(guarded: Served) -> None:
    root = {"Authorization": f"Bearer {create_token(SECRET, 'root', {})}"}
    for verb, path, body in (
        ("PUT", "/admin/v2/namespaces/public/busy", "{}"),
        ("PUT", "/admin/v2/persistent/public/busy/topic", None),
        ("POST", "/admin/v2/namespaces/public/busy/permissions/sees", '["consume"]'),
        ("POST", "/admin/v2/namespaces/public/busy/permissions/packs", '["compact"]'),
    ):
        headers = root | ({"content-type": "application/json"} if body else {})
        assert guarded.client.request(verb, path, content=body, headers=headers).status_code == 204
    topic = guarded.topic("persistent://public/busy/topic").record
    run = guarded.broker.environment.metadata.runs.claim(topic.id, "elsewhere:1", {}, 10_000).run_id
    for role, followed in (("sees", 'data-busy="false" data-run=""'), ("packs", f'data-busy="true" data-run="{run}"')):
        assert followed in page(logged_in(guarded, role), "/?state=running"), role


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


def test_trim_shows_what_would_go_before_it_does(served: Served, rest_topic: RestTopic) -> None:
    rest_topic.put(a="1")
    rest_topic.compact()
    rest_topic.put(a="2")
    rest_topic.compact()
    rest_topic.put(a="3")
    path = f"{page_of(rest_topic)}/trim"
    assert "Show what would go" in page(served.client, path)
    would = served.client.post(path, content="before=1&do=try", headers=ORIGIN).text
    assert "Would go" in would
    assert "Yes, trim these" in would
    assert "Trimmed" in served.client.post(path, content="before=1&do=trim", headers=ORIGIN).text
    again = served.client.post(path, content="before=1&do=try", headers=ORIGIN).text
    assert "None: no raw ledger ends before that message; a trim removes whole ledgers." in again
    assert (
        "None: the cleanup policies remove no raw ledger."
        in served.client.post(path, content="do=try", headers=ORIGIN).text
    )


def test_a_trim_is_refused_with_the_steps_while_the_compacted_ledger_cannot_be_read(
    served: Served, rest_topic: RestTopic
) -> None:
    """R8: raw has the only copy; also the dry run."""
    rest_topic.put(a="1")
    rest_topic.compact()
    environment = served.broker.environment
    compacted = served.topic(rest_topic.name).snapshot().compacted
    assert compacted is not None
    (part,) = read_manifest(environment.store, compacted.manifest).parts
    environment.store.delete(part.rows.stored.name)
    for form in ("before=1&do=try", "before=1&do=trim"):
        answer = served.client.post(f"{page_of(rest_topic)}/trim", content=form, headers=ORIGIN)
        text = html.unescape(answer.text)
        assert answer.status_code == 507
        assert f"Nothing is trimmed: the compacted ledger {compacted.ledger_id} of {rest_topic.name} cannot" in text
        assert "one of its parts is not in the object store." in text
        assert f"compactor cursor delete {rest_topic.name} __compaction" in text
    assert rest_topic.values() == [("a", "1")]


def test_a_trim_says_once_what_holds_the_rest(served: Served, rest_topic: RestTopic) -> None:
    path = f"{page_of(rest_topic)}/trim"

    def would_go(before: int | str) -> str:
        text = served.client.post(path, content=f"before={before}&do=try", headers=ORIGIN).text
        return html.unescape(re.sub("<[^>]*>", "", text.partition("Would go")[2]))

    assert "None: the cleanup policies remove no raw ledger." in would_go("")
    rest_topic.put(**{f"k{number}": "v" for number in range(6)})
    served.topic(rest_topic.name).log_manager().roll_and_seal(served.topic(rest_topic.name).record)
    assert rest_topic.ask("PUT", "/subscription/s", "earliest").status_code == 204
    text = would_go(2)
    assert "None: the cursor s needs messages before offset 2." in text
    assert text.count("the cursor s needs") == 1
    text = would_go(6)
    assert "None: the cursor s needs 1 ledger that would go." in text
    assert text.count("the cursor s needs") == 1
    rest_topic.put(a="1")
    served.topic(rest_topic.name).log_manager().roll_and_seal(served.topic(rest_topic.name).record)
    assert rest_topic.ask("POST", "/subscription/s/skip/6").status_code == 204
    text = would_go(7)
    assert "None:" not in text
    assert text.count("No more, since the cursor s needs 1 ledger that would go.") == 1


def test_a_trim_says_that_what_is_not_sealed_is_left(
    served: Served, rest_topic: RestTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_damage(*arguments: Any, **options: Any) -> dict[str, Any]:
        return {**trim_document(*arguments, **options), "tail_left": "the file is damaged"}

    rest_topic.put(a="1", b="1")
    monkeypatch.setattr(changes, "trim_document", with_damage)
    text = served.client.post(f"{page_of(rest_topic)}/trim", content="before=1&do=try", headers=ORIGIN).text
    assert "None: messages that are not sealed yet are left, for the reason below." in text
    assert "the file is damaged" in text
    assert "no raw ledger ends before" not in text


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
        ("/?page=two", "query.page must be a whole number"),
        ("/dashboard/topics/public/default/t/messages?offset=1.5", "query.offset must be a whole number"),
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


def test_the_service_page_names_the_leader(served: Served, rest_topic: RestTopic) -> None:
    rest_topic.put(a="1")
    rest_topic.ask("POST", "/compaction/pause")
    text = page(served.client, "/dashboard/service")
    assert "Paused topics" in text
    assert '<td data-label="State">None</td>' not in text
    assert f'<a href="{page_of(rest_topic)}">' in text


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    key = "data:;base64," + base64.b64encode(SECRET).decode()
    access = {"auth_token_secret_key": key, "auth_superuser_roles": ("root",), "limits_requests_per_second": 0.0}
    with serving(tmp_path_factory.mktemp("access"), **access) as served:
        yield served


def logged_in(served: Served, role: str) -> TestClient:
    client = TestClient(served.client.app)
    answer = client.post("/dashboard/login", content=f"token={create_token(SECRET, role, {})}&next=/", headers=ORIGIN)
    assert answer.status_code == 200
    return client


def test_who_is_not_logged_in_is_asked_to(guarded: Served) -> None:
    client = TestClient(guarded.client.app)
    answer = client.get("/dashboard/service")
    assert str(answer.url).endswith("/dashboard/login?next=%2Fdashboard%2Fservice")
    refused = client.post("/dashboard/login", content="token=no.such.token", headers=ORIGIN)
    assert refused.status_code == 401
    assert 'role="alert"' in refused.text
    assert "set-cookie" not in refused.headers


def test_a_cookie_counts_for_the_dashboard_alone(guarded: Served) -> None:
    client = logged_in(guarded, "root")
    page(client, "/dashboard/service")
    assert client.get("/admin/v2/tenants").status_code == 401
    client.post("/dashboard/logout", headers=ORIGIN)
    assert "/dashboard/login" in str(client.get("/dashboard/service").url)


def test_the_cookie_is_kept_from_scripts_and_other_sites(guarded: Served) -> None:
    client = TestClient(guarded.client.app)
    body = f"token={create_token(SECRET, 'root', {})}&next=https://elsewhere.example/x"
    answer = client.post("/dashboard/login", content=body, headers=ORIGIN, follow_redirects=False)
    assert answer.headers["location"] == "/x"
    assert {"HttpOnly", "SameSite=strict"} <= set(answer.headers["set-cookie"].split("; "))


def test_a_role_sees_and_does_what_it_may(guarded: Served) -> None:
    root = {"Authorization": f"Bearer {create_token(SECRET, 'root', {})}"}
    for verb, path, body in (
        ("PUT", "/admin/v2/persistent/public/default/seen", None),
        ("PUT", "/admin/v2/namespaces/public/hidden", "{}"),
        ("PUT", "/admin/v2/persistent/public/hidden/unseen", None),
        ("POST", "/admin/v2/namespaces/public/default/permissions/reader", '["consume"]'),
    ):
        headers = root | ({"content-type": "application/json"} if body else {})
        assert guarded.client.request(verb, path, content=body, headers=headers).status_code == 204
    client = logged_in(guarded, "reader")
    text = page(client, "/")
    assert "seen" in text
    assert "unseen" not in text
    page(client, "/dashboard/topics/public/default/seen")
    assert "none of the permissions" in page(client, "/dashboard/topics/public/hidden/unseen", 403)
    assert client.post("/dashboard/topics/public/default/seen/compact", headers=ORIGIN).status_code == 403
    assert client.get("/dashboard/service").status_code == 403


def test_a_role_with_permissions_for_single_topics_sees_these_alone(guarded: Served) -> None:
    root = {"Authorization": f"Bearer {create_token(SECRET, 'root', {})}"}
    for verb, path, body in (
        ("PUT", "/admin/v2/namespaces/public/singles", "{}"),
        ("PUT", "/admin/v2/persistent/public/singles/granted", None),
        ("PUT", "/admin/v2/persistent/public/singles/other", None),
        ("PUT", "/admin/v2/persistent/public/singles/whole/partitions", "2"),
        ("POST", "/admin/v2/persistent/public/singles/granted/permissions/single", '["consume"]'),
        ("POST", "/admin/v2/persistent/public/singles/whole/permissions/single", '["compact"]'),
        ("POST", "/admin/v2/persistent/public/singles/other/permissions/single", '["functions"]'),
    ):
        headers = root | ({"content-type": "application/json"} if body else {})
        assert guarded.client.request(verb, path, content=body, headers=headers).status_code == 204, path
    names = r'title="persistent://public/singles/([^"]*)"'
    text = page(logged_in(guarded, "single"), "/")
    assert re.findall(names, text) == ["granted", "whole-partition-0", "whole-partition-1"]
    assert "3 of 3 topics" in text
    assert re.findall(names, page(logged_in(guarded, "stranger"), "/")) == []


def test_a_service_without_topics_leads_to_the_form_of_one(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        text = page(served.client, "/")
    assert 'No topic. <a href="/dashboard/topics/new">Create a new topic</a>, produce to one, or import' in text


def test_it_can_be_turned_off(tmp_path: Path) -> None:
    with serving(tmp_path, dashboard=False) as served:
        assert served.client.get("/").status_code == 404
        assert served.client.get("/dashboard/service").status_code == 404


def cookie_of(client: TestClient, role: str, **headers: str) -> str:
    """The cookie that logging in sets."""
    body = f"token={create_token(SECRET, role, {})}&next=/"
    answer = client.post("/dashboard/login", content=body, headers=ORIGIN | headers, follow_redirects=False)
    assert answer.status_code == 303
    return str(answer.headers["set-cookie"])


def test_a_cookie_behind_tls_is_secure_and_bound_to_the_host(guarded: Served) -> None:
    """X15: a proxy that ends TLS leaves the request http; `Origin` has the browser's scheme."""
    client = TestClient(guarded.client.app)
    secure = cookie_of(client, "root", Origin="https://127.0.0.1:8080")
    assert secure.startswith("__Host-compactor_token=")
    assert {"Secure", "HttpOnly", "SameSite=strict", "Path=/"} <= set(secure.split("; "))
    plain = cookie_of(client, "root")
    assert plain.startswith("compactor_token=")
    assert "Secure" not in plain
    assert TestClient(guarded.client.app).get("/", headers={"Cookie": secure}).text.count("Log out") == 1
    tls = TestClient(guarded.client.app, base_url="https://127.0.0.1:8080")
    assert "Log out" in tls.get("/", headers={"Cookie": secure}).text
    assert "Log out" not in tls.get("/", headers={"Cookie": plain}).text
    assert cookie_of(tls, "root", Origin="https://127.0.0.1:8080").startswith("__Host-")


@pytest.mark.parametrize("origin", ["http://[", "ftp://127.0.0.1:8080", "https://[", "127.0.0.1:8080", ""])
@pytest.mark.parametrize("path", ["login", "logout"])
def test_a_form_needs_an_origin_of_this_service(guarded: Served, origin: str, path: str) -> None:
    """X13, X15: `http://[` was an internal error, other schemes were taken, and logging out needed none."""
    client = TestClient(guarded.client.app)
    headers = {"Origin": origin} if origin else {}
    assert client.post(f"/dashboard/{path}", content="token=x", headers=headers).status_code == 403
    tls = TestClient(guarded.client.app, base_url="https://127.0.0.1:8080")
    assert tls.post(f"/dashboard/{path}", content="token=x", headers=ORIGIN).status_code == 403


@pytest.mark.parametrize(
    ("place", "location"),
    [
        ("http://[", "/"),
        ("//elsewhere.example", "/"),
        ("/dashboard/topics/a/b/c%252Fd%20e", "/dashboard/topics/a/b/c%2Fd%20e"),
        ("/a%0d%0aX:1", "/aX%3A1"),
    ],
)
def test_a_browser_returns_to_a_path_of_this_service(guarded: Served, place: str, location: str) -> None:
    """`place`: as a form encodes it."""
    body = f"token={create_token(SECRET, 'root', {})}&next={place}"
    answer = guarded.client.post("/dashboard/login", content=body, headers=ORIGIN, follow_redirects=False)
    assert answer.status_code == 303
    assert answer.headers["location"] == location


def test_an_encoded_name_survives_logging_in(guarded: Served) -> None:
    path = "/dashboard/topics/public/default/a%25c%20d"
    client = TestClient(guarded.client.app)
    answer = client.get(path, follow_redirects=False)
    assert answer.status_code == 303, answer.text
    location = answer.headers["location"]
    place = parse_qs(urlsplit(location).query)["next"][0]
    body = urlencode({"token": create_token(SECRET, "root", {}), "next": place})
    answer = client.post("/dashboard/login", content=body, headers=ORIGIN, follow_redirects=False)
    assert answer.headers["location"] == path


def test_a_malformed_host_is_refused(guarded: Served) -> None:
    answer = TestClient(guarded.client.app).get("/lookup/v2/topic/persistent/a/b/c", headers={"Host": "["})
    assert answer.status_code == 400


@pytest.mark.slow
def test_parts_of_a_topic_page_need_the_permission_of_their_calls(guarded: Served) -> None:
    """X15, X9: as over REST; runs that do not exist look like others."""
    root = {"Authorization": f"Bearer {create_token(SECRET, 'root', {})}"}
    for verb, path, body in (
        ("PUT", "/admin/v2/persistent/public/default/parts", None),
        ("POST", "/topics/persistent/public/default/parts", '{"messages":[{"key":"a","payload":"1"}]}'),
        ("PUT", "/admin/v2/persistent/public/default/parts/subscription/secret-name", None),
        ("PUT", "/admin/v2/persistent/public/default/parts/compaction", None),
        ("POST", "/admin/v2/namespaces/public/default/permissions/writer", '["produce"]'),
        ("POST", "/admin/v2/namespaces/public/default/permissions/taker", '["consume"]'),
        ("POST", "/admin/v2/namespaces/public/default/permissions/packer", '["compact"]'),
    ):
        headers = root | ({"content-type": "application/json"} if body else {})
        assert guarded.client.request(verb, path, content=body, headers=headers).status_code in (200, 204)
    guarded.compact_requested()
    runs = guarded.client.get("/admin/v2/persistent/public/default/parts/compactions", headers=root).json()
    run = runs[0]["run"]
    for role, has_runs, has_subscriptions, events in (
        ("writer", False, False, 403),
        ("taker", True, True, 403),
        ("packer", True, False, 200),
    ):
        client = logged_in(guarded, role)
        text = page(client, "/dashboard/topics/public/default/parts")
        assert ('<h2 id="compactions">' in text) is has_runs, role
        assert ('class="buttons"' in text) is (role == "packer")
        assert ("secret-name" in text) is has_subscriptions, role
        answer = client.get(f"/dashboard/runs/{run}/events")
        assert answer.status_code == events
        if events == 403:
            other = client.get("/dashboard/runs/999/events")
            assert (other.status_code, other.json()) == (403, answer.json())
    stranger = TestClient(guarded.client.app)
    unknown = [stranger.get(f"/dashboard/runs/{number}/events") for number in (run, 999)]
    assert [answer.status_code for answer in unknown] == [401, 401]
    assert unknown[0].json() == unknown[1].json()
