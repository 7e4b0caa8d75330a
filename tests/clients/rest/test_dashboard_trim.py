"""The dashboard's page of a trim: a dry run first, and what holds back the rest."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest

from api.dashboard import changes
from api.reports import trim_document
from storage.ledger.names import ObjectKind
from tests.clients.rest.conftest import RestTopic
from tests.clients.rest.dashboard_pages import ORIGIN, page, page_of
from tests.serving import Served


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
    assert 'role="status"' not in would
    trimmed = served.client.post(path, content="before=1&do=trim", headers=ORIGIN).text
    assert '<p class="note done" role="status">Trimmed 1 ledger: 1 message, 2 B.</p>' in trimmed
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
    lost = rest_topic.lose(ObjectKind.PART)
    for form in ("before=1&do=try", "before=1&do=trim"):
        answer = served.client.post(f"{page_of(rest_topic)}/trim", content=form, headers=ORIGIN)
        text = html.unescape(answer.text)
        assert answer.status_code == 507
        assert f"Nothing is trimmed: the compacted ledger {lost.ledger_id} of {rest_topic.name} cannot" in text
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
