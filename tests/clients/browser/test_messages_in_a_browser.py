"""The pages of messages in a real browser: search, pages, and one message."""

from __future__ import annotations

import json

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.clients.browser.conftest import WAIT_MS, watched
from tests.servers.compactor_service import RunningService

pytestmark = pytest.mark.slow
TOPIC = "/dashboard/topics/public/default/browsed"


@pytest.fixture(scope="module")
def browsed(service: RunningService) -> RunningService:
    """The service with a topic of its own: 60 messages of 20 keys, the last one a deletion."""
    lines = [{"key": f"user-{number % 20}", "value": json.dumps({"number": number})} for number in range(60)]
    lines.append({"key": "user-3", "value": None})
    with httpx.Client(base_url=service.url, timeout=WAIT_MS / 1000) as client:
        assert client.put("/admin/v2/persistent/public/default/browsed").status_code == 204
        produced = client.post(
            "/topics/persistent/public/default/browsed",
            content="".join(json.dumps(line) + "\n" for line in lines),
            headers={"content-type": "application/x-ndjson"},
        )
        assert produced.status_code == 200, produced.text
    return service


@pytest.mark.parametrize("width", [1280, 390])
def test_messages_are_searched_paged_and_opened(browser: Browser, browsed: RunningService, width: int) -> None:
    with watched(browser, browsed, width) as watch:
        page = watch.open(f"{TOPIC}/messages")
        rows = page.locator("tbody tr")
        expect(rows.first).to_contain_text("deletes the key user-3")
        expect(rows.filter(has_text="superseded by offset 60, a deletion").first).to_contain_text('{"number": 43}')
        page.get_by_role("link", name="Older").first.click()
        expect(page.get_by_text("Offsets 35 to 11").first).to_be_visible()
        page.get_by_role("link", name="Oldest first").click()
        expect(rows.first.get_by_role("rowheader")).to_have_text("11")
        page.get_by_label("Key", exact=True).fill("user-7")
        page.keyboard.press("Enter")
        expect(rows).to_have_count(2)  # 47, and 27 on its page
        rows.last.get_by_role("rowheader").get_by_role("link").click()
        expect(page.locator("pre.json")).to_have_text('{\n  "number": 47\n}')
        page.locator("summary", has_text="Hexadecimal").focus()
        page.keyboard.press("Enter")
        expect(page.locator("pre.hex")).to_contain_text("0000  7b 22 6e")


@pytest.mark.parametrize("width", [1280, 390])
def test_hexadecimal_is_shown_to_its_end(browser: Browser, browsed: RunningService, width: int) -> None:
    with httpx.Client(base_url=browsed.url, timeout=WAIT_MS / 1000) as client:
        assert client.put(f"/admin/v2/persistent/public/default/hexadecimal-{width}").status_code == 204
        produced = client.post(
            f"/topics/persistent/public/default/hexadecimal-{width}",
            content=json.dumps({"key": "k", "value": "x" * 2000}) + "\n",
            headers={"content-type": "application/x-ndjson"},
        )
        assert produced.status_code == 200, produced.text
    with watched(browser, browsed, width) as watch:
        page = watch.open(f"/dashboard/topics/public/default/hexadecimal-{width}/messages/0")
        page.locator("summary", has_text="Hexadecimal").click()
        expect(page.locator("pre.hex")).to_contain_text("03f8  78")
        hidden = "element => [element.scrollWidth - element.clientWidth, element.scrollHeight - element.clientHeight]"
        assert page.locator("pre.hex").evaluate(hidden) == [0, 0]


def test_a_value_is_copied_where_the_browser_allows_it(browser: Browser, browsed: RunningService) -> None:
    with watched(browser, browsed) as watch:
        watch.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page = watch.open(f"{TOPIC}/messages/47")
        page.locator("#view-json").get_by_role("button", name="Copy").click()
        expect(page.locator("#view-json").get_by_role("button")).to_have_text("Copied")
        assert page.evaluate("navigator.clipboard.readText()") == '{\n  "number": 47\n}'
    with watched(browser, browsed, scripts=False) as watch:
        page = watch.open(f"{TOPIC}/messages/47")
        expect(page.locator("pre.json")).to_be_visible()
        expect(page.get_by_role("button", name="Copy")).to_have_count(0)
