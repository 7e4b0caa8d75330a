"""Timed import of a Parquet file through the product's own path: read, check, seal, index, commit."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from api.formats.inputs import InputOptions
from api.formats.parquet import read_import_parquet
from storage.environment import Environment
from storage.ledger import names
from storage.model import TopicName
from storage.objects.interface import ObjectStore
from storage.topic import Topic
from tests.workbench import ensure_topic

WORKERS = 2


@dataclass(frozen=True)
class Imported:
    """One import."""

    topic: Topic
    seconds: float
    ledgers: int
    messages: int
    stored_bytes: int


def import_parquet(environment: Environment, name: str, file: Path, ledger_bytes: int) -> Imported:
    """Import `file` into a new topic."""
    topic = ensure_topic(environment, TopicName.parse(name))
    writer = topic.bulk_append(ledger_bytes=ledger_bytes, workers=WORKERS)
    started = time.perf_counter()
    appended = writer.append(read_import_parquet(str(file), InputOptions()))
    seconds = time.perf_counter() - started
    return Imported(topic, seconds, len(appended.ledgers), appended.messages, appended.stored_bytes)


def delete_objects(store: ObjectStore, topic: Topic) -> None:
    """Delete the objects of an unused topic."""
    for stored in list(store.list(names.topic_prefix(topic.record.uid))):
        store.delete(stored.name)
