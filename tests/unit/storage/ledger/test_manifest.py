"""Manifests: read back whole, vouched for by their row, and never made or read with parts that cannot be."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from storage.errors import ObjectDamaged, ObjectExists, ObjectMissing
from storage.ledger.manifest import DeletedRows, Manifest, Part, read_manifest, write_manifest
from storage.model import IndexLocation, LogPosition, MessageId, RowsObject, StoredObject
from storage.objects.interface import ObjectStore
from tests.sealed import damaged_copy, new_id

NUMBERS = st.integers(0, 2**63 - 1)
U32 = st.integers(0, 2**32 - 1)
TEXTS = st.text(min_size=1, max_size=9)


def position(offset: int, entry: int = 0) -> LogPosition:
    return LogPosition(offset, MessageId(7, entry, 2, -1))


def part(first: int, last: int, messages: int = 1, deleted: DeletedRows | None = None) -> Part:
    rows_object = RowsObject(StoredObject(f"part-{first}", 900, 0xFFFF_FFFF), 300)
    return Part(rows_object, position(first), position(last), messages, 10, -1, 2**62, deleted)


def manifest(*parts: Part, horizon: int = 1000) -> Manifest:
    index = (IndexLocation("i", 0, 9, b"\x00\xff"),)
    return Manifest("persistent://a/b/ü", "0" * 32, 9, 3, 4, 5, position(horizon), parts, (index,))


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    edges = sorted(draw(st.lists(NUMBERS, min_size=2, max_size=12, unique=True)))
    spans = [(edges[i], edges[i + 1] - 1) for i in range(0, len(edges) - 1, 2)]
    policies = st.dictionaries(TEXTS, st.none() | st.booleans() | NUMBERS | st.floats(allow_nan=False))
    parts = []
    for first, last in spans:
        messages = draw(st.integers(1, last - first + 1))
        dead = draw(st.none() | st.integers(1, messages - 1)) if messages > 1 else None
        deleted = None if dead is None else DeletedRows(draw(TEXTS), draw(NUMBERS), draw(NUMBERS), dead, draw(U32))
        first_id, last_id = (
            LogPosition(
                offset, MessageId(draw(NUMBERS), draw(NUMBERS), draw(st.integers(-1, 9)), draw(st.integers(-1, 9)))
            )
            for offset in (first, last)
        )
        stored = StoredObject(draw(TEXTS), draw(NUMBERS), draw(U32))
        sums = [draw(NUMBERS), draw(NUMBERS), draw(NUMBERS)]
        live = [draw(st.integers(0, 2**64 - 1)), *(draw(st.none() | NUMBERS) for _ in range(3))]
        parts.append(Part(RowsObject(stored, draw(NUMBERS)), first_id, last_id, messages, *sums, deleted, *live))
    location = st.builds(IndexLocation, TEXTS, NUMBERS, NUMBERS, st.binary(max_size=40))
    levels = st.lists(st.lists(location, max_size=3).map(tuple), max_size=3).map(tuple)
    ids = [draw(NUMBERS) for _ in range(4)]
    horizon = LogPosition(edges[-1], MessageId(draw(NUMBERS), draw(NUMBERS), -1, draw(st.integers(-1, 9))))
    frozen = draw(NUMBERS), draw(policies), draw(st.integers(-1, 2**63 - 1)), draw(NUMBERS), draw(NUMBERS)
    return Manifest(draw(TEXTS), draw(TEXTS), *ids, horizon, tuple(parts), draw(levels), *frozen)


def everything(manifest: Manifest) -> tuple[str, Any]:
    """All numbers and texts of a manifest; message ids that are equal may still differ in their partition."""
    return repr(replace(manifest, policies={})), manifest.policies


@pytest.mark.slow
@given(manifests())
def test_a_manifest_is_read_back_whole(object_store: ObjectStore, manifest: Manifest) -> None:
    stored = write_manifest(object_store, f"manifests/{new_id()}", manifest)
    assert stored.size == object_store.size(stored.name)
    assert everything(read_manifest(object_store, stored)) == everything(manifest)


def test_equal_manifests_have_equal_bytes_in_json_with_sorted_keys() -> None:
    data = manifest(part(1, 2), part(3, 4)).encode()
    document = json.loads(data)
    assert data == manifest(part(1, 2), part(3, 4)).encode()
    assert data == json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def test_deleted_rows_and_index_levels_have_their_place() -> None:
    deleted = DeletedRows("bitmaps", 10, 20, 2, 7)
    levels = (
        (IndexLocation("new", 0, 5, b"n"),),
        (IndexLocation("old", 5, 6, b"o"), IndexLocation("old", 11, 6, b"p")),
    )
    created = replace(manifest(part(1, 3, messages=3, deleted=deleted), part(4, 4)), index=levels)
    document = json.loads(created.encode())
    assert document["parts"][0]["deleted"] == {
        "name": "bitmaps",
        "offset": 10,
        "length": 20,
        "cardinality": 2,
        "crc32c": 7,
    }
    assert document["parts"][1]["deleted"] is None
    assert [[item["name"] for item in level] for level in document["index"]["levels"]] == [["new"], ["old", "old"]]
    assert Manifest.decode(created.encode(), "m") == created


def test_the_totals_are_those_of_the_parts_without_their_deleted_rows() -> None:
    created = manifest(part(1, 9, messages=8, deleted=DeletedRows("d", 0, 25, 3, 0)), part(10, 10))
    assert [(item.live, item.dead) for item in created.parts] == [(5, 3), (1, 0)]
    assert (created.messages, created.logical_bytes, created.stored_bytes) == (6, 20, 900 + 25 + 900 + 9)


def test_the_objects_of_a_manifest_are_all_that_it_refers_to() -> None:
    """The objects that garbage collection must keep: shared ones once."""
    deleted = [DeletedRows("bitmaps", start, 20, 1, 0) for start in (0, 20)]
    created = manifest(part(1, 9, messages=8, deleted=deleted[0]), part(10, 19, messages=4, deleted=deleted[1]))
    levels = ((IndexLocation("new", 0, 5, b""),), (IndexLocation("old", 0, 5, b""), IndexLocation("older", 0, 5, b"")))
    assert replace(created, index=levels).object_names == {"part-1", "part-10", "bitmaps", "new", "old", "older"}
    assert replace(manifest(), index=()).object_names == set()


def test_an_empty_compacted_ledger_is_a_valid_one() -> None:
    assert Manifest.decode(manifest().encode(), "m").messages == 0


IMPOSSIBLE = {
    "parts that overlap": (part(1, 5), part(5, 9)),
    "parts in another order": (part(5, 9), part(1, 2)),
    "a part above the horizon": (part(1, 5), part(6, 1001)),
    "a part that ends before it begins": (part(5, 4),),
    "more messages than offsets": (part(1, 2, messages=3),),
    "a part without messages": (part(1, 2, messages=0),),
    "more deleted rows than rows": (part(1, 9, messages=2, deleted=DeletedRows("d", 0, 1, 3, 0)),),
    "a part of which no row counts": (part(1, 9, messages=2, deleted=DeletedRows("d", 0, 1, 2, 0)),),
}


@pytest.mark.parametrize("parts", IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
def test_impossible_parts_are_neither_made_nor_read(parts: tuple[Part, ...]) -> None:
    with pytest.raises(ValueError, match="compacted ledger 9"):
        manifest(*parts)
    good = manifest(*(part(10 * number, 10 * number) for number in range(len(parts))))
    object.__setattr__(good, "parts", parts)
    with pytest.raises(ObjectDamaged, match="the manifest m cannot be read"):
        Manifest.decode(good.encode(), "m")


def test_a_part_may_end_at_the_horizon() -> None:
    assert manifest(part(1, 1000)).parts[0].last.offset == 1000


def without(*path: str | int) -> bytes:
    document = json.loads(manifest(part(1, 2)).encode())
    inner = document
    for step in path[:-1]:
        inner = inner[step]
    del inner[path[-1]]
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"{}",
        without("horizon"),
        without("parts", 0, "footer_crc32c"),
        without("parts", 0, "first", "batch_index"),
        without("parts", 0, "offset_sum"),
        without("parts", 0, "oldest_value"),
        without("parts", 0, "oldest_tombstone"),
        without("parts", 0, "first_tombstone"),
        without("frozen_at"),
        without("policies"),
        without("dropped_to"),
        without("index", "levels"),
        manifest().encode().replace(b'"parts":[]', b'"parts":[7]'),
        manifest().encode().replace(b'"parts":[]', b'"parts":null'),
        manifest().encode().replace(b'"directory":"', b'"directory":"*'),
    ],
)
def test_json_that_is_no_manifest_is_damage(data: bytes) -> None:
    with pytest.raises(ObjectDamaged, match="the manifest m cannot be read"):
        Manifest.decode(data, "m")


@pytest.mark.parametrize("version", [b"1", b"5"])
def test_another_format_version_is_refused(version: bytes) -> None:
    data = manifest().encode().replace(b'"format_version":4', b'"format_version":' + version)
    with pytest.raises(ObjectDamaged, match="format version " + version.decode()):
        Manifest.decode(data, "m")


@pytest.mark.parametrize("version", [2, 3])
def test_of_an_older_format_only_tombstones_are_known_so_anything_may_have_been_dropped(version: int) -> None:
    created = manifest(part(1, 2))
    document = json.loads(created.encode()) | {"format_version": version, "tombstones_dropped_to": 1}
    del document["dropped_to"]
    assert Manifest.decode(json.dumps(document).encode(), "m") == replace(created, dropped_to=1000)


@given(st.data())
def test_a_flipped_byte_is_damage(object_store: ObjectStore, data: st.DataObject) -> None:
    stored = write_manifest(object_store, f"manifests/{new_id()}", manifest(part(1, 2)))
    position_ = data.draw(st.integers(0, stored.size - 1))
    name = damaged_copy(object_store, stored.name, position_, data.draw(st.integers(1, 255)))
    with pytest.raises(ObjectDamaged, match=f"{name} does not match its checksum"):
        read_manifest(object_store, replace(stored, name=name))


def test_a_manifest_is_made_once_and_must_be_there(object_store: ObjectStore) -> None:
    stored = write_manifest(object_store, f"manifests/{new_id()}", manifest())
    with pytest.raises(ObjectExists):
        write_manifest(object_store, stored.name, manifest(part(1, 2)))
    assert read_manifest(object_store, stored) == manifest()
    with pytest.raises(ObjectMissing):
        read_manifest(object_store, replace(stored, name=f"manifests/{new_id()}"))
