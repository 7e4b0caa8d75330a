"""Topics, partitioned topics, compaction, thresholds and retention of topics, beyond the calls that were recorded."""

from __future__ import annotations

import itertools
import json
import zlib
from dataclasses import replace
from typing import Any

import pytest

from api.broker.compaction import combined_status
from compactor.scheduling.status import CompactionStatus, StatusAndError
from storage.errors import ErrorText, TopicNotFound
from storage.metadata.records import ServiceRecord
from storage.metadata.stores import PartitionStore
from storage.model import TopicName
from tests.clients.rest.conftest import RestTopic, assert_refused
from tests.entries import single
from tests.serving import Served, append_to
from tests.workbench import content

_NUMBERS = itertools.count()
BASE = "/admin/v2/persistent/public/default"
VND = "application/vnd.partitioned-topic-metadata+json"


@pytest.fixture
def whole(served: Served) -> RestTopic:
    """A topic of three partitions."""
    created = RestTopic(served, f"p{next(_NUMBERS)}")
    assert created.ask("PUT", "/partitions", 3).status_code == 204
    return created


def _partition(whole: RestTopic, number: int) -> RestTopic:
    return RestTopic(whole.served, f"{whole.local}-partition-{number}")


def _reason(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["reason"]


def test_properties_are_merged_and_removed(rest_topic: RestTopic, whole: RestTopic) -> None:
    for item in (rest_topic, whole):
        assert item.ask("PUT", "/properties", {"a": "1", "b": "2"}).status_code == 204
        assert item.ask("PUT", "/properties", {"b": "3"}).status_code == 204
        assert item.ask("GET", "/properties").json() == {"a": "1", "b": "3"}
        assert item.ask("DELETE", "/properties?key=a").status_code == 204
        assert item.ask("DELETE", "/properties?key=a").status_code == 204
        assert item.ask("GET", "/properties").json() == {"b": "3"}
        assert item.ask("DELETE", "/properties").status_code == 400
        assert item.ask("PUT", "/properties", {"b": 3}).status_code == 400
    missing = RestTopic(rest_topic.served, "nosuch")
    assert missing.ask("GET", "/properties").status_code == 404
    assert missing.ask("PUT", "/properties", {"a": "1"}).status_code == 404
    assert missing.ask("DELETE", "/properties?key=a").status_code == 404


@pytest.mark.parametrize("name", ["__change_events", "__transaction_buffer_snapshot", "a-s__transaction_pending_ack"])
def test_a_replicating_broker_creates_no_system_topic(served: Served, name: str) -> None:
    for below, body in (("", None), ("/partitions", 2)):
        assert_refused(RestTopic(served, name).ask("PUT", below, body), 412, "system topic")
    assert RestTopic(served, name).ask("GET", "/stats").status_code == 404


def test_a_partitions_name_is_for_partitions(rest_topic: RestTopic, whole: RestTopic) -> None:
    assert_refused(_partition(rest_topic, 0).ask("PUT"), 412, "there isn't a partitioned topic")
    assert _partition(whole, 3).ask("PUT").status_code == 412
    assert _reason(_partition(whole, 2).ask("PUT")) == (409, "This topic already exists")
    assert _partition(whole, 2).ask("PUT", "/partitions", 2).status_code == 412
    assert _reason(whole.ask("PUT")) == (409, "This topic already exists")
    assert _reason(rest_topic.ask("PUT", "/partitions", 2)) == (409, "This topic already exists")


def test_a_partition_that_was_deleted_comes_back(whole: RestTopic) -> None:
    deleted = _partition(whole, 1)
    for again in (lambda: deleted.ask("PUT"), lambda: whole.ask("POST", "/createMissedPartitions")):
        assert deleted.ask("DELETE").status_code == 204
        assert _reason(deleted.ask("GET", "/stats")) == (404, "Topic partitions were not yet created")
        assert len(whole.ask("GET", "/partitioned-stats").json()["partitions"]) == 2
        assert again().status_code == 204
        assert deleted.ask("GET", "/stats").status_code == 200
    for number in range(3):
        assert _partition(whole, number).ask("DELETE").status_code == 204
    assert whole.ask("GET", "/compaction").status_code == 404
    assert whole.ask("GET", "/compactionThreshold").status_code == 404


def test_a_partition_that_is_opened_again_during_a_forced_delete_is_closed(
    whole: RestTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs, topic = whole.served.broker.logs, whole.served.topic(_partition(whole, 1).name)
    delete = PartitionStore.delete

    def open_again(store: PartitionStore, name: TopicName, force: bool) -> object:
        append_to(logs, topic, [single(b"k", b"1")])
        return delete(store, name, force)

    monkeypatch.setattr(PartitionStore, "delete", open_again)
    assert whole.ask("DELETE", "/partitions?force=true").status_code == 204
    assert not logs.is_open(topic.record)


def test_more_partitions_have_the_policies_of_the_others(whole: RestTopic) -> None:
    assert whole.ask("POST", "/compactionThreshold", 99).status_code == 204
    policies = whole.served.broker.environment.metadata.policies
    record = whole.served.topic(_partition(whole, 0).name).record
    policies.change([f"topic:{record.uid}"], {"cleanup.policy": "compact,delete"})
    assert whole.ask("POST", "/partitions", 5).status_code == 204
    assert whole.ask("GET", "/partitions").json() == {"partitions": 5, "deleted": False}
    new = whole.served.topic(_partition(whole, 4).name).record
    assert policies.effective(new).compaction_threshold_bytes == 99
    assert policies.effective(new).cleanup_policy == {"compact", "delete"}
    status, reason = _reason(whole.ask("POST", "/partitions", 4))
    assert (status, reason) == (409, "Desired partitions 4 can't be less than the current partitions 5.")
    assert whole.ask("POST", "/partitions", 0).status_code == 406
    assert whole.ask("POST", "/partitions", 1_000_000).status_code == 406


@pytest.mark.parametrize("again", ["createMissedPartitions", "partitions", "by itself"])
def test_a_partition_that_comes_back_has_the_policies_of_the_others(whole: RestTopic, again: str) -> None:
    assert whole.ask("POST", "/compactionThreshold", 99).status_code == 204
    deleted = _partition(whole, 0)  # the one that policies are shown of
    assert deleted.ask("DELETE").status_code == 204
    answer = {
        "createMissedPartitions": lambda: whole.ask("POST", "/createMissedPartitions"),
        "partitions": lambda: whole.ask("POST", "/partitions", 4),
        "by itself": lambda: deleted.ask("PUT"),
    }[again]()
    assert answer.status_code == 204
    assert whole.ask("GET", "/compactionThreshold").json() == 99
    policies = whole.served.broker.environment.metadata.policies
    assert policies.effective(whole.served.topic(deleted.name).record).compaction_threshold_bytes == 99


def test_only_a_partitioned_topic_grows(rest_topic: RestTopic) -> None:
    status, reason = _reason(rest_topic.ask("POST", "/partitions", 4))
    assert (status, reason) == (409, f"Topic {rest_topic.name} is not the partitioned topic.")
    assert RestTopic(rest_topic.served, "nosuch").ask("POST", "/partitions", 4).status_code == 404
    assert_refused(rest_topic.ask("DELETE", "/partitions"), 409, "is a non-partitioned topic")


def test_partitions_with_properties_in_pulsars_content_type(served: Served) -> None:
    path = f"{BASE}/vnd/partitions"
    body = '{"partitions": 2, "properties": {"k": "v"}}'
    assert served.client.put(path, content=body, headers={"content-type": VND}).status_code == 204
    assert served.ask("GET", path).json() == {"partitions": 2, "deleted": False, "properties": {"k": "v"}}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("2.0", 400),
        ("true", 400),
        ('"x"', 400),
        ('"-1"', 406),
        ('"1 000"', 400),
        ("[]", 400),
        ("", 400),
        ('{"partitions": "two"}', 400),
        ('{"partitions": true}', 400),
        ('{"partitions": "0", "more": 1}', 406),
        ("-1", 406),
        ("99999999999", 400),
        ('{"partitions": 0}', 406),
    ],
)
def test_numbers_of_partitions_that_are_refused(served: Served, body: str, status: int) -> None:
    path = f"{BASE}/refused/partitions"
    assert served.ask("PUT", path, body).status_code == status
    assert served.ask("GET", path).status_code == 404


