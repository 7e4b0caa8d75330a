"""`make pictures`: the images of the dashboard in docs/images, from seeded data.

A service serves 20 topics of three teams: compacted often, once and never, behind their threshold, paused, failing,
running, of 100 ledgers, with long names, with producers and consumers connected. Their history of three days is written
under a clock that the script moves, so that the same pictures come out each time. Chromium takes each page at 1280 and
390 pixels, light and dark.

    python tools/pictures.py [--folder DIRECTORY] [--all]

`--folder`: where the images go, instead of docs/images. `--all`: every page in all four forms, not only those of the
docs. Needs Chromium (Debian: apt-get install chromium).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pulsar
import pyarrow as pa
from playwright.sync_api import Browser, sync_playwright

from storage.log.bulk_append import INPUT_SCHEMA
from storage.topic import Topic
from tests.servers.chromium import chromium
from tests.servers.compactor_service import RunningService, compactor_service
from tests.workbench import Workbench, compacted_ledger, hashing_alike

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
WIDTHS = {"": 1280, "-phone": 390}
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


CUSTOMERS, BROKEN, RUNNING = "shop/crm/customers", "shop/orders/refunds", "telemetry/fleet/positions"
HISTORIES = (
    Changelog(CUSTOMERS, 5_000, 4_000, rounds=6, uncompacted=1),
    Changelog("shop/crm/addresses", 3_000, 3_000, rounds=3),
    Changelog("shop/crm/consents", 800, 400, rounds=2, tombstones=0.3),
    Changelog("shop/orders/orders", 9_000, 5_000, rounds=4, uncompacted=2),
    Changelog("shop/orders/order-lines", 20_000, 20_000, uncompacted=1),
    Changelog(BROKEN, 600, 1_500, rounds=3, uncompacted=1),
    Changelog("shop/orders/shipments", 2_000, 2_500, rounds=3),
    Changelog("shop/catalogue/products", 1_200, 6_000, rounds=5),
    Changelog("shop/catalogue/prices", 1_200, 12_000, rounds=3),
    Changelog("shop/catalogue/stock-levels-of-all-warehouses-and-branches-by-article-and-size", 900, 9_000, rounds=2),
    Changelog("telemetry/fleet/vehicles", 300, 4_000, rounds=8),
    Changelog(RUNNING, 400, 30_000, uncompacted=1, ledgers=12),
    Changelog("telemetry/fleet/firmware", 300, 350),
    Changelog("telemetry/plants/sensor-states", 500, 500, rounds=100, uncompacted=80, ledgers=1),
    Changelog("telemetry/plants/alarms", 150, 900, rounds=2, tombstones=0.6),
    Changelog("telemetry/plants/setpoints", 200, 100, uncompacted=1),
    Changelog("billing/ledger/accounts", 2_500, 2_600, rounds=2),
    Changelog("billing/ledger/balances", 2_500, 8_000, rounds=4),
    Changelog("billing/ledger/limits", 2_500, 0),
    Changelog("billing/invoices/open-invoices", 700, 2_000, rounds=3, uncompacted=1, tombstones=0.4),
)
PAGES = {
    "topics": "/",
    "topics-failing": "/?state=failing",
    "topic": f"/dashboard/topics/{CUSTOMERS}",
    "topic-100-ledgers": "/dashboard/topics/telemetry/plants/sensor-states",
    "topic-failing": f"/dashboard/topics/{BROKEN}",
    "topic-running": f"/dashboard/topics/{RUNNING}",
    "messages": f"/dashboard/topics/{CUSTOMERS}/messages",
    "policies": f"/dashboard/topics/{CUSTOMERS}/policies",
    "trim": f"/dashboard/topics/{CUSTOMERS}/trim",
    "service": "/dashboard/service",
    "settings": "/dashboard/settings",
}
IN_DOCS = ("topics", "topic", "topic-dark", "topic-phone", "topic-failing", "messages", "policies")


def main() -> int:
    """Make the images; return the exit code."""
    parser = argparse.ArgumentParser(prog="python tools/pictures.py")
    parser.add_argument("--folder", type=Path, default=IMAGES)
    parser.add_argument("--all", action="store_true", help="every page in all four forms")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="compactor-pictures-") as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        with served(Path(folder)) as service:
            for name, path in PAGES.items():
                for suffix, width in WIDTHS.items():
                    for dark in (False, True):
                        image = f"{name}{suffix}{'-dark' if dark else ''}"
                        if options.all or image in IN_DOCS:
                            take(browser, service.url.rstrip("/") + path, options.folder / f"{image}.png", width, dark)
        browser.close()
    return 0


def take(browser: Browser, url: str, file: Path, width: int, dark: bool) -> None:
    """Save the whole page at `url` as a picture."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light")
    page = context.new_page()
    page.goto(url)
    page.screenshot(path=file, full_page=True)
    context.close()
    print(file.name, file=sys.stderr)


