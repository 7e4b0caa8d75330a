"""The first page in a real browser: totals, filters, order, pages, explanations, copying, and refresh."""

from __future__ import annotations

import re

import httpx
import pytest
from playwright.sync_api import Browser, Route, expect

from tests.clients.browser.conftest import watched
from tests.servers.compactor_service import RunningService

pytestmark = pytest.mark.slow


def test_topics_are_filtered_sorted_and_paged(browser: Browser, service: RunningService) -> None:
    with watched(browser, service) as watch:
        page = watch.open("/")
        page.get_by_label("Name contains").fill("other-")
        page.keyboard.press("Enter")
        expect(page.get_by_text(re.compile(r"60 of \d+ topics"))).to_be_visible()
        expect(page.get_by_role("rowheader", name="public/default 60 topics")).to_be_visible()
        names = page.locator("th.name a")
        expect(names.first).to_have_text("other-00")
        page.get_by_role("link", name="Topic", exact=True).click()
        expect(names.first).to_have_text("other-59")
        expect(page.get_by_role("columnheader", name="Topic")).to_have_attribute("aria-sort", "descending")
        page.get_by_role("link", name="Page 2 of 2").click()
        expect(names).to_have_count(10)
        page.get_by_role("link", name="Show all topics").click()
        expect(page.get_by_text(re.compile(r"^(\d+) of \1 topics"))).to_be_visible()
        page.get_by_role("link", name=re.compile("not compacted yet$")).click()
        expect(page.get_by_role("columnheader", name="Not compacted yet")).to_have_attribute("aria-sort", "descending")


def test_a_total_leads_to_its_topics_and_a_name_is_copied(browser: Browser, service: RunningService) -> None:
    pause = "/admin/v2/persistent/public/default/orders/compaction/pause"
    with httpx.Client(base_url=service.url) as client:
        assert client.post(pause).status_code == 200
        try:
            with watched(browser, service) as watch:
                page = watch.open("/")
                page.get_by_role("link", name="1 paused").focus()
                page.keyboard.press("Enter")
                expect(page.locator("th.name a")).to_have_text(["orders"])
                expect(page.locator(".states")).to_have_text("paused")
                page.context.grant_permissions(["clipboard-read", "clipboard-write"])
                page.get_by_role("button", name="Copy persistent://public/default/orders").click()
                expect(page.get_by_role("button", name="Copied")).to_be_visible()
                assert page.evaluate("navigator.clipboard.readText()") == "persistent://public/default/orders"
        finally:
            assert client.post(pause.replace("pause", "resume")).status_code == 200


def test_columns_are_explained_by_keyboard(browser: Browser, service: RunningService) -> None:
    with watched(browser, service) as watch:
        page = watch.open("/")
        for heading in ("Not compacted yet", "Cleanable", "Of the threshold"):
            page.get_by_role("link", name=f"Meaning of {heading}").focus()
            page.keyboard.press("Enter")
            expect(page.locator("dt:target")).to_have_text(heading)
            expect(page.locator("dt:target + dd")).to_be_in_viewport()


def test_the_page_is_replaced_when_a_run_ends(browser: Browser, service: RunningService) -> None:
    """A proxy of the browser answers as a service would during a run: first a page with a run, then the run's end, a
    503 and no answer."""

    def during_a_run(route: Route) -> None:
        body = route.fetch().text().replace('data-busy="false" data-run=""', 'data-busy="true" data-run="1"')
        route.fulfill(body=body.replace(">other-<wbr>00</a>", ">before</a>"), content_type="text/html")

    end = "event: end\ndata: {}\n\n"
    with watched(browser, service) as watch:
        watch.page.route(
            "**/dashboard/runs/1/events", lambda route: route.fulfill(body=end, content_type="text/event-stream")
        )
        watch.page.route(f"{watch.url}/", lambda route: route.abort(), times=1)
        watch.page.route(f"{watch.url}/", lambda route: route.fulfill(status=503), times=1)
        watch.page.route(f"{watch.url}/", during_a_run, times=1)
        page = watch.open("/")
        page.get_by_role("link", name="before").focus()
        replaced = page.get_by_role("link", name="other-00")
        expect(replaced).to_be_focused()
        expect(page.get_by_role("link", name="before")).to_have_count(0)
        assert ["503" in problem for problem in watch.problems] == [True, False]
        watch.problems.clear()


def test_a_long_name_breaks_at_its_separators_alone(browser: Browser, service: RunningService) -> None:
    words = ["stock", "levels", "of", "all", "warehouses", "and", "branches", "by", "article"]
    name = "-".join(words)
    with httpx.Client(base_url=service.url) as client:
        assert client.put(f"/admin/v2/persistent/public/default/{name}").status_code == 204
        try:
            with watched(browser, service, width=390) as watch:
                page = watch.open(f"/?q={name}")
                link = page.locator("th.name a")
                lines = link.evaluate(
                    """(link) => {
                      const texts = new Map();
                      for (const node of [...link.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE)) {
                        const range = document.createRange();
                        range.selectNode(node);
                        if (range.getClientRects().length !== 1) return node.data;
                        texts.set(Math.round(range.getBoundingClientRect().top), node.data);
                      }
                      return texts.size;
                    }"""
                )
                assert lines in (1, 2)
                wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
                assert wide <= 0
        finally:
            assert client.delete(f"/admin/v2/persistent/public/default/{name}").status_code == 204
