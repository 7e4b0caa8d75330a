"""Forms of the dashboard in a real browser, by mouse and keyboard: a topic's whole life, and their look."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.clients.browser.conftest import TOPIC, check_accessible, token_of, watched
from tests.servers.compactor_service import RunningService

pytestmark = pytest.mark.slow


def test_a_topic_is_created_used_and_deleted_without_scripts(browser: Browser, service: RunningService) -> None:
    with watched(browser, service, scripts=False) as watch:
        page = watch.open("/")
        status = page.locator(".note.done")
        page.get_by_role("link", name="New topic").click()
        page.get_by_label("Name", exact=True).fill("short-lived")
        page.keyboard.press("Enter")
        expect(status).to_have_text("The topic was created.")

        page.get_by_role("link", name="Produce").click()
        page.get_by_label("Key").fill("a")
        page.get_by_label("Value").fill("<b>first</b>")
        page.get_by_role("button", name="Send the message").click()
        expect(status).to_have_text("The message was stored.")
        page.get_by_role("link", name="Show it").click()
        expect(page.get_by_text("<b>first</b>").first).to_be_visible()

        page.goto(f"{watch.url}{TOPIC.replace('users', 'short-lived')}/delete")
        expect(page.get_by_text("1 message,")).to_be_visible()
        page.get_by_role("button", name="Delete this topic").click()
        expect(status).to_have_text("The topic was deleted.")


def test_a_form_that_is_refused_is_shown_again_at_each_width(browser: Browser, service: RunningService) -> None:
    for width in (1280, 390):
        with watched(browser, service, width) as watch:
            page = watch.open("/dashboard/topics/new")
            page.get_by_label("Name", exact=True).fill("users")
            page.get_by_role("button", name="Create the topic").click()
            expect(page.get_by_role("alert")).to_contain_text("exists already")
            expect(page.get_by_label("Name", exact=True)).to_have_value("users")
            watch.problems.clear()  # the browser notes the 409
            for path in ("/dashboard/topics/new", f"{TOPIC}/produce", f"{TOPIC}/delete"):
                check_accessible(watch.open(path), f"{path} at {width}")


def test_a_role_sees_the_forms_that_it_may_use(browser: Browser, guarded: RunningService) -> None:
    with watched(browser, guarded) as watch:
        page = watch.open("/")
        page.get_by_label("Token").fill(token_of("reader"))
        page.keyboard.press("Enter")
        expect(page.get_by_role("button", name="Log out")).to_be_visible()
        page.goto(watch.url + TOPIC)
        tabs = page.get_by_role("navigation", name="Of this topic").get_by_role("link")
        expect(tabs).to_have_text(["Topic", "Messages", "Policies"])
        expect(page.get_by_role("link", name="New topic")).to_have_count(0)
