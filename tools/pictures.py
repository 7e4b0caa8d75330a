"""`make pictures`: the images of the dashboard in docs/images, from seeded data.

A service serves 20 topics of three teams: compacted often, once and never, behind their threshold, due, paused,
failing, running, of 100 ledgers, with long names, with producers and consumers connected. Their history of three days
is written under a clock that the script moves, also during runs, so that the same pictures come out each time. A second
service has 10,000 topics, whose rows are copied in SQL: only the first page is taken there. Chromium takes each page at
1280 and 390 pixels, light and dark.

    python tools/pictures.py [--folder DIRECTORY] [--all]

`--folder`: where the images go, instead of docs/images. `--all`: every page in all four forms, not only those of the
docs. Needs Chromium (Debian: apt-get install chromium). The data is in `PLACE`, which a page may show, if that can be
created, else in a temporary folder.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

import httpx
import pulsar  # type: ignore[import-untyped]
import pyarrow as pa
from playwright.sync_api import Browser, ViewportSize, sync_playwright
from sqlalchemy import Table, insert, select

from compactor.run.plan import Sizing
from compactor.run.run_policies import run_policies_from_stored
from compactor.scheduling.due import retry_delay_ms
from compactor.scheduling.worker import WorkerSettings
from storage.errors import ErrorText
from storage.log.bulk_append import INPUT_SCHEMA
from storage.metadata import tables
from storage.metadata.policy_store import topic_scope
from storage.topic import Topic
from tests.servers.chromium import OPTIONS, chromium
from tests.servers.compactor_service import RunningService, compactor_service
from tests.workbench import HookedEngine, Workbench, compacted_ledger, hashing_alike

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
DAY_MS = 86_400_000
WIDTHS = {"": 1280, "-phone": 390}
PLACE = Path("/srv/compactor")
"""The folder of the data: no picture shows a path of the machine that made it."""
RETRY_FIRST_MS = 20 * 60_000
"""The back-off after a first failure: no retry begins while the pictures are taken."""
READ_RATE = "20KiB"
"""Bytes of the store that runs of the service may read in a second: one run is still active when its page is taken."""


@dataclass(frozen=True)
class Changelog:
    """The history of a topic: `rounds` of `messages` each over `keys`, compacted after each round but `uncompacted`."""

    name: str
    keys: int
    messages: int
    rounds: int = 1
    uncompacted: int = 0
    ledgers: int = 4
    tombstones: float = 0.05
    policies: Mapping[str, object] = field(default_factory=dict)
    grows: bool = False
    """True: keys are added all the time, and few are changed often, so that the newest messages are mostly live."""


CUSTOMERS, BROKEN, RUNNING, DUE = (
    "shop/crm/customers",
    "shop/orders/refunds",
    "telemetry/fleet/positions",
    "shop/orders/orders",
)
CUSTOMER_POLICIES = {
    "compaction.threshold.bytes": 2 << 20,
    "delete.retention.ms": DAY_MS,
    "retention.ms": 30 * DAY_MS,
    "schema.compatibility-strategy": "BACKWARD",
}


def threshold(size: int) -> Mapping[str, object]:
    """Return the policy that makes a topic due."""
    return {"compaction.threshold.bytes": size}


HISTORIES = (
    Changelog(CUSTOMERS, 5_000, 4_000, rounds=6, uncompacted=1, policies=CUSTOMER_POLICIES, grows=True),
    Changelog("shop/crm/addresses", 3_000, 3_000, rounds=3, policies=threshold(1 << 20)),
    Changelog("shop/crm/consents", 800, 400, rounds=2, tombstones=0.3),
    Changelog(DUE, 9_000, 5_000, rounds=4, uncompacted=2, policies=threshold(512 << 10)),
    Changelog("shop/orders/order-lines", 20_000, 20_000, uncompacted=1, policies=threshold(8 << 20)),
    Changelog(BROKEN, 600, 1_500, rounds=3, uncompacted=1),
    Changelog("shop/orders/shipments", 2_000, 2_500, rounds=3),
    Changelog("shop/catalogue/products", 1_200, 6_000, rounds=5),
    Changelog("shop/catalogue/prices", 1_200, 12_000, rounds=3),
    Changelog("shop/catalogue/stock-levels-of-all-warehouses-and-branches-by-article-and-size", 900, 9_000, rounds=2),
    Changelog("telemetry/fleet/vehicles", 300, 4_000, rounds=8),
    Changelog(RUNNING, 400, 30_000, uncompacted=1, ledgers=12),
    Changelog("telemetry/fleet/firmware", 300, 350),
    Changelog(
        "telemetry/plants/sensor-states", 500, 500, rounds=100, uncompacted=80, ledgers=1, policies=threshold(16 << 20)
    ),
    Changelog("telemetry/plants/alarms", 150, 900, rounds=2, tombstones=0.6),
    Changelog("telemetry/plants/setpoints", 200, 100, uncompacted=1),
    Changelog("billing/ledger/accounts", 2_500, 2_600, rounds=2),
    Changelog("billing/ledger/balances", 2_500, 8_000, rounds=4),
    Changelog("billing/ledger/limits", 2_500, 0),
    Changelog("billing/invoices/open-invoices", 700, 2_000, rounds=3, uncompacted=1, tombstones=0.4),
)
FIRST_NAMES = ("Ada", "Bilal", "Chiara", "Dmitri", "Elif", "Femi", "Greta", "Hiro", "Ines", "Jonas", "Kofi", "Lena")
LAST_NAMES = ("Ahmadi", "Berg", "Costa", "Dubois", "Eriksen", "Fischer", "Garcia", "Haddad", "Ivanov", "Jansen", "Kaya")
CITIES = ("Aarhus", "Bilbao", "Cork", "Dresden", "Espoo", "Florence", "Ghent", "Porto")
_TEXT = ("id", "name", "email", "city", "tier", "updated")
_FIELDS = [{"name": name, "type": "string"} for name in _TEXT]
CUSTOMER_FIELDS = (_FIELDS[:3], [*_FIELDS[:3], *({**item, "default": ""} for item in _FIELDS[3:])])
"""The fields of two versions of a schema."""
SMALL_PARTS = Sizing(3, part_bytes=6_000, small_part_bytes=1, small_range_records=1)
"""Many parts, so that the picture has the live rows and the garbage where they are."""
PAGES = {
    "topics": "/",
    "topics-failing": "/?state=failing",
    "topic": f"/dashboard/topics/{CUSTOMERS}",
    "topic-100-ledgers": "/dashboard/topics/telemetry/plants/sensor-states",
    "topic-failing": f"/dashboard/topics/{BROKEN}",
    "topic-running": f"/dashboard/topics/{RUNNING}",
    "messages": f"/dashboard/topics/{CUSTOMERS}/messages?order=oldest&offset=19978",
    "message": f"/dashboard/topics/{CUSTOMERS}/messages/24299",
    "policies": f"/dashboard/topics/{CUSTOMERS}/policies",
    "trim": f"/dashboard/topics/{CUSTOMERS}/trim",
    "service": "/dashboard/service",
    "settings": "/dashboard/settings",
}
IN_DOCS = ("topics", "topics-10000", "topic", "topic-dark", "topic-phone", "topic-failing", "messages", "policies")


def main() -> int:
    """Make the images; return the exit code."""
    parser = argparse.ArgumentParser(prog="python tools/pictures.py")
    parser.add_argument("--folder", type=Path, default=IMAGES)
    parser.add_argument("--all", action="store_true", help="every page in all four forms")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with data_folder() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=OPTIONS)
        for served, pages in ((served_teams, PAGES), (served_many, {"topics-10000": "/?sort=state"})):
            with served(folder) as service:
                for (name, path), (suffix, width), dark in product(pages.items(), WIDTHS.items(), (False, True)):
                    image = f"{name}{suffix}{'-dark' if dark else ''}"
                    if options.all or image in IN_DOCS:
                        url, file = service.url.rstrip("/") + path, options.folder / f"{image}.png"
                        take(browser, url, file, width, dark, is_whole=name in PAGES)
        browser.close()
    return 0


@contextmanager
def data_folder() -> Iterator[Path]:
    """Create `PLACE`, or a temporary folder if that exists or may not be created, and remove it at the end."""
    try:
        PLACE.mkdir(parents=True)
    except OSError:
        with tempfile.TemporaryDirectory(prefix="compactor-pictures-") as folder:
            yield Path(folder)
        return
    try:
        yield PLACE
    finally:
        shutil.rmtree(PLACE)


def take(browser: Browser, url: str, file: Path, width: int, dark: bool, *, is_whole: bool) -> None:
    """Save the page at `url` as a picture, the whole or its top."""
    viewport: ViewportSize = {"width": width, "height": 900 if is_whole else 1_500}
    context = browser.new_context(viewport=viewport, color_scheme="dark" if dark else "light")
    page = context.new_page()
    page.goto(url)
    page.screenshot(path=file, full_page=is_whole)
    context.close()
    print(file.name, file=sys.stderr)


@contextmanager
def served_teams(folder: Path) -> Iterator[RunningService]:
    """Serve the seeded topics: one fails, one runs, one is paused, one is due, and clients are connected."""
    (folder / "data").mkdir()
    with hashing_alike():
        seed(folder / "data")
    settings = {
        "COMPACTOR_COMPACTION_MAX_READ_RATE": READ_RATE,
        "COMPACTOR_COMPACTION_AUTOMATIC": "false",
        "COMPACTOR_COMPACTION_RETRY_FIRST": f"{RETRY_FIRST_MS}ms",
    }
    with (
        compactor_service(folder, **settings) as service,
        connected(service, CUSTOMERS),
        httpx.Client(base_url=service.url, timeout=60) as client,
    ):
        call(client, "PUT", f"/admin/v2/persistent/{BROKEN}/compaction")
        call(client, "POST", "/admin/v2/persistent/billing/invoices/open-invoices/compaction/pause")
        until(lambda: status(client, BROKEN) == "ERROR")
        for fields in CUSTOMER_FIELDS:
            definition = json.dumps({"type": "record", "name": "Customer", "fields": fields})
            body = {"type": "JSON", "schema": definition, "properties": {}}
            call(client, "POST", f"/admin/v2/schemas/{CUSTOMERS}/schema", body)
        call(client, "PUT", f"/admin/v2/persistent/{RUNNING}/compaction")
        until(lambda: status(client, RUNNING) == "RUNNING")
        yield service
        call(client, "POST", f"/admin/v2/persistent/{RUNNING}/compaction/abort")
        until(lambda: status(client, RUNNING) != "RUNNING")


@contextmanager
def served_many(folder: Path) -> Iterator[RunningService]:
    """Serve 10,000 topics in 40 namespaces; some fail, are paused or due."""
    place = folder / "many"
    (place / "data").mkdir(parents=True)
    with hashing_alike():
        copy_topics(place / "data")
    with compactor_service(place, COMPACTOR_COMPACTION_AUTOMATIC="false") as service:
        yield service


def copy_topics(data: Path) -> None:
    """Write a topic of two ledgers, of which one is compacted, and copy its rows with other sizes."""
    bench = Workbench.embedded(data, sizing=None)
    bench.clock.advance(int(time.time() * 1000) - bench.clock.now_ms() - 3 * DAY_MS)
    draw = random.Random(20261126)
    first = bench.topic("persistent://region-00/stream-0/changes-of-0000")
    write(bench, first, Changelog("x/y/z", 300, 1_000, rounds=2, uncompacted=1, ledgers=1), draw)
    original = first.record.id
    with bench.metadata.database.write() as connection:
        templates = {
            table: [dict(row) for row in connection.execute(select(table).where(key == original)).mappings()]
            for table, key in (
                (tables.topics, tables.topics.c.id),
                (tables.ledgers, tables.ledgers.c.topic_id),
                (tables.compacted_ledgers, tables.compacted_ledgers.c.topic_id),
            )
        }
        rows: dict[Table, list[dict[str, object]]] = {table: [] for table in templates}
        ledger_ids, with_backlog = itertools.count(1_000_000), []
        for number in range(1, 10_000):
            scale, garbage = draw.lognormvariate(2, 1.5), draw.uniform(0.3, 4)
            is_compacted, topic_id = draw.random() < 0.9, original + number
            (topic,) = templates[tables.topics]
            name = f"persistent://region-{number % 8:02}/stream-{number // 8 % 5}/changes-of-{number:04}"
            rows[tables.topics].append({**topic, "id": topic_id, "uid": f"{number:032x}", "name": name})
            ledgers = templates[tables.ledgers][: 1 if draw.random() < 0.6 else 2]
            if is_compacted and len(ledgers) == 2:
                with_backlog.append(number)
            for table, items in (
                (tables.ledgers, ledgers),
                (tables.compacted_ledgers, templates[tables.compacted_ledgers] if is_compacted else []),
            ):
                for row in items:
                    factor = scale if table is tables.ledgers else scale * garbage
                    numbers = {key: int(row[key] * factor) for key in ("messages", "logical_bytes")}
                    created = row["created_at"] + draw.randrange(DAY_MS)
                    rows[table].append(
                        {**row, **numbers, "topic_id": topic_id, "ledger_id": next(ledger_ids), "created_at": created}
                    )
        for table, items in rows.items():
            for batch_start in range(0, len(items), 1_000):
                connection.execute(insert(table), items[batch_start : batch_start + 1_000])
    control = bench.metadata.compaction_control
    bench.clock.advance(int(time.time() * 1000) - bench.clock.now_ms())
    affected = draw.sample(with_backlog, 8)
    control.pause([original + number for number in affected[:3]])
    for number in affected[3:]:
        error = (
            "the object store does not answer" if number == affected[3] else "an executor has no space left on its disk"
        )
        delay_ms = retry_delay_ms(1, RETRY_FIRST_MS, WorkerSettings.retry_max_ms, draw.random())
        control.record_failure(original + number, ErrorText(error), bench.clock.now_ms() + delay_ms)
    for size, remainder in ((512 << 10, 7), (64 << 20, 9)):
        scopes = [topic_scope(topic) for topic in bench.metadata.topics.all() if topic.id % 400 == remainder]
        bench.metadata.policies.change(scopes, {"compaction.threshold.bytes": size})
    bench.metadata.close()


def seed(data: Path) -> None:
    """Write the histories of all topics, which end now."""
    draw = random.Random(20261124)
    engine = HookedEngine(before=lambda _: bench.clock.advance(draw.randrange(300, 2_500)))
    bench = Workbench.embedded(data, engine, sizing=None)
    now = int(time.time() * 1000)
    for history in HISTORIES:
        bench.clock.advance(now - 3 * DAY_MS - bench.clock.now_ms())
        topic = bench.topic(f"persistent://{history.name}")
        bench.set_policies(topic, **history.policies)
        write(bench if not history.grows else bench.with_sizing(SMALL_PARTS), topic, history, draw)
    bench.clock.advance(now - bench.clock.now_ms())
    lose_the_manifest(bench, bench.topic(f"persistent://{BROKEN}"))
    bench.metadata.close()


def write(bench: Workbench, topic: Topic, history: Changelog, draw: random.Random) -> None:
    """Append the rounds of a topic, each some hours after the one before, and compact them."""
    step = 3 * DAY_MS // (history.rounds + 1)
    keys: list[int] = []
    for number in range(history.rounds if history.messages else 0):
        bench.clock.advance(step + draw.randrange(-step // 4, step // 4))
        per_ledger = max(1, history.messages // history.ledgers)
        for _ in range(history.ledgers):
            table = batch(history, keys, per_ledger, bench.clock.now_ms(), draw)
            topic.bulk_append(ledger_bytes=1 << 20, workers=2).append([table])
        if number < history.rounds - history.uncompacted:
            compact(bench, topic)


def compact(bench: Workbench, topic: Topic) -> None:
    """Run a compaction under the policies that are stored for the topic, as a service does."""
    bench.compactor().compact(topic.name, lambda record: run_policies_from_stored(bench.metadata, record))


def batch(history: Changelog, keys: list[int], messages: int, now: int, draw: random.Random) -> pa.Table:
    """Return messages with JSON values, on keys of which few are frequent. `keys`: those of a topic that grows."""
    rows = []
    for number in range(messages):
        key = key_of(history, grown(keys, draw) if history.grows else int(draw.paretovariate(0.6)) % history.keys)
        time_ms = now - (messages - number) * 100
        is_tombstone = draw.random() < history.tombstones
        payload = None if is_tombstone else json.dumps(value_of(history.name, key, time_ms, draw)).encode()
        rows.append({"key": key.encode(), "payload": payload, "publish_time": time_ms})
    return pa.Table.from_pylist(rows, INPUT_SCHEMA)


def key_of(history: Changelog, number: int) -> str:
    """Return a key that begins with the singular of the topic's name."""
    return f"{history.name.rpartition('/')[2].removesuffix('s')[:12]}-{number:05}"


