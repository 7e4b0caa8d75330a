"""A service with a few topics, and a browser that notes what a page must not do."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from api.http.tokens import create_token
from tests.servers.chromium import OPTIONS, chromium
from tests.servers.compactor_service import RunningService, compactor_service

_HERE = Path(__file__).parent
SECRET = bytes(range(32))
TOPIC = "/dashboard/topics/public/default/users"
WAIT_MS = 120_000
"""A bound for a test that fails: every wait ends with what it waits for, on a slow machine later."""


@dataclass
class Watched:
    """A page, and what went wrong in it."""

    page: Page
    url: str
    problems: list[str] = field(default_factory=list)

    def open(self, path: str) -> Page:
        """Go to a page of the service."""
        self.page.goto(self.url + path)
        return self.page


_STARTED = ExitStack()
"""The end of the browser that is shared, and of Playwright."""
_BROWSERS: list[Browser] = []


@pytest.fixture
def browser() -> Browser:
    """Return the browser that the tests of this folder share while they follow each other."""
    if not _BROWSERS:
        expect.set_options(timeout=WAIT_MS)
        playwright = _STARTED.enter_context(sync_playwright())
        launched = playwright.chromium.launch(executable_path=chromium(), args=OPTIONS)
        _STARTED.callback(launched.close)
        _BROWSERS.append(launched)
    return _BROWSERS[0]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """End the browser before other tests: Playwright runs an event loop in this thread, where none could run its own.

    This hook is that of the tests of this folder.
    """
    if nextitem is None or nextitem.path.parent != _HERE:
        _BROWSERS.clear()
        _STARTED.close()


@contextmanager
def watched(
    browser: Browser, service: RunningService, width: int = 1280, dark: bool = False, scripts: bool = True
) -> Iterator[Watched]:
    """A page of its own, without cookies; at its end there was no error, and no request to another host."""
    context = browser.new_context(
        viewport={"width": width, "height": 800}, color_scheme="dark" if dark else "light", java_script_enabled=scripts
    )
    context.set_default_timeout(WAIT_MS)
    watch = Watched(context.new_page(), service.url.rstrip("/"))
    watch.page.on("console", lambda message: message.type == "error" and watch.problems.append(message.text))
    watch.page.on("pageerror", lambda error: watch.problems.append(str(error)))
    watch.page.on("request", lambda request: request.url.startswith(watch.url) or watch.problems.append(request.url))
    try:
        yield watch
        assert watch.problems == []
    finally:
        context.close()


def check_accessible(page: Page, name: str) -> None:
    """Assert that axe finds nothing serious in a page, and that the page does not scroll sideways."""
    serious = [
        f"{name}: {item['id']}: {[node['html'] for node in item['nodes']][:3]}"
        for item in Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
        if item["impact"] in ("serious", "critical")
    ]
    assert not serious
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, f"{name} scrolls sideways by {wide} pixels"


def filled(url: str, headers: dict[str, str] | None = None) -> None:
    """A few topics: one compacted, one partitioned, and others."""
    with httpx.Client(base_url=url, headers=headers, timeout=WAIT_MS / 1000) as client:
        for name in ("orders", "users", *(f"other-{number:02}" for number in range(60))):
            assert client.put(f"/admin/v2/persistent/public/default/{name}").status_code == 204
        lines = "".join(f'{{"key": "user-{n % 50}", "value": "<b>{n}</b>"}}\n' for n in range(500))
        produced = client.post(
            "/topics/persistent/public/default/users",
            content=lines,
            headers={"content-type": "application/x-ndjson"},
        )
        assert produced.status_code == 200, produced.text


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with compactor_service(tmp_path_factory.mktemp("service")) as running:
        filled(running.url)
        yield running


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """One with access control: `root` may everything, `reader` consume in public/default."""
    folder: Path = tmp_path_factory.mktemp("guarded")
    settings = {
        "COMPACTOR_AUTH_TOKEN_SECRET_KEY": "data:;base64," + base64.b64encode(SECRET).decode(),
        "COMPACTOR_AUTH_SUPERUSER_ROLES": "root",
    }
    with compactor_service(folder, **settings) as running:
        headers = {"Authorization": f"Bearer {token_of('root')}"}
        filled(running.url, headers)
        granted = httpx.post(
            f"{running.url}/admin/v2/namespaces/public/default/permissions/reader", json=["consume"], headers=headers
        )
        assert granted.status_code == 204
        yield running


def token_of(role: str) -> str:
    return create_token(SECRET, role, {})


def await_compaction(url: str, topic: str) -> None:
    """Return when the compaction of a topic that was requested, as `public/default/users`, has ended."""
    with httpx.Client(base_url=f"{url.rstrip('/')}/admin/v2", timeout=WAIT_MS / 1000) as client:
        while client.get(f"/persistent/{topic}/compaction/control").json()[0]["requested_at"] is not None:
            pass
        (run, *_) = client.get(f"/persistent/{topic}/compactions").json()
        assert client.get(f"/compactions/{run['run']}/events").is_success