def test_a_topic_that_producers_may_create_has_no_partitions(
    served: Served, rest_topic: RestTopic, whole: RestTopic
) -> None:
    """S2: a client with an http service URL asks so before it creates the topic."""
    path = f"{BASE}/never-created/partitions"
    url = f"{path}?checkAllowAutoCreation=true"
    assert served.ask("GET", url).json() == {"partitions": 0, "deleted": False}
    assert served.ask("GET", path).status_code == 404, "the question creates nothing"
    assert rest_topic.ask("GET", "/partitions?checkAllowAutoCreation=true").json()["partitions"] == 0
    assert whole.ask("GET", "/partitions?checkAllowAutoCreation=true").json()["partitions"] == 3
    missing = "/admin/v2/persistent/public/no-such-namespace/t/partitions?checkAllowAutoCreation=true"
    assert_refused(served.ask("GET", missing), 404, "Namespace not found")
    for name in ("never-created-partition-0", f"{whole.local}-partition-7"):
        assert served.ask("GET", f"{BASE}/{name}/partitions?checkAllowAutoCreation=true").status_code == 404
    broker = served.broker
    broker.settings = replace(broker.settings, broker_auto_topic_creation=False)
    try:
        assert served.ask("GET", url).status_code == 404
    finally:
        broker.settings = replace(broker.settings, broker_auto_topic_creation=True)