def grown(keys: list[int], draw: random.Random) -> int:
    """Return the number of a key: often of 40 busy ones, else a new one or any of those before."""
    chance = draw.random()
    if chance < 0.5 or (chance < 0.7 and not keys):
        return draw.randrange(40)
    if chance < 0.7:
        return draw.choice(keys)
    keys.append(40 + len(keys))
    return keys[-1]


def value_of(name: str, key: str, time_ms: int, draw: random.Random) -> dict[str, object]:
    """Return the value of a message: a customer, or a record with a state and an amount."""
    updated = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    if name == CUSTOMERS:
        first, last = draw.choice(FIRST_NAMES), draw.choice(LAST_NAMES)
        return {
            "id": key,
            "name": f"{first} {last}",
            "email": f"{first}.{last}@example.com".lower(),
            "city": draw.choice(CITIES),
            "tier": draw.choice(("basic", "silver", "gold")),
            "updated": updated,
        }
    state = draw.choice(("new", "active", "dormant"))
    return {"id": key, "state": state, "amount": draw.randrange(100_000) / 100, "updated": updated}


def lose_the_manifest(bench: Workbench, topic: Topic) -> None:
    """Delete the manifest of a topic's compacted ledger, as a lost bucket would."""
    bench.store.delete(compacted_ledger(topic).manifest.name)


