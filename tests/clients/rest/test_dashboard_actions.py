"""Forms of the dashboard: what each does, how it is refused, and the roles that may use it, compared with REST."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from api.http.owner_proxy import FORWARDED
from api.http.tokens import create_token
from storage.metadata.records import ServiceRecord
from tests.asgi import TestClient
from tests.clients.rest.conftest import SECRET, RestTopic
from tests.clients.rest.dashboard_pages import ORIGIN
from tests.serving import Served, second_service, serving

TOPICS = "/dashboard/topics/public/default"
REST = "/admin/v2/persistent/public/default"
ROLES = {
    "stranger": (),
    "producer": ("produce",),
    "consumer": ("consume",),
    "compacter": ("compact",),
    "admin": ("admin",),
    "root": None,
}
"""The grants of each role in public/default; None: it is a superuser."""
FORMS = {
    "create": (("PUT", f"{REST}/present", None), ("/dashboard/topics/new", "namespace=public/default&name=present")),
    "create partitioned": (
        ("PUT", f"{REST}/present/partitions", 2),
        ("/dashboard/topics/new", "namespace=public/default&name=present&partitions=2"),
    ),
    "delete": (("DELETE", f"{REST}/absent", None), (f"{TOPICS}/absent/delete", "")),
    "produce": (
        ("POST", "/topics/persistent/public/default/absent", {"messages": [{"payload": "v"}]}),
        (f"{TOPICS}/absent/produce", "value=v"),
    ),
    "reset": (
        ("POST", f"{REST}/absent/subscription/s/resetcursor", "earliest"),
        (f"{TOPICS}/absent/subscriptions/s", "to=earliest"),
    ),
    "reset to a time": (
        ("POST", f"{REST}/absent/subscription/s/resetcursor/5", None),
        (f"{TOPICS}/absent/subscriptions/s", "to=time&time=5"),
    ),
    "trim": (("POST", f"{REST}/absent/trim", None), (f"{TOPICS}/absent/trim", "do=trim")),
    "compact": (("PUT", f"{REST}/absent/compaction", None), (f"{TOPICS}/absent/compact", "")),
    "cancel": (("POST", f"{REST}/absent/compaction/abort", None), (f"{TOPICS}/absent/abort", "")),
    "pause": (("POST", f"{REST}/absent/compaction/pause", None), (f"{TOPICS}/absent/pause", "")),
    "resume": (("POST", f"{REST}/absent/compaction/resume", None), (f"{TOPICS}/absent/resume", "")),
    "policy": (
        ("PUT", f"{REST}/absent/policies/min.compaction.lag.ms", 5),
        (f"{TOPICS}/absent/policies", "name=min.compaction.lag.ms&value=5"),
    ),
}
"""A call of REST, and the form of the dashboard with the same operation, which both find nothing to do."""
PAGES = {
    f"{TOPICS}/absent": f"{REST}/absent/stats",
    f"{TOPICS}/absent/messages": f"{REST}/absent/messages",
    f"{TOPICS}/absent/policies": f"{REST}/absent/policies",
    f"{TOPICS}/absent/subscriptions/s": f"{REST}/absent/subscription/s/properties",
    "/dashboard/service": "/admin/v2/compactions/scheduler",
    "/dashboard/settings": "/admin/v2/brokers/configuration/runtime",
}
"""Pages that only show something, each with a call of REST that returns the same."""
FORM_PAGES = {"produce": "produce", "delete": "delete", "trim": "trim"}
"""The page of a form, below the topic's, and the form that it sends."""


def post(client: Any, path: str, **form: str) -> Any:
    return client.post(path, content=urlencode(form), headers=ORIGIN)


def status_line(text: str) -> str:
    """Return the sentence about the form that led to a page."""
    line = re.search(r'<p class="note done" id="done" role="status">([^<]*)</p>', text)
    return line[1] if line else ""