def test_a_topic_that_an_import_writes_is_deleted_only_by_force(rest_topic: RestTopic) -> None:
    metadata = rest_topic.served.broker.environment.metadata
    record = rest_topic.served.topic(rest_topic.name).record
    lease = metadata.leases.acquire(record.id, "elsewhere:7:import", 60_000)
    assert_refused(rest_topic.ask("DELETE"), 412, "1 producers")
    assert rest_topic.ask("DELETE", "?force=true").status_code == 204
    with pytest.raises(TopicNotFound):
        metadata.leases.renew(lease, 60_000)


def test_a_partitioned_topic_that_an_import_writes_is_deleted_only_by_force(whole: RestTopic) -> None:
    metadata = whole.served.broker.environment.metadata
    record = whole.served.topic(_partition(whole, 1).name).record
    metadata.leases.acquire(record.id, "elsewhere:7:import", 60_000)
    assert whole.ask("DELETE", "/partitions").status_code == 412
    assert _partition(whole, 0).ask("GET", "/stats").status_code == 200
    assert whole.ask("DELETE", "/partitions?force=true").status_code == 204
    assert _partition(whole, 0).ask("GET", "/stats").status_code == 404


def test_a_topic_that_another_service_writes_is_deleted_there(rest_topic: RestTopic) -> None:
    metadata = rest_topic.served.broker.environment.metadata
    record = rest_topic.served.topic(rest_topic.name).record
    metadata.services.heartbeat(ServiceRecord("there:9:aa", "http://there:8080", None, 0, 0))
    try:
        metadata.leases.acquire(record.id, "there:9:bb", 60_000)
        lookup = rest_topic.served.ask("GET", f"/lookup/v2/topic/persistent/public/default/{rest_topic.local}")
        assert lookup.json() == {
            "brokerUrl": "pulsar://there:6650",
            "httpUrl": "http://there:8080",
            "nativeUrl": "pulsar://there:6650",
            "brokerUrlSsl": "",
        }
        deleted = rest_topic.ask("DELETE")
        assert (deleted.status_code, "http://there:8080" in deleted.json()["reason"]) == (503, True)
    finally:
        metadata.services.leave("there:9:aa")


def test_a_topic_that_this_service_writes_begins_anew_after_it_was_deleted(rest_topic: RestTopic) -> None:
    rest_topic.put(a="1", b="2")
    assert rest_topic.ask("DELETE").status_code == 204
    assert rest_topic.ask("PUT").status_code == 204
    assert rest_topic.ask("GET", "/stats").json()["msgInCounter"] == 0
    rest_topic.put(c="3")
    assert rest_topic.values() == [("c", "3")]
    assert rest_topic.ask("GET", "/stats").json()["msgInCounter"] == 1