@contextmanager
def connected(service: RunningService, topic: str) -> Iterator[None]:
    """Connect a producer, a shared subscription with unacknowledged messages, and a compacted reader."""
    with ExitStack() as stack:
        client = pulsar.Client(service.broker_service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        stack.callback(client.close)
        name = f"persistent://{topic}"
        earliest = pulsar.InitialPosition.Earliest
        for consumer in range(2):
            subscribed = client.subscribe(
                name,
                "crm-sync",
                pulsar.ConsumerType.Shared,
                initial_position=earliest,
                consumer_name=f"sync-{consumer}",
            )
            for _ in range(400):
                subscribed.acknowledge(subscribed.receive(5_000))
            subscribed.receive(5_000)
        reader = client.create_reader(name, pulsar.MessageId.earliest, is_read_compacted=True, reader_name="cache")
        for _ in range(900):
            reader.read_next(5_000)
        producer = client.create_producer(name, producer_name="crm")
        draw = random.Random(20261127)
        for number in range(300):
            key = f"customer-{number % 60:05}"
            value = value_of(CUSTOMERS, key, int(time.time() * 1000), draw)
            producer.send(json.dumps(value).encode(), partition_key=key)
        yield


def call(client: httpx.Client, verb: str, path: str, body: object = None) -> httpx.Response:
    """Return the answer of a call that must succeed."""
    response = client.request(verb, path, json=body)
    response.raise_for_status()
    return response


def status(client: httpx.Client, topic: str) -> str:
    """Return the status of a topic's newest compaction."""
    return str(call(client, "GET", f"/admin/v2/persistent/{topic}/compaction").json()["status"])


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until a condition holds. Raises TimeoutError."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the service did not come into the state that the pictures show")
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