@contextmanager
def served(folder: Path) -> Iterator[RunningService]:
    """Serve the seeded topics: one fails, one runs, one is paused, and clients are connected."""
    (folder / "data").mkdir()
    with hashing_alike():
        seed(folder / "data")
    with (
        compactor_service(folder, COMPACTOR_COMPACTION_MAX_READ_RATE=READ_RATE) as service,
        connected(service, CUSTOMERS),
        httpx.Client(base_url=service.url, timeout=30) as client,
    ):
        call(client, "PUT", f"/admin/v2/persistent/{BROKEN}/compaction")
        call(client, "POST", "/admin/v2/persistent/billing/invoices/open-invoices/compaction/pause")
        until(lambda: status(client, BROKEN) == "ERROR")
        call(client, "PUT", f"/admin/v2/persistent/{RUNNING}/compaction")
        until(lambda: status(client, RUNNING) == "RUNNING")
        yield service
        call(client, "POST", f"/admin/v2/persistent/{RUNNING}/compaction/abort")
        until(lambda: status(client, RUNNING) != "RUNNING")


def seed(data: Path) -> None:
    """Write the histories of all topics, which end now."""
    bench = Workbench.embedded(data, sizing=None)
    now = int(time.time() * 1000)
    draw = random.Random(20261124)
    for history in HISTORIES:
        bench.clock.advance(now - 3 * DAY_MS - bench.clock.now_ms())
        topic = bench.topic(f"persistent://{history.name}")
        write(bench, topic, history, draw)
    bench.clock.advance(now - bench.clock.now_ms())
    lose_the_manifest(bench, bench.topic(f"persistent://{BROKEN}"))
    bench.metadata.close()


def write(bench: Workbench, topic: Topic, history: Changelog, draw: random.Random) -> None:
    """Append the rounds of a topic, each some hours after the one before, and compact them."""
    step = 3 * DAY_MS // (history.rounds + 1)
    for number in range(history.rounds if history.messages else 0):
        bench.clock.advance(step + draw.randrange(-step // 4, step // 4))
        per_ledger = max(1, history.messages // history.ledgers)
        for _ in range(history.ledgers):
            bench.append(topic, [batch(history, per_ledger, bench.clock.now_ms(), draw)])
        if number < history.rounds - history.uncompacted:
            bench.compact(topic)


def batch(history: Changelog, messages: int, now: int, draw: random.Random) -> pa.Table:
    """Return messages on keys of which few are frequent, with JSON values."""
    rows = []
    for number in range(messages):
        key = f"{history.name.rpartition('/')[2][:8]}-{int(draw.paretovariate(0.6)) % history.keys:05}"
        value = {"id": key, "revision": draw.randrange(10_000), "state": draw.choice(["new", "active", "dormant"])}
        is_tombstone = draw.random() < history.tombstones
        payload = None if is_tombstone else json.dumps(value).encode()
        rows.append({"key": key.encode(), "payload": payload, "publish_time": now - (messages - number) * 100})
    return pa.Table.from_pylist(rows, INPUT_SCHEMA)


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
        for number in range(300):
            producer.send(json.dumps({"revision": number}).encode(), partition_key=f"customer-{number:05}")
        yield


def call(client: httpx.Client, verb: str, path: str) -> httpx.Response:
    """Return the answer of a call that must succeed."""
    response = client.request(verb, path)
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
