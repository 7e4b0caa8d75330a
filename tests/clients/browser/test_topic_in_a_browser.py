"""A topic's page in a real browser: its sections, the chart of its runs, its clients and its schema."""

from __future__ import annotations

import json
import re

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.clients.browser.conftest import WAIT_MS, await_compaction, watched
from tests.servers.compactor_service import RunningService

pytestmark = pytest.mark.slow

NAME = "public/default/other-30"
PATH = f"/dashboard/topics/{NAME}"


@pytest.fixture(scope="module")
def charted(service: RunningService) -> RunningService:
    """A topic with three runs, two versions of a schema and a subscription."""
    with httpx.Client(base_url=service.url, timeout=WAIT_MS / 1000) as client:

        def call(verb: str, path: str, body: object = None) -> None:
            response = client.request(verb, path, json=body)
            assert response.is_success, response.text

        call("PUT", f"/admin/v2/persistent/{NAME}/subscription/crm-sync", "earliest")
        for fields in ([], [{"name": "town", "type": ["null", "string"], "default": None}]):
            definition = {"type": "record", "name": "User", "fields": [{"name": "id", "type": "int"}, *fields]}
            body = {"type": "AVRO", "schema": json.dumps(definition), "properties": {}}
            call("POST", f"/admin/v2/schemas/{NAME}/schema", body)
        for round_number in range(3):
            messages = [{"key": f"user-{n % 5}", "payload": "x" * 10 * round_number} for n in range(20)]
            call("POST", f"/topics/persistent/{NAME}", {"messages": messages})
            call("PUT", f"/admin/v2/persistent/{NAME}/compaction")
            await_compaction(service.url, NAME)
    return service


def test_the_numbers_of_the_runs_are_reached_by_keyboard_and_pointer(browser: Browser, charted: RunningService) -> None:
    with watched(browser, charted) as watch:
        page = watch.open(PATH)
        numbers, slider = page.locator("#run-numbers"), page.get_by_role("slider", name="Run", exact=True)
        panels = page.locator("svg.panel")
        texts = panels.first.locator("title").all_text_contents()
        assert len(texts) == 3
        expect(panels).to_have_count(3)
        expect(numbers).to_have_text(texts[-1])
        slider.focus()
        page.keyboard.press("Home")
        expect(numbers).to_have_text(texts[0])
        expect(slider).to_have_attribute("aria-valuetext", texts[0])
        expect(page.locator(".panel .chosen")).to_have_count(3)
        panels.nth(2).locator(".slice").nth(1).hover()
        expect(numbers).to_have_text(texts[1])
        expect(page.locator("#slice-numbers")).to_contain_text(re.compile(r"^Offsets? 0\b"))


def test_sections_are_reached_from_the_top_and_a_schema_is_opened(browser: Browser, charted: RunningService) -> None:
    with watched(browser, charted, width=390) as watch:
        page = watch.open(PATH)
        sections = page.get_by_role("navigation", name="On this page")
        sections.get_by_role("link", name="Clients").click()
        expect(page.get_by_role("heading", name="Clients")).to_be_in_viewport()
        expect(page.get_by_role("region", name="Table of subscriptions")).to_contain_text("crm-sync")
        sections.get_by_role("link", name="Schema").click()
        expect(page.locator("#schema-1 .added").first).to_be_visible()
        first = page.locator("#schema-0")
        expect(first.locator("pre")).to_be_hidden()
        first.locator("summary").press("Enter")
        expect(first.locator("pre")).to_contain_text("type: AVRO")
        for name in ("compactions", "producers", "subscriptions", "policies"):
            region = page.get_by_role("region", name=f"Table of {name}")
            if region.count():
                assert region.evaluate("item => item.scrollWidth <= item.clientWidth"), name


def test_runs_and_schemas_are_read_without_scripts(browser: Browser, charted: RunningService) -> None:
    with watched(browser, charted, scripts=False) as watch:
        page = watch.open(PATH)
        expect(page.locator("#run-numbers")).to_contain_text("success")
        expect(page.locator("#slice-numbers")).to_contain_text(re.compile(r"^Offsets? 0\b"))
        expect(page.locator("#status")).to_contain_text("A compacted read returns 5 of 60 messages, ")
        expect(page.get_by_role("region", name="Table of compactions").locator("tbody tr")).to_have_count(3)
        expect(page.locator("input[type=range]").first).to_be_hidden()
        page.locator("#schema-0 summary").click()
        expect(page.locator("#schema-0 pre")).to_be_visible()
