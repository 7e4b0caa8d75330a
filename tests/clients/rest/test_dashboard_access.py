"""Logging in to the dashboard, and what each role sees of it and may do there."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from api.http.tokens import create_token
from tests.asgi import TestClient
from tests.clients.rest.conftest import SECRET, RestTopic
from tests.clients.rest.dashboard_pages import ORIGIN, logged_in, page, page_of
from tests.serving import Served


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
    text = page(logged_in(guarded, "newcomer"), "/")
    assert "The role newcomer has no permission for a topic: ask an administrator." in text
    client = logged_in(guarded, "reader")
    text = page(client, "/")
    assert "seen" in text
    assert "unseen" not in text
    page(client, "/dashboard/topics/public/default/seen")
    for below, is_linked in (("", False), ("/messages", True)):
        text = page(client, f"/dashboard/topics/public/hidden/unseen{below}", 403)
        assert "the permission" in text
        assert ("Back to the topic" in text) is is_linked, "a page does not lead to itself"
    assert client.post("/dashboard/topics/public/default/seen/compact", headers=ORIGIN).status_code == 403
    assert client.get("/dashboard/service").status_code == 403


def test_the_sentence_after_a_button_shows_no_role_more_than_its_page(guarded: Served) -> None:
    topic = RestTopic(guarded, "paused")
    root = {"Authorization": f"Bearer {create_token(SECRET, 'root', {})}"}
    assert guarded.client.put(topic.path, headers=root).status_code == 204
    for _ in range(2):
        assert guarded.client.post(f"{topic.path}/compaction/pause", headers=root).status_code == 200
    for role, action in (("sender", "produce"), ("runner", "compact")):
        answer = guarded.client.post(f"{topic.path}/permissions/{role}", json=[action], headers=root)
        assert answer.status_code == 204
    for role, is_shown in (("sender", False), ("runner", True)):
        client = logged_in(guarded, role)
        assert ("it is paused 2 times" in page(client, f"{page_of(topic)}?done=paused")) is is_shown, role
        assert ("A compaction was requested." in page(client, f"{page_of(topic)}?done=requested")) is not is_shown, role


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
    assert re.findall(names, text) == ["granted", "whole", "whole-partition-0", "whole-partition-1"]
    assert "3 of 3 topics" in text
    assert re.findall(names, page(logged_in(guarded, "stranger"), "/")) == []


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
