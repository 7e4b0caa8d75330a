"""A reader of every object, written from docs/format.md alone, and the tables and blocks of that page.

It uses struct, json, pyarrow and pyroaring, nothing of ours; it may be copied out.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap, BitMap64

PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")
PROSE = " ".join(PAGE.split())


def check(data: bytes, checksum: int) -> bytes:
    assert google_crc32c.value(data) == checksum
    return data


def read_directory(data: bytes) -> dict[str, Any]:
    version, bits, has_events, prefix = struct.unpack_from("<HBBI", data, 0)
    assert version in (1, 2, 3)
    start = 40 if version == 2 else 32
    width = 3 if has_events else 2
    fences = (len(data) - start) // (4 * width)
    assert len(data) == start + 4 * width * fences
    assert fences.bit_count() == 1
    tables = [struct.unpack_from(f"<{fences}I", data, start + 4 * fences * number) for number in range(width)]
    return {
        "version": version,
        "bits": bits,
        "prefix": prefix,
        "sizes": struct.unpack_from("<3I", data, 8),
        "bitmap_checksums": struct.unpack_from("<3I", data, 20),
        "counts": tables[0],
        "checksums": tables[1],
        "event_checksums": tables[2] if has_events else None,
        "chunk_table": struct.unpack_from("<2I", data, 32) if version == 2 else (0, 0),
    }


def fence_of(directory: dict[str, Any], high: int) -> int:
    fences = len(directory["counts"])
    if fences == 1:
        return 0
    return (high >> (64 - directory["bits"] - (fences.bit_length() - 1))) & (fences - 1)


def read_index(data: bytes, directory: dict[str, Any]) -> tuple[list[dict[str, int]], dict[str, list[int]]]:
    """Records in hash order, and offsets by class."""
    records: list[dict[str, int]] = []
    total = sum(directory["counts"])
    before = 0
    for fence, count in enumerate(directory["counts"]):
        block = check(data[24 * before : 24 * (before + count)], directory["checksums"][fence])
        numbers = struct.unpack(f"<{3 * count}Q", block)
        rows = [dict(zip(("high", "low", "offset"), numbers[i::count], strict=True)) for i in range(count)]
        if directory["event_checksums"] is not None:
            start = 24 * total + 16 * before
            block = check(data[start : start + 16 * count], directory["event_checksums"][fence])
            events = struct.unpack(f"<{count}Q{count}q", block)
            for i, record in enumerate(rows):
                record |= {"event_offset": events[i], "event_time": events[count + i]}
        assert all(fence_of(directory, record["high"]) == fence for record in rows)
        records += rows
        before += count
    start = total * (24 if directory["event_checksums"] is None else 40)
    unkeyed = {}
    for number, name in enumerate(("null_keys", "whole_entries", "chunks")):
        block = check(data[start : start + directory["sizes"][number]], directory["bitmap_checksums"][number])
        unkeyed[name] = list(BitMap64.deserialize(block)) if block else []
        start += len(block)
    assert start + directory["chunk_table"][0] == len(data)
    return records, unkeyed


def read_chunks(data: bytes, length: int, checksum: int) -> list[dict[str, int]]:
    """A chunk table at the end of an index, or the whole of an object."""
    names_ = ("uuid_high", "uuid_low", "key_high", "key_low", "offset", "event_time", "publish_time", "retained_at")
    block = check(data[len(data) - length :], checksum) if length else b""
    fields = struct.iter_unpack("<5Q3q2I", block)
    return [dict(zip((*names_, "index", "count"), numbers, strict=True)) for numbers in fields]


def messages_of(chunks: list[dict[str, int]]) -> list[list[dict[str, int]]]:
    """The complete messages that chunks make, in the order of their last chunks."""
    begun: dict[tuple[int, ...], list[dict[str, int]]] = {}
    complete = []
    for chunk in sorted(chunks, key=lambda item: item["offset"] & (1 << 62) - 1):
        same = ("uuid_high", "uuid_low", "key_high", "key_low", "count")
        identity = (*(chunk[name] for name in same), chunk["offset"] >> 62 & 1)
        if chunk["index"] == 0:
            begun[identity] = []
        if identity in begun and chunk["index"] == len(begun[identity]):
            begun[identity].append(chunk)
            if len(begun[identity]) == chunk["count"]:
                complete.append(begun.pop(identity))
    return complete


def read_rows(
    data: bytes, footer_size: int, footer_checksum: int, place: tuple[int, int] = (-1, -1)
) -> list[dict[str, Any]]:
    """Every row, after every byte but Parquet's magic was checked. `place`: ledger id and first offset of a ledger."""
    check(data[len(data) - footer_size :], footer_checksum)
    file = pq.ParquetFile(pa.BufferReader(data))
    named = file.metadata.metadata
    version = int(named[b"compactor.format_version"])
    assert version == 1 or (version == 2 and min(place) >= 0)
    checksums = struct.unpack(
        f"<{file.metadata.num_row_groups}I", bytes.fromhex(named[b"compactor.row_group_crc32c"].decode())
    )
    starts = []
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        chunks = [group.column(i) for i in range(group.num_columns)]
        starts.append(min(chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks))
    assert starts[:1] in ([4], [])
    for start, end, checksum in zip(starts, [*starts[1:], len(data) - footer_size], checksums, strict=bool(starts)):
        check(data[start:end], checksum)
    rows: list[dict[str, Any]] = file.read().to_pylist()
    if version == 2:
        assert {row["ledger_id"] for row in rows} <= {0}
        rows = [row | {"ledger_id": place[0], "offset": place[1] + row["offset"]} for row in rows]
    return rows


def dead_offsets(data: bytes, part: dict[str, Any]) -> list[int]:
    """The offsets of a part's rows that do not count; `data`: the object of bitmaps that it names."""
    place = part["deleted"]
    block = check(data[place["offset"] : place["offset"] + place["length"]], place["crc32c"])
    relative = list(BitMap.deserialize(block))
    assert len(relative) == place["cardinality"]
    return [part["first"]["offset"] + number for number in relative]


def parse_name(name: str) -> tuple[str, int] | None:
    """(last part of the name's pattern, number) by the page's list of names."""
    hexadecimal, number = "[0-9a-f]{32}", r"(\d{20})"
    for pattern in re.findall(r"^(topics/.+?) {2,}", PAGE, re.MULTILINE):
        expression = (
            re.escape(pattern)
            .replace("<topic\\ uid>", hexadecimal)
            .replace("<attempt>", hexadecimal)
            .replace("<nonce>", "[0-9a-f]{8}")
            .replace("<ledger\\ id>", number)
            .replace("<number>", number)
            .replace("<generation>", number)
        )
        if match := re.fullmatch(expression, name):
            return pattern.rsplit(">", 1)[-1], int(match[1])
    return None


def block(kind: str) -> str:
    """The fenced block of that kind on the page."""
    (block,) = re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return str(block)


def hex_block(kind: str) -> bytes:
    """A hex block without its right-hand explanations."""
    return bytes.fromhex(" ".join(line.split("   ")[0] for line in block(kind).splitlines()))


def page_table(header: str) -> list[list[str]]:
    """The cells of the table with that header."""
    _, _, after = PAGE.partition(f"{header}\n")
    assert after
    body = after.split("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in body]