def test_a_topic_is_created_with_and_without_partitions(served: Served, rest_topic: RestTopic) -> None:
    assert 'list="namespaces" value="public/default"' in served.client.get("/dashboard/topics/new").text
    path = "/dashboard/topics/new"
    answer = post(served.client, path, namespace="public/default", name=f"{rest_topic.local}-new")
    assert str(answer.url).endswith(f"{TOPICS}/{rest_topic.local}-new?done=created")
    assert status_line(answer.text) == "The topic was created."
    answer = post(served.client, path, namespace="public/default", name=f"{rest_topic.local}-parts", partitions="2")
    assert "2 partitions have a log" in answer.text
    assert RestTopic(served, f"{rest_topic.local}-parts").ask("GET", "/partitions").json()["partitions"] == 2


@pytest.mark.parametrize(
    ("form", "status", "reason"),
    [
        ({"namespace": "public/default", "name": "EXISTS"}, 409, "exists already"),
        ({"namespace": "public/none", "name": "a"}, 404, "the namespace public/none does not exist"),
        ({"namespace": "nope", "name": "a"}, 400, "&#39;nope&#39; is not a namespace: give its tenant, too"),
        ({"namespace": "public/default", "name": "a/<b>"}, 412, "a/&lt;b&gt;"),
        ({"namespace": "public/default", "name": "a", "partitions": "many"}, 400, "is not a number of partitions"),
        ({"namespace": "public/default", "name": "a", "partitions": "0"}, 400, "partitions"),
        ({"namespace": "public/default", "name": "a-partition-3"}, 412, "there is no partitioned topic"),
    ],
)
def test_a_refused_creation_keeps_what_was_entered(
    served: Served, rest_topic: RestTopic, form: dict[str, str], status: int, reason: str
) -> None:
    entered = form | {"name": form["name"].replace("EXISTS", rest_topic.local)}
    answer = post(served.client, "/dashboard/topics/new", **entered)
    assert answer.status_code == status
    assert reason in answer.text
    assert 'role="alert"' in answer.text
    assert f'name="namespace" list="namespaces" value="{form["namespace"]}"' in answer.text