@pytest.mark.parametrize(
    ("advertised", "http", "binary"),
    [
        ("localhost", "http://localhost:8080", "pulsar://localhost:6650"),
        ("lb.example:81", "http://lb.example:81", "pulsar://lb.example:6650"),
        ("https://lb.example/", "https://lb.example", "pulsar://lb.example:6650"),
    ],
)
def test_lookup_gives_whole_urls_of_what_is_advertised(
    served: Served, monkeypatch: pytest.MonkeyPatch, advertised: str, http: str, binary: str
) -> None:
    monkeypatch.setattr(served.broker, "settings", replace(served.broker.settings, advertised_url=advertised))
    lookup = served.ask("GET", "/lookup/v2/topic/persistent/public/default/any").json()
    assert (lookup["httpUrl"], lookup["brokerUrl"], lookup["nativeUrl"]) == (http, binary, binary)


def test_lookup_names_no_port_without_tls_if_only_tls_is_served(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(
        served.broker.settings,
        advertised_url="https://lb.example",
        broker_service_port_tls=16651,
        broker_service_tls_only=True,
    )
    monkeypatch.setattr(served.broker, "settings", replace(settings, broker_service_port=None))
    lookup = served.ask("GET", "/lookup/v2/topic/persistent/public/default/any").json()
    assert {lookup["brokerUrl"], lookup["nativeUrl"], lookup["brokerUrlSsl"]} == {"pulsar+ssl://lb.example:16651"}


def test_lookup_of_a_namespace_that_does_not_exist(served: Served) -> None:
    path = "/lookup/v2/topic/persistent/public/nosuch/t"
    assert _reason(served.ask("GET", path)) == (404, "Namespace not found")
    assert served.ask("GET", f"{path}/bundle").status_code == 404


def test_each_topic_lies_in_one_bundle_of_its_namespace_in_all_calls(served: Served) -> None:
    """The hash is Pulsar's: CRC-32 of the full name (NamespaceBundleFactory)."""
    namespace = "/admin/v2/namespaces/public/bundled"
    assert served.ask("PUT", namespace).status_code == 204
    topics = {f"persistent://public/bundled/t{number}" for number in range(12)}
    for name in topics:
        assert served.ask("PUT", f"/admin/v2/{name.replace('://', '/')}").status_code == 204
    bounds = served.ask("GET", f"{namespace}/bundles").json()["boundaries"]
    assert bounds == served.ask("GET", namespace).json()["bundles"]["boundaries"]
    read: list[str] = []
    for first, end in itertools.pairwise(bounds):
        some = served.ask("GET", f"/admin/v2/persistent/public/bundled?bundle={first}_{end}").json()
        for name in some:
            bundle = served.ask("GET", f"/lookup/v2/topic/{name.replace('://', '/')}/bundle").text
            assert bundle == f"{first}_{end}"
            assert int(first, 16) <= zlib.crc32(name.encode()) <= int(end, 16)
        read += some
        assert served.ask("PUT", f"{namespace}/{first}_{end}/unload").status_code == 204
    assert sorted(read) == sorted(topics)
    assert len({zlib.crc32(name.encode()) >> 30 for name in topics}) > 1
    unknown = served.ask("GET", "/admin/v2/persistent/public/bundled?bundle=0x00000000_0xffffffff")
    assert unknown.status_code == 412
    assert served.ask("PUT", f"{namespace}/0x00000000_0xffffffff/unload").status_code == 412


def test_retention_of_a_topic(rest_topic: RestTopic, whole: RestTopic) -> None:
    body = {"retentionTimeInMinutes": 9, "retentionSizeInMB": 4}
    for item in (rest_topic, whole):
        assert item.ask("GET", "/retention").text == ""
        for policy, minutes in (("nothing", -1), ("compact", -1), ("delete", 168 * 60)):
            assert item.ask("PUT", "/policies/cleanup.policy", policy).status_code == 204
            assert item.ask("GET", "/retention?applied=true").json() == {
                "retentionTimeInMinutes": minutes,
                "retentionSizeInMB": -1,
            }
        assert item.ask("DELETE", "/policies/cleanup.policy").status_code == 204
        assert item.ask("POST", "/retention", body).status_code == 204
        assert item.ask("GET", "/retention").json() == item.ask("GET", "/retention?applied=true").json() == body
    assert _partition(whole, 0).ask("GET", "/retention").status_code == 412
    record = whole.served.topic(_partition(whole, 2).name).record
    assert whole.served.broker.environment.metadata.policies.effective(record).retention_minutes == 9
    for item in (rest_topic, whole):
        assert item.ask("DELETE", "/retention").status_code == 204
        assert item.ask("GET", "/retention").text == ""
    assert RestTopic(rest_topic.served, "nosuch").ask("POST", "/retention", body).status_code == 404


def test_a_partitioned_topic_is_compacted_as_a_whole_or_not_at_all(whole: RestTopic) -> None:
    served = whole.served
    for number in range(3):
        served.topic(_partition(whole, number).name).bulk_append().append([content((b"a", b"1"), (b"a", b"2"))])
    assert whole.ask("GET", "/compaction").json() == {"status": "NOT_RUN", "lastError": ""}
    assert _partition(whole, 1).ask("PUT", "/compaction").status_code == 204
    assert _reason(whole.ask("PUT", "/compaction")) == (409, "Compaction already in progress")
    assert _partition(whole, 0).ask("GET", "/compaction").json()["status"] == "NOT_RUN"
    assert whole.ask("GET", "/compaction").json()["status"] == "RUNNING"
    served.compact_requested()
    assert whole.ask("GET", "/compaction").json()["status"] == "NOT_RUN"
    assert whole.ask("PUT", "/compaction").status_code == 204
    served.compact_requested()
    assert whole.ask("GET", "/compaction").json() == {"status": "SUCCESS", "lastError": ""}
    stats = whole.ask("GET", "/partitioned-stats").json()
    assert stats["compaction"]["lastCompactionRemovedEventCount"] == 3


def test_a_partitioned_topic_with_a_paused_partition_is_not_compacted(whole: RestTopic) -> None:
    assert _partition(whole, 1).ask("POST", "/compaction/pause").status_code == 200
    status, reason = _reason(whole.ask("PUT", "/compaction"))
    assert (status, f"{whole.name}-partition-1" in reason, "paused" in reason) == (409, True, True)
    assert [item["state"] for item in whole.ask("GET", "/compaction/control").json()] == ["None", "Paused(1)", "None"]


def test_a_topic_that_is_paused_is_not_compacted(rest_topic: RestTopic) -> None:
    metadata = rest_topic.served.broker.environment.metadata
    metadata.compaction_control.pause([rest_topic.served.topic(rest_topic.name).record.id])
    assert_refused(rest_topic.ask("PUT", "/compaction"), 409, "paused")


@pytest.mark.parametrize(
    ("each", "status", "error"),
    [
        (["SUCCESS", "SUCCESS"], "SUCCESS", ""),
        (["SUCCESS", "NOT_RUN"], "NOT_RUN", ""),
        (["ERROR", "NOT_RUN"], "ERROR", "persistent://public/default/0: away"),
        (["RUNNING", "ERROR"], "RUNNING", ""),
        (["ERROR", "ERROR"], "ERROR", "persistent://public/default/0: away; persistent://public/default/1: away"),
        (["ERROR"], "ERROR", "away"),
    ],
)
def test_the_status_of_several_topics(each: list[str], status: str, error: str) -> None:
    statuses = {
        TopicName.parse(str(number)): StatusAndError(
            CompactionStatus(item), ErrorText("away" if item == "ERROR" else "")
        )
        for number, item in enumerate(each)
    }
    whole = combined_status(statuses)
    assert (whole.status, str(whole.last_error)) == (status, error)


def test_unknown_parameters_of_pulsars_clients_are_passed_over(rest_topic: RestTopic) -> None:
    query = "?authoritative=true&isGlobal=true&excludeConsumers=true&metadata=true&bundle=x"
    for below in ("/stats", "/internalStats", "/compaction", "/partitions"):
        assert rest_topic.ask("GET", below + query).status_code == 200
    assert rest_topic.ask("POST", "/compactionThreshold" + query, 5).status_code == 204
    assert json.loads(rest_topic.ask("GET", "/compactionThreshold" + query).text) == 5


def test_a_wrong_verb_is_told_the_right_ones(rest_topic: RestTopic) -> None:
    answer = rest_topic.ask("POST", "/compaction")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, PUT")
    refused = rest_topic.served.ask("DELETE", "/admin/v2/tenants/public?force=true")
    assert (refused.status_code, refused.headers["allow"]) == (405, "DELETE, GET, POST, PUT")


def test_what_no_answer_can_hold_is_not_kept(rest_topic: RestTopic) -> None:
    """Halves of surrogate pairs: JSON tells of them, UTF-8 does not; kept, they would break the topic's stats."""
    bad = ({"\ud800": "x"}, {"x": "\udfff"})
    place = {"ledgerId": -1, "entryId": -1}
    assert rest_topic.ask("PUT", "/subscription/s").status_code == 204
    for properties in bad:
        for path in ("/properties", "/subscription/s/properties"):
            answer = rest_topic.ask("PUT", path, properties)
            assert (answer.status_code, "Unicode" in answer.json()["reason"]) == (400, True), path
        place_with = {**place, "properties": properties}
        assert rest_topic.ask("PUT", "/subscription/other", place_with).status_code == 400
        created = RestTopic(rest_topic.served, f"{rest_topic.local}-whole")
        body = json.dumps({"partitions": 1, "properties": properties})
        assert created.served.client.put(f"{created.path}/partitions", content=body).status_code == 400
    for path in ("/properties", "/subscription/s/properties"):
        assert rest_topic.ask("PUT", path, {"ü": "\U0001f600"}).status_code == 204
        assert rest_topic.ask("GET", path).json() == {"ü": "\U0001f600"}
    assert rest_topic.ask("GET", "/stats").status_code == 200


def test_a_json_body_that_is_not_said_to_be_one(rest_topic: RestTopic) -> None:
    client, path = rest_topic.served.client, f"{BASE}/new-{rest_topic.local}"
    for headers in ({}, {"content-type": "application/x-www-form-urlencoded"}):
        assert_refused(client.put(path, content='{"a": "b"}', headers=headers), 415, "Content-Type: application/json")
    assert client.put(path, content="[]", headers={"content-type": "application/json"}).status_code == 400
    assert client.put(path, content='{"a": "b"}', headers={"content-type": "application/json"}).status_code == 204


@pytest.mark.parametrize(
    ("below", "says"),
    [
        ("/messages?readcompacted=true", "did you mean readCompacted?"),
        ("/messages?READCOMPACTED=true", "did you mean readCompacted?"),
        ("/messages?limti=1&start=0", "did you mean limit?"),
        ("/compactions?xyz=1", "it has limit, state"),
        ("/policies?aplied=false", "did you mean applied?"),
    ],
)
def test_a_misspelt_parameter_beyond_pulsar_is_told(rest_topic: RestTopic, below: str, says: str) -> None:
    assert_refused(rest_topic.ask("GET", below), 400, says)
    assert rest_topic.ask("GET", below.partition("?")[0] + "?authoritative=false").status_code == 200


def test_reasons_name_no_commands_of_the_services_machine(served: Served) -> None:
    answer = served.ask("GET", "/admin/v2/compactions/99999").json()["reason"]
    assert "`compactor" not in answer
    assert "GET " in answer


@pytest.mark.parametrize("path", ["/admin/v2/persistent/public/default/%ff", "/topic/public/default/%ff", "/%ff"])
def test_a_url_that_is_not_utf8_is_refused_everywhere(served: Served, path: str) -> None:
    for verb in ("GET", "PUT", "DELETE"):
        answer = served.ask(verb, path)
        assert (answer.status_code, "is not UTF-8" in answer.text) == (400, True)
