"""Loss of a topic's compacted ledger (R8): the error of a lost object names the ledger, and says what to do.

Raw decides on the advice: where it is whole, the next run makes the compacted ledger again; where it is trimmed, the
values go. A compacted ledger may have been replaced since the snapshot: callers read again before they report a loss
(`snapshot_reader.read_snapshot`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from storage.advice import LOST_COMPACTED, Advice, AdviceKind, damaged_object_advice
from storage.errors import DataLoss
from storage.ledger.manifest import read_manifest
from storage.ledger.object_check import check_compacted_objects
from storage.metadata.records import TopicSnapshot
from storage.objects.interface import ObjectStore


@contextmanager
def naming_compacted_ledger(snapshot: TopicSnapshot) -> Iterator[None]:
    """Replace a DataLoss inside the context by one that names the snapshot's compacted ledger, which must exist, and
    the remedy."""
    try:
        yield
    except DataLoss as error:
        if error.advice is not None and error.advice.kind in LOST_COMPACTED:
            raise  # a context inside this one has named it
        raise lost_compacted_error(snapshot, error) from error


def check_compacted_ledger(store: ObjectStore, snapshot: TopicSnapshot) -> None:
    """Raise DataLoss, naming the compacted ledger, unless the manifest of the snapshot's compacted ledger is whole and
    all its objects are in the store. Without a compacted ledger nothing is checked."""
    if snapshot.compacted is not None:
        with naming_compacted_ledger(snapshot):
            check_compacted_objects(store, read_manifest(store, snapshot.compacted.manifest))


def lost_compacted_error(snapshot: TopicSnapshot, error: DataLoss) -> DataLoss:
    """Return the error that the snapshot's compacted ledger cannot be read, made of the error of an object that it
    needs. The compacted ledger must exist."""
    assert snapshot.compacted is not None
    reason = f"the compacted ledger {snapshot.compacted.ledger_id} of {snapshot.topic.name} cannot be read"
    return type(error)(f"{reason}: {error.message}", lost_compacted_advice(snapshot, error), public=reason)


def lost_compacted_advice(snapshot: TopicSnapshot, error: DataLoss) -> Advice:
    """Return the advice what to do about the snapshot's compacted ledger, which must exist, after the loss of an
    object. `error`: that of the lost object."""
    assert snapshot.compacted is not None
    kind = AdviceKind.GIVE_UP_COMPACTED if snapshot.first_offset else AdviceKind.REBUILD_COMPACTED
    lost = error.advice.arguments if error.advice is not None else damaged_object_advice().arguments
    return Advice(kind, {**lost, "topic": snapshot.topic.name, "ledger_id": snapshot.compacted.ledger_id})
