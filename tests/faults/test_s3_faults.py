"""A real S3 server behind a proxy that spoils answers on the wire: an import, a run and a read continue, or say why
not.

What the store does of itself when requests fail one by one, and what it says of each error, is in
tests/conformance/objects/test_objects_faults.py; here whole pieces of work meet a network that fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest

from storage.errors import Unavailable
from storage.objects import registry
from storage.objects.interface import ObjectStore, StoreLocation
from storage.objects.s3 import S3Requests, S3Store
from tests.clocks import ManualClock
from tests.faults.aftermath import check_recovery, check_state, look
from tests.faults.s3_proxy import Answer, CutBody, NoAnswer, S3Proxy, Silence, What, WireFault
from tests.faults.stages import SCENARIOS, the_topic
from tests.faults.worlds import PART_BYTES, Worlds
from tests.servers.versitygw import Versitygw
from tests.workbench import Workbench

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("scheme", ["s3"])]

ATTEMPTS = 3
PASSING: dict[str, What] = {
    "500": Answer(500, "InternalError"),
    "503": Answer(503, "ServiceUnavailable"),
    "slow down": Answer(503, "SlowDown"),
    "no answer": NoAnswer(),
    "silence": Silence(),
}
OPERATIONS = {
    "put": ("import", WireFault(NoAnswer(), "PUT", r"\.index")),
    "streamed put": ("import", WireFault(NoAnswer(), "PUT", r"\.parquet")),
    "upload begun": ("large import", WireFault(NoAnswer(), "POST", r"\?uploads")),
    "part uploaded": ("large import", WireFault(NoAnswer(), "PUT", r"partNumber=2")),
    "upload completed": ("large import", WireFault(NoAnswer(), "POST", r"\?uploadId")),
    "index read": ("second compaction", WireFault(NoAnswer(), "GET", r"\.index")),
    "part written": ("second compaction", WireFault(NoAnswer(), "PUT", r"/part-")),
    "manifest put": ("second compaction", WireFault(NoAnswer(), "PUT", r"/compacted/")),
    "row sets deleted": ("second compaction", WireFault(NoAnswer(), "DELETE", r"rowsets")),
}


@dataclass(frozen=True)
class Bench:
    """One world: through the proxy, and without it."""

    spoiled: Workbench
    sound: Workbench


@pytest.fixture(scope="module")
def proxy(versitygw: Versitygw) -> Iterator[S3Proxy]:
    with S3Proxy(versitygw.endpoint) as proxy:
        yield proxy


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients do not wait before they ask again; for an answer they wait some seconds (`silence_seconds`)."""
    monkeypatch.setattr("botocore.endpoint.time", SimpleNamespace(sleep=lambda seconds: None))


@contextmanager
def bench_of(worlds: Worlds, proxy: S3Proxy, stage: str, clock: ManualClock) -> Iterator[Bench]:
    world = worlds.copy(stage, clock)
    through_proxy = replace(world.store, s3_endpoint=proxy.endpoint)
    stores: list[S3Store] = []

    def open_one(location: StoreLocation) -> ObjectStore:
        if not stores:
            requests = S3Requests(PART_BYTES + 1, PART_BYTES, ATTEMPTS, silence_seconds=4)
            stores.append(_StaysOpen(location, requests, ManualClock()))
        return stores[0]

    with world.opened(clock) as sound, pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "OPENERS", {"s3": open_one})
        yield Bench(replace(sound, store=registry.open_store(through_proxy)), sound)
        S3Store.close(stores[0])


class _StaysOpen(S3Store):
    """Shared by all tasks of a test: a client takes long to make."""

    def close(self) -> None:
        return


def _once(operation: str, failure: str) -> object:
    """Return a case: CI tries a refusal in one operation, as the client asks again alike; what may have taken effect in
    each."""
    marks = pytest.mark.soak if failure == "slow down" and operation != "upload completed" else ()
    return pytest.param(operation, failure, marks=marks)


@pytest.mark.parametrize(
    ("operation", "failure"),
    [
        *(_once(operation, failure) for operation in OPERATIONS for failure in ("slow down", "no answer")),
        *(("manifest put", failure) for failure in ("500", "503", "silence")),
    ],
)
def test_what_passes_is_not_noticed(
    worlds: Worlds, proxy: S3Proxy, began_ms: int, operation: str, failure: str
) -> None:
    """One spoiled request, then a server that is well: the work succeeds, whether the request took effect or not."""
    name, where = OPERATIONS[operation]
    scenario = SCENARIOS[name]
    with bench_of(worlds, proxy, scenario.stage, ManualClock(began_ms)) as bench:
        before = look(bench.sound)
        proxy.spoil(replace(where, what=PASSING[failure]))
        scenario.run(bench.spoiled)
        assert proxy.met == 1
        proxy.spoil()
        check_state(bench.sound, before, scenario.appended, scenario.publishes)


def _lasting() -> Iterator[object]:
    """Yield the cases; CI tries each operation with one failure: without an answer where it may have taken effect."""
    in_ci = {"put": "no answer", "part uploaded": "slow down", "index read": "slow down", "part written": "no answer"}
    for failure in ("slow down", "no answer"):
        for name, chosen in in_ci.items():
            marks = () if failure == chosen else pytest.mark.soak
            yield pytest.param(name, failure, id=f"{name}-{failure}", marks=marks)


@pytest.mark.parametrize(("name", "failure"), [*_lasting()])
def test_what_lasts_is_an_error_and_nothing_happened(
    worlds: Worlds, proxy: S3Proxy, began_ms: int, name: str, failure: str
) -> None:
    """W3; the next try, with a server that is well, succeeds. A PUT that took effect all the same is our own object."""
    what = PASSING[failure]
    scenario_name, where = OPERATIONS[name]
    scenario = SCENARIOS[scenario_name]
    with bench_of(worlds, proxy, scenario.stage, ManualClock(began_ms)) as bench:
        before = look(bench.sound)
        proxy.spoil(replace(where, what=what, times=1000), WireFault(Answer(503, "SlowDown"), "HEAD", times=1000))
        with pytest.raises(Unavailable):
            scenario.run(bench.spoiled)
        assert proxy.met >= ATTEMPTS
        proxy.spoil()
        check_state(bench.sound, before)
        scenario.run(bench.spoiled)
        check_state(bench.sound, before, scenario.appended, scenario.publishes)
        check_recovery(bench.sound)


@pytest.mark.parametrize("what", [CutBody(), *PASSING.values()], ids=["cut body", *PASSING])
def test_a_read_goes_on_after_each_kind_of_failure(worlds: Worlds, proxy: S3Proxy, began_ms: int, what: What) -> None:
    with bench_of(worlds, proxy, "grown", ManualClock(began_ms)) as bench:
        expected = list(the_topic(bench.sound).messages(read_compacted=True))
        for path in (r"/compacted/", r"/part-", r"/ledgers/.*parquet"):
            proxy.spoil(WireFault(what, "GET", path))
            assert list(the_topic(bench.spoiled).messages(read_compacted=True)) == expected
            assert proxy.met == 1


def test_a_body_that_is_always_cut_is_an_error_and_not_a_shorter_key_set(
    worlds: Worlds, proxy: S3Proxy, began_ms: int
) -> None:
    with bench_of(worlds, proxy, "grown", ManualClock(began_ms)) as bench:
        proxy.spoil(WireFault(CutBody(), "GET", r"/part-", times=1000))
        with pytest.raises(Unavailable, match="breaks off"):
            list(the_topic(bench.spoiled).messages(read_compacted=True))
        assert proxy.met == ATTEMPTS