def test_a_topic_is_deleted_after_its_losses_were_shown(
    served: Served, rest_topic: RestTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest_topic.put(a="1", b="2")
    rest_topic.compact()
    rest_topic.ask("PUT", "/subscription/s")
    path = f"{TOPICS}/{rest_topic.local}/delete"
    text = served.client.get(path).text
    assert [part in text for part in ("2 messages", "the compacted ledger", "1 subscription,")] == [True] * 3

    def refuse(*names: Any) -> None:
        from api.broker.refusals import ClientsConnected

        raise ClientsConnected(names[0])

    monkeypatch.setattr(served.broker.clients, "check_no_clients", refuse)
    refused = post(served.client, path)
    assert refused.status_code == 412
    assert "end them, or check “Also while clients are connected”" in refused.text
    deleted = post(served.client, path, force="yes")
    assert str(deleted.url).endswith("/?done=deleted")
    assert status_line(deleted.text) == "The topic was deleted."
    assert rest_topic.ask("GET", "/stats").status_code == 404
    assert served.client.get(path).status_code == 404


def test_a_partitioned_topic_is_deleted_as_a_whole(served: Served, rest_topic: RestTopic) -> None:
    whole = RestTopic(served, f"{rest_topic.local}-whole")
    assert whole.ask("PUT", "/partitions", 3).status_code == 204
    whole.produce({"key": "a", "payload": "1"})
    path = f"{TOPICS}/{whole.local}/delete"
    text = served.client.get(path).text
    assert "its 3 partitions" in text
    assert "1 message," in text
    assert status_line(post(served.client, path).text) == "The topic was deleted."
    assert whole.ask("GET", "/partitions").status_code == 404


def test_a_message_is_produced_with_key_value_and_properties(served: Served, rest_topic: RestTopic) -> None:
    path = f"{TOPICS}/{rest_topic.local}/produce"
    answer = post(served.client, path, key="a", value="one\r\ntwo", properties="colour=blue\r\nempty=\r\n")
    assert status_line(answer.text) == "The message was stored."
    assert "It has offset 0" in answer.text
    assert f'href="{TOPICS}/{rest_topic.local}/messages/0"' in answer.text
    post(served.client, path, key="a")
    post(served.client, path, value="<i>")
    first, second, third = rest_topic.read()
    assert (first["key"], first["value"], first["properties"]) == ("a", "one\ntwo", {"colour": "blue", "empty": ""})
    assert (second["key"], second["value"]) == ("a", None)
    assert (third["key"], third["value"]) == (None, "<i>")


def test_a_message_of_a_partitioned_topic_goes_to_the_partition_of_its_key(
    served: Served, rest_topic: RestTopic
) -> None:
    whole = RestTopic(served, f"{rest_topic.local}-keyed")
    assert whole.ask("PUT", "/partitions", 3).status_code == 204
    (result,) = whole.produce({"key": "a", "payload": "1"})
    partition = result["messageId"].split(":")[2]
    answer = post(served.client, f"{TOPICS}/{whole.local}/produce", key="a", value="2")
    assert re.search(f"It has offset 1 in <a [^>]*>{whole.local}-partition-{partition}</a>", answer.text)


@pytest.mark.parametrize(
    ("form", "reason"),
    [({}, "neither a key nor a value"), ({"value": "<v>", "properties": "none"}, "&#39;none&#39; is not a property")],
)
def test_a_refused_message_is_kept_in_the_form(
    served: Served, rest_topic: RestTopic, form: dict[str, str], reason: str
) -> None:
    answer = post(served.client, f"{TOPICS}/{rest_topic.local}/produce", **form)
    assert answer.status_code == 400
    assert reason in answer.text
    assert ("&lt;v&gt;</textarea>" in answer.text) is ("value" in form)
    assert rest_topic.read() == []


@pytest.mark.parametrize("body", ["key=%FF&value=<v>", "value=<v>&properties=a%3D%FE", "key=%ED%A0%80&value=<v>"])
def test_a_message_that_is_not_utf8_is_refused(served: Served, rest_topic: RestTopic, body: str) -> None:
    answer = served.client.post(f"{TOPICS}/{rest_topic.local}/produce", content=body, headers=ORIGIN)
    assert answer.status_code == 400
    field = "properties" if "properties" in body else "key"
    assert f"The message is not stored: the text of &#39;{field}&#39; is not UTF-8" in answer.text
    assert "&lt;v&gt;</textarea>" in answer.text
    assert rest_topic.read() == []


def test_a_name_that_is_not_utf8_is_refused(served: Served) -> None:
    body = "namespace=public/default&name=%FF%FE&partitions=7"
    answer = served.client.post("/dashboard/topics/new", content=body, headers=ORIGIN)
    assert answer.status_code == 400
    assert "The topic is not created: the text of &#39;name&#39; is not UTF-8" in answer.text
    assert 'value="7"' in answer.text


@pytest.mark.parametrize("size", [65 << 10, 2 << 20])
def test_a_form_that_is_too_large_is_shown_again(served: Served, rest_topic: RestTopic, size: int) -> None:
    path = f"{TOPICS}/{rest_topic.local}/produce"
    limit = "All fields together may have 64 KiB"
    assert limit in served.client.get(path).text
    answer = post(served.client, path, key="kept", value="x" * size)
    assert answer.status_code == 413
    assert "The message is not stored: the form is larger than 64 KiB, as the browser encodes it" in answer.text
    assert limit in answer.text
    assert ('value="kept"' in answer.text) is (size < 1 << 20)
    assert ("x" * size in answer.text) is (size < 1 << 20)
    assert rest_topic.read() == []


def test_a_form_of_many_fields_is_refused(served: Served, rest_topic: RestTopic) -> None:
    answer = served.client.post(f"{TOPICS}/{rest_topic.local}/produce", content="a=b&" * 200, headers=ORIGIN)
    assert answer.status_code == 400
    assert "the form has more than 100 fields" in answer.text


def test_a_result_is_one_of_a_few_sentences(served: Served, rest_topic: RestTopic) -> None:
    path = f"{TOPICS}/{rest_topic.local}"
    assert status_line(served.client.get(f"{path}?done=<b>").text) == ""
    text = served.client.get(f"{path}/produce?done=produced&offset=<b>&partition=0").text
    assert "<b>" not in text
    assert "It has offset" not in text
    assert "<b>" not in served.client.get(f"{path}/policies?changed=<b>").text


@pytest.mark.parametrize(
    ("form", "next_offset"),
    [
        ({"to": "earliest"}, 0),
        ({"to": "latest"}, 3),
        ({"to": "message", "message": "1"}, 1),
        ({"to": "message", "message": "999:0:-1"}, 3),
        ({"to": "time", "time": "2000-01-01T00:00:00Z"}, 0),
        ({"to": "time", "time": "2999-01-01"}, 3),
    ],
)
def test_a_subscription_is_moved(served: Served, rest_topic: RestTopic, form: dict[str, str], next_offset: int) -> None:
    rest_topic.put(a="1", b="1", c="1")
    start = "earliest" if next_offset else "latest"
    assert rest_topic.ask("PUT", "/subscription/a%2Fb", start).status_code == 204
    path = f"{TOPICS}/{rest_topic.local}/subscriptions/a%2Fb"
    assert f'href="{path}"' in served.client.get(f"{TOPICS}/{rest_topic.local}").text
    answer = post(served.client, path, **form)
    end = ", the end of the topic: no message follows yet" if next_offset == 3 else ""
    assert status_line(answer.text) == f"The subscription was moved to offset {next_offset}{end}."
    row = re.search("<tbody>(.*?)</tbody>", answer.text, re.DOTALL)
    assert row
    assert re.findall(r'<td class="number"[^>]*>(\d+)</td>', row[1]) == [
        str(next_offset),
        "0",
        "3",
        str(3 - next_offset),
    ]


def test_a_subscription_is_moved_to_the_beginning_of_a_trimmed_topic(served: Served, rest_topic: RestTopic) -> None:
    rest_topic.put(a="1", b="1", c="1")
    assert rest_topic.ask("PUT", "/policies/cleanup.policy", "delete").status_code == 204
    assert rest_topic.ask("POST", "/trim?dryRun=false", {"before": 2}).status_code == 200
    assert rest_topic.ask("PUT", "/subscription/s", "latest").status_code == 204
    path = f"{TOPICS}/{rest_topic.local}/subscriptions/s"
    moved = "The subscription was moved to "
    expected = f"{moved}the beginning of the topic; its raw messages begin at offset 2."
    assert status_line(post(served.client, path, to="earliest").text) == expected
    assert status_line(post(served.client, path, to="message", message="2").text) == f"{moved}offset 2."


def test_a_refused_reset_says_why(served: Served, rest_topic: RestTopic) -> None:
    rest_topic.put(a="1")
    rest_topic.compact()
    rest_topic.ask("PUT", "/subscription/s")
    path = f"{TOPICS}/{rest_topic.local}/subscriptions"
    for form, reason in (
        ({}, "no position is chosen"),
        (
            {"to": "time", "time": "soon"},
            "&#39;soon&#39; is not a time: give milliseconds since 1970, or a time like 2026-11-21T12:00:00Z",
        ),
        ({"to": "time", "time": " "}, "the field Time is empty: give milliseconds"),
        ({"to": "message"}, "the field Message is empty: give its id as ledger:entry:partition, or its offset"),
        ({"to": "message", "message": "1,00"}, "is no place in a topic: give its id as ledger:entry:partition"),
        ({"to": "message", "message": "4,999"}, "the offset 4999 of"),
        ({"to": "message", "message": "99"}, "is after its end"),
        ({"to": "message", "message": "<b>"}, "&#39;&lt;b&gt;&#39; is no place in a topic"),
    ):
        answer = post(served.client, f"{path}/s", **form)
        assert answer.status_code == 400
        assert reason in answer.text
    horizon = served.client.get(f"{path}/__compaction").text
    assert "Only runs move it" in horizon
    assert "<form class" not in horizon
    assert post(served.client, f"{path}/__compaction", to="earliest").status_code == 412
    assert served.client.get(f"{path}/none").status_code == 404


@pytest.mark.slow
def test_a_subscription_of_a_partitioned_topic_is_moved_to_a_time(served: Served, rest_topic: RestTopic) -> None:
    whole = RestTopic(served, f"{rest_topic.local}-moved")
    assert whole.ask("PUT", "/partitions", 2).status_code == 204
    whole.produce({"key": "a", "payload": "1"}, {"key": "b", "payload": "1"})
    assert whole.ask("PUT", "/subscription/s", "latest").status_code == 204
    path = f"{TOPICS}/{whole.local}/subscriptions/s"
    assert post(served.client, path, to="earliest").status_code == 405
    answer = post(served.client, path, to="time", time="0")
    assert status_line(answer.text) == "The subscription was moved in each partition."
    assert answer.text.count("-partition-") == 4
    assert 'value="earliest"' not in answer.text


def test_policies_have_choices_and_marks_of_what_differs(served: Served, rest_topic: RestTopic) -> None:
    path = f"{TOPICS}/{rest_topic.local}/policies"
    text = post(served.client, path, name="cleanup.policy", value="compact", do="set").text
    assert "cleanup.policy is changed." in text
    row = text[text.index('<tr class="changed">') : text.index("</tr>", text.index('<tr class="changed">'))]
    assert "cleanup.policy" in row
    assert "default: nothing" in row
    assert re.findall(r"<option( selected)?>([^<]*)</option>", row) == [
        ("", "nothing"),
        ("", "delete"),
        (" selected", "compact"),
        ("", "compact,delete"),
    ]
    assert text.count('<tr class="changed">') == 1
    assert text.index("<h2>Set</h2>") < text.index("<h2>Defaults</h2>")


def test_settings_have_their_meaning_and_marks_of_what_differs(served: Served) -> None:
    text = served.client.get("/dashboard/settings").text
    assert "Port; 0: any free one, which is printed." in text
    marked = re.findall(r'<tr class="changed">\s*<th scope="row">\s*([^<\s]+)', text)
    assert "compaction.automatic" in marked
    assert "port" not in marked


def test_a_form_is_executed_by_the_service_that_has_the_topic(
    served: Served, rest_topic: RestTopic, tmp_path: Any
) -> None:
    rest_topic.put(a="1")
    rest_topic.ask("PUT", "/subscription/s")
    environment = served.broker.environment
    url = "http://localhost:18080"
    environment.metadata.services.heartbeat(ServiceRecord("first:1:aa", url, environment.log.uid, 1, 1))
    path = f"{TOPICS}/{rest_topic.local}"
    with second_service(served, tmp_path) as (second, transport):
        answer = post(second.client, f"{path}/produce", key="b", value="2")
        assert status_line(answer.text) == "The message was stored."
        assert FORWARDED in transport.requests[0].headers
        assert status_line(post(second.client, f"{path}/subscriptions/s", to="earliest").text)
        refused = post(second.client, f"{path}/subscriptions/s", to="message", message="99")
        assert "is after its end" in refused.text
        transport.away = True
        away = post(second.client, f"{path}/produce", key="c", value="3")
        assert away.status_code == 503
        assert "cannot be reached" in away.text
        assert 'class="note error"' in away.text
    assert rest_topic.values() == [("a", "1"), ("b", "2")]


def test_forms_of_a_partitioned_topic_reach_the_services_of_all_partitions(served: Served, tmp_path: Any) -> None:
    environment = served.broker.environment
    url = "http://localhost:18080"
    environment.metadata.services.heartbeat(ServiceRecord("first:1:aa", url, environment.log.uid, 1, 1))
    with second_service(served, tmp_path) as (second, transport):
        parted = RestTopic(served, "parted")
        assert parted.ask("PUT", "/partitions", 2).status_code == 204
        parted.produce({"payload": "a"}, query="/partitions/0")
        RestTopic(second, "parted").produce({"payload": "b"}, query="/partitions/1")
        partitions = [RestTopic(served, "parted-partition-0"), RestTopic(second, "parted-partition-1")]
        for partition in partitions:
            assert partition.ask("PUT", "/subscription/s", "latest").status_code == 204
        path = f"{TOPICS}/parted"
        second.client.cookies.set("compactor_token", "secret")
        moved = post(second.client, f"{path}/subscriptions/s", to="time", time="0")
        assert status_line(moved.text) == "The subscription was moved in each partition."
        for partition in partitions:
            assert partition.ask("GET", "/subscription/s/position/1").status_code == 200
        assert transport.requests[0].headers["authorization"] == "Bearer secret"
        trimmed = post(second.client, f"{path}/trim", do="try")
        assert all(f"Would go: {partition.name}" in trimmed.text for partition in partitions)
        assert trimmed.text.count("Would go: ") == 2
        assert "Trimmed: " in post(second.client, f"{path}/trim", do="trim").text
        refused = post(second.client, f"{path}/trim", before="1", do="try")
        assert (refused.status_code, refused.text.count('role="alert"')) == (405, 1)
        transport.away = True
        away = post(second.client, f"{path}/trim", do="trim")
        assert away.status_code == 503
        assert "cannot be reached" in away.text
        assert "Nothing is trimmed" in away.text


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    key = "data:;base64," + base64.b64encode(SECRET).decode()
    access: dict[str, Any] = {
        "auth_token_secret_key": key,
        "auth_superuser_roles": ("root",),
        "limits_requests_per_second": 0.0,
    }
    with serving(tmp_path_factory.mktemp("access"), **access) as guarded:
        for verb, path, body in (
            ("PUT", f"{REST}/present", None),
            *(
                ("POST", f"/admin/v2/namespaces/public/default/permissions/{role}", list(actions))
                for role, actions in ROLES.items()
                if actions
            ),
        ):
            assert ask(guarded, "root", verb, path, body).status_code in (200, 204)
        yield guarded


def ask(served: Served, role: str, verb: str, path: str, body: object) -> Any:
    """Send a request of REST for a role."""
    headers = {"Authorization": f"Bearer {create_token(SECRET, role, {})}", "content-type": "application/json"}
    return served.client.request(verb, path, content=None if body is None else json.dumps(body), headers=headers)


def browser_of(served: Served, role: str) -> TestClient:
    client = TestClient(served.client.app)
    assert post(client, "/dashboard/login", token=create_token(SECRET, role, {}), next="/").status_code == 200
    return client


@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_what_it_may_over_rest(guarded: Served, role: str) -> None:
    client = browser_of(guarded, role)
    allowed: dict[str, bool] = {}
    for name, ((verb, path, body), (form_path, form)) in FORMS.items():
        over_rest = ask(guarded, role, verb, path, body).status_code
        in_browser = client.post(form_path, content=form, headers=ORIGIN).status_code
        assert (in_browser == 403) is (over_rest == 403), f"{name}: {over_rest} over REST, {in_browser} here"
        assert over_rest in (403, 404, 409), name
        allowed[name] = over_rest != 403
    for page, path in PAGES.items():
        over_rest = ask(guarded, role, "GET", path, None).status_code
        assert (client.get(page).status_code == 403) is (over_rest == 403), page
    for page, name in FORM_PAGES.items():
        assert (client.get(f"{TOPICS}/absent/{page}").status_code == 403) is not allowed[name], page
    assert (client.get("/dashboard/topics/new").status_code == 403) is not allowed["create"]
    text = client.get(f"{TOPICS}/present").text
    assert ('href="/dashboard/topics/new"' in text) is allowed["create"]
    for page, name in FORM_PAGES.items():
        assert (f'href="{TOPICS}/present/{page}"' in text) is allowed[name], page
    for button in ("compact", "pause"):
        assert (f'action="{TOPICS}/present/{button}"' in text) is allowed[button], button


def test_a_role_that_may_administer_a_tenant_creates_topics_in_it(guarded: Served) -> None:
    tenant = {"adminRoles": ["acme-admin"], "allowedClusters": ["standalone"]}
    assert ask(guarded, "root", "PUT", "/admin/v2/tenants/acme", tenant).status_code == 204
    assert ask(guarded, "root", "PUT", "/admin/v2/namespaces/acme/ns", {}).status_code == 204
    client = browser_of(guarded, "acme-admin")
    text = client.get("/dashboard/topics/new").text
    assert re.findall('<option value="([^"]*)">', text) == ["acme/ns"]
    assert status_line(post(client, "/dashboard/topics/new", namespace="acme/ns", name="t").text)
    assert post(client, "/dashboard/topics/new", namespace="public/default", name="t").status_code == 403
