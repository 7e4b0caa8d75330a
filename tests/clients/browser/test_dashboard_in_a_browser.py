"""The dashboard in a real browser: what people do with it, by mouse and keyboard, and what axe-core says of it."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, Route, expect

from tests.clients.browser.conftest import TOPIC, await_compaction, check_accessible, token_of, watched
from tests.servers.compactor_service import RunningService

pytestmark = pytest.mark.slow

PAGES = {
    "topics": "/",
    "topic": TOPIC,
    "messages": f"{TOPIC}/messages",
    "message": f"{TOPIC}/messages/7",
    "policies": f"{TOPIC}/policies",
    "trim": f"{TOPIC}/trim",
    "service": "/dashboard/service",
    "settings": "/dashboard/settings",
    "nothing": "/dashboard/topics/public/default/none",
}


def test_a_compaction_is_started_watched_and_looked_into(browser: Browser, service: RunningService) -> None:
    with watched(browser, service) as watch:
        page = watch.open(TOPIC)
        loads: list[str] = []
        page.on("load", lambda _: loads.append(page.url))
        page.get_by_text("Compact now", exact=True).click()
        page.get_by_role("button", name="Yes, compact now").click()
        await_compaction(service.url, "public/default/users")
        expect(page.locator(".state.success")).to_be_visible()
        expect(page.locator("#done")).to_have_count(0)  # "A compaction was requested."
        assert len(loads) <= 1  # the form's own: the rest came by the script
        expect(page.locator("path.part")).to_have_attribute("d", re.compile("^M"))

        page.get_by_label("Key", exact=True).fill("user-7")
        page.keyboard.press("Enter")
        expect(page.locator("pre")).to_have_text("<b>457</b>")

        page.get_by_role("link", name="Messages").click()
        expect(page.locator("tbody tr")).to_have_count(25)


def test_without_scripts_a_page_loads_itself_again(browser: Browser, service: RunningService) -> None:
    with watched(browser, service, scripts=False) as watch:
        page = watch.open(TOPIC.replace("users", "orders"))
        page.get_by_text("Compact now", exact=True).click()
        page.get_by_role("button", name="Yes, compact now").click()
        await_compaction(service.url, "public/default/orders")
        expect(page.locator(".state.success")).to_be_visible()


def test_the_numbers_of_the_picture_are_reached_by_keyboard_and_pointer(
    browser: Browser, service: RunningService
) -> None:
    with watched(browser, service) as watch:
        page = watch.open(TOPIC)
        numbers, slider = page.locator("#slice-numbers"), page.get_by_role("slider", name="Part of the offsets")
        slider.focus()
        expect(numbers).to_have_text(re.compile(r"^Offsets? 0\b"))
        page.keyboard.press("End")
        last = page.locator(".picture .slice").last
        expect(numbers).to_have_text(str(last.locator("title").text_content()))
        expect(slider).to_have_attribute("aria-valuetext", str(last.locator("title").text_content()))
        page.locator(".picture .slice").first.hover()
        expect(numbers).to_have_text(re.compile(r"^Offsets? 0\b"))


def test_a_policy_is_set_and_removed(browser: Browser, service: RunningService) -> None:
    with watched(browser, service) as watch:
        page = watch.open(f"{TOPIC}/policies")
        row = page.locator("tr", has_text="min.compaction.lag.ms")
        row.get_by_role("textbox").fill("60000")
        row.get_by_role("button", name="Set").click()
        expect(page.get_by_role("status")).to_have_text("min.compaction.lag.ms is changed.")
        row.get_by_role("button", name="Remove").click()
        expect(row.get_by_role("button", name="Remove")).to_have_count(0)


def test_logging_in_and_being_refused(browser: Browser, guarded: RunningService) -> None:
    with watched(browser, guarded) as watch:
        page = watch.open("/")
        page.get_by_label("Token").fill(token_of("reader"))
        page.keyboard.press("Enter")
        page.get_by_label("Name contains").fill("users")
        page.keyboard.press("Enter")
        page.get_by_role("link", name="users", exact=True).click()
        expect(page.get_by_text("Compact now")).to_have_count(0)
        expect(page.get_by_role("link", name="Trim")).to_have_count(0)
        page.goto(f"{watch.url}{TOPIC}/trim")
        expect(page.locator(".note.error")).to_contain_text("does not have the permission admin")
        watch.problems.clear()  # the browser notes the 403 of the page that was asked for
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_label("Token")).to_be_visible()


def test_a_refresh_keeps_the_chosen_part_of_the_picture(browser: Browser, service: RunningService) -> None:
    requests: list[Route] = []
    with watched(browser, service) as watch:
        page = watch.page

        def show_as_busy_then_wait(route: Route) -> None:
            requests.append(route)
            if len(requests) == 1:
                answer = route.fetch()
                route.fulfill(response=answer, body=answer.text().replace('data-busy="false"', 'data-busy="true"'))

        page.route(f"**{TOPIC}", show_as_busy_then_wait, times=2)
        watch.open(TOPIC)
        slider, numbers = page.get_by_role("slider", name="Part of the offsets"), page.locator("#slice-numbers")
        slider.focus()
        for _ in range(5):
            page.keyboard.press("ArrowRight")
        chosen = str(numbers.text_content())
        assert not re.match(r"Offsets? 0\b", chosen)
        while len(requests) < 2:
            page.wait_for_timeout(50)
        requests[1].continue_()
        expect(page.locator("#live")).to_have_attribute("data-busy", "false")
        expect(numbers).to_have_text(chosen)
        expect(slider).to_be_focused()


def test_a_page_that_refreshes_after_a_log_out_leads_to_the_login(browser: Browser, guarded: RunningService) -> None:
    with watched(browser, guarded) as watch:
        page = watch.open("/dashboard/login")

        def show_as_busy_then_log_out(route: Route) -> None:
            answer = route.fetch()
            page.context.clear_cookies()
            route.fulfill(response=answer, body=answer.text().replace('data-busy="false"', 'data-busy="true"'))

        page.get_by_label("Token").fill(token_of("root"))
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Topics")).to_be_visible()
        page.route(f"**{TOPIC}", show_as_busy_then_log_out, times=1)
        watch.open(TOPIC)
        expect(page.get_by_label("Token")).to_be_visible()


@pytest.mark.parametrize(
    ("width", "dark"),
    [
        (1280, False),
        (390, True),
        pytest.param(1280, True, marks=pytest.mark.soak),
        pytest.param(390, False, marks=pytest.mark.soak),
    ],
)
def test_no_page_has_a_serious_accessibility_finding(
    width: int, dark: bool, browser: Browser, service: RunningService
) -> None:
    """The width decides where things stand, the scheme their colours: CI tries each width and each scheme once."""
    with watched(browser, service, width, dark) as watch:
        for name, path in PAGES.items():
            check_accessible(watch.open(path), name)
        watch.problems.clear()  # the 404 of the last page
