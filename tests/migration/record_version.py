"""Record what one version of the service stores, so that the next version can prove that it opens it.

    python tests/migration/record_version.py ARCHIVE     in the clone of the version to record, with its environment

A service of that version runs on a new data folder. Pulsar's Python client and REST fill it: batches with compression,
a partitioned topic, a schema, policies, subscriptions with single acknowledgements, compacted and newer messages.
SIGKILL ends the service, so that the archive holds unsealed segments and leases of a process that died. The archive
holds the data folder and `expected.json`: the answers of reads, subscriptions and policies, taken before the end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import pulsar

TOPICS = ("plain", "batches", "parts-partition-0", "parts-partition-1", "sealed", "typed")
PREFIX = "persistent://public/default/"
ADMIN = "/admin/v2/persistent/public/default/"


def expected(url: str) -> dict[str, Any]:
    """Return what a service answers about the recorded data: reads, subscriptions, policies, by topic."""
    with httpx.Client(base_url=url, timeout=60) as client:

        def answer(path: str) -> Any:
            response = client.get(path)
            response.raise_for_status()
            return response.json()

        def messages(topic: str, compacted: bool) -> list[Any]:
            response = client.get(f"{ADMIN}{topic}/messages?limit=1000&readCompacted={str(compacted).lower()}")
            response.raise_for_status()
            return [json.loads(line) for line in response.text.splitlines()]

        def runs(topic: str) -> list[Any]:
            return [
                {key: run[key] for key in ("run", "state", "error")} for run in answer(f"{ADMIN}{topic}/compactions")
            ]

        return {
            topic: {
                "raw": messages(topic, False),
                "compacted": messages(topic, True),
                "subscriptions": {
                    name: fields["msgBacklog"]
                    for name, fields in answer(f"{ADMIN}{topic}/stats")["subscriptions"].items()
                },
                "runs": runs(topic),
            }
            for topic in TOPICS
        } | {
            "broken": runs("broken"),
            "threshold": answer(f"{ADMIN}plain/compactionThreshold"),
            "namespace": answer("/admin/v2/namespaces/public/default"),
        }


def fill(url: str, broker_url: str, objects: Path) -> None:
    """Store something of each kind through REST and Pulsar's client. Damage the manifest of `broken` in `objects`."""
    rest = httpx.Client(base_url=url, timeout=60)

    def send(verb: str, path: str, body: Any = None) -> None:
        response = rest.request(verb, path, json=body)
        if response.status_code >= 300:
            raise SystemExit(f"{verb} {path}: {response.status_code} {response.text}")

    def compact(topic: str) -> None:
        send("PUT", f"{ADMIN}{topic}/compaction")
        while rest.get(f"{ADMIN}{topic}/compaction").json()["status"] in ("RUNNING", "NOT_RUN"):
            time.sleep(0.2)

    client = pulsar.Client(broker_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    send("PUT", f"{ADMIN}parts/partitions", 2)
    for topic in ("plain", "parts", "sealed"):
        producer = client.create_producer(PREFIX + topic, batching_enabled=False)
        for number in range(40):
            value = None if number == 37 else b"%s %d" % (topic.encode(), number)
            producer.send(value, partition_key=f"k{number % 9}", properties={"number": str(number)})
        producer.close()
    batches = client.create_producer(
        PREFIX + "batches", compression_type=pulsar.CompressionType.ZSTD, batching_enabled=True,
        batching_max_publish_delay_ms=3_600_000, producer_name="recorder", initial_sequence_id=100,
    )  # fmt: skip
    typed = client.create_producer(PREFIX + "typed", schema=pulsar.schema.JsonSchema(_Person))
    for number in range(30):
        batches.send_async(b"batch %d" % number, lambda *_: None, partition_key=f"k{number % 7}")
        if number % 10 == 9:
            batches.flush()
    for number in range(5):
        typed.send(_Person(name=f"p{number}", age=number), partition_key=f"k{number % 2}")
    consumer = client.subscribe(
        PREFIX + "batches", "shared", pulsar.ConsumerType.Shared, initial_position=pulsar.InitialPosition.Earliest,
        batch_index_ack_enabled=True,
    )  # fmt: skip
    received = [consumer.receive(20_000) for _ in range(30)]
    for message in received[:12] + received[15:16]:
        consumer.acknowledge(message)
    send("PUT", f"{ADMIN}plain/subscription/reader")
    send("POST", f"{ADMIN}plain/subscription/reader/resetcursor/0")
    send("POST", f"{ADMIN}plain/compactionThreshold", 100_000_000)
    send(
        "POST", "/admin/v2/namespaces/public/default/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    )
    for topic in ("plain", "batches", "sealed", "parts"):
        compact(topic)
    again = client.create_producer(PREFIX + "plain", batching_enabled=False)
    for number in range(40, 50):
        again.send(b"plain %d" % number, partition_key=f"k{number % 9}")
    compact("plain")
    for number in range(50, 60):
        again.send(b"plain %d" % number, partition_key=f"k{number % 9}")
    typed.send(_Person(name="last", age=9), partition_key="k0")
    broken = client.create_producer(PREFIX + "broken", batching_enabled=False)
    for number in range(5):
        broken.send(b"broken %d" % number, partition_key="k")
    compact("broken")
    max(objects.glob("topics/*/compacted/*.json"), key=lambda path: path.stat().st_mtime_ns).write_text("{}")
    broken.send(b"broken", partition_key="k")
    compact("broken")
    consumer.close()
    client.close()


class _Person(pulsar.schema.Record):
    name = pulsar.schema.String()
    age = pulsar.schema.Integer()


def record(archive: Path) -> None:
    """Run the service of this version, fill it, end it by SIGKILL and write the archive."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data, log = folder / "data", folder / "serve.log"
        clean = {key: value for key, value in os.environ.items() if not key.startswith("COMPACTOR_")}
        command = [sys.executable, "-m", "api.cli.main", "serve", "--port", "0"]
        settings = {"COMPACTOR_DATA": str(data), "COMPACTOR_SPARK_MASTER": "in-process"}
        with log.open("w") as output:
            process = subprocess.Popen(
                command, env={**clean, **settings}, stdout=output, stderr=output, start_new_session=True
            )
        try:
            while not (lines := [line for line in log.read_text().splitlines() if '"serving"' in line]):
                if process.poll() is not None:
                    raise SystemExit(log.read_text())
                time.sleep(0.1)
            urls = json.loads(lines[0])
            fill(urls["url"], urls["broker_service_url"], data / "objects")
            (folder / "expected.json").write_text(json.dumps(expected(urls["url"]), indent=1))
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        with tarfile.open(archive, "w:xz") as tar:
            tar.add(data, "data")
            tar.add(folder / "expected.json", "expected.json")


if __name__ == "__main__":
    record(Path(sys.argv[1]).resolve())
