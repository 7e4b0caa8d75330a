"""Bounds of the expansion of a compressed entry, checked before it is appended.

An entry's metadata claims an uncompressed size and a number of messages, and both become rows: in memory when it is
read, and on disk when it is sealed. A few bytes must not claim a gigabyte or a quarter of a million rows. Entries of
real clients pass:

- Every codec has a largest expansion: LZ4 255 times, ZLIB 1,032 times, Snappy 64 bytes of 3, ZSTD a block of 128 KiB
  of 4 bytes. A claim above it cannot be true.
- A batch of clients has a sequence id in each message, so it compresses to at least a byte for each message (measured
  with each codec, 1,000 to 262,144 messages without key and payload). Clients without sequence ids send batches of
  1,000 messages unless configured otherwise; `FREE_MESSAGES` are allowed at any size.
- Uncompressed, an entry has at most `MOST_BYTES`, or the compressed limit of the topic. Pulsar's clients limit the
  compressed size only, so batches of more than 5 MiB are normal; they hold such a batch in memory as a whole, too.

For new entries only: a stored entry was acknowledged, and keeps its offsets.
"""

from __future__ import annotations

from storage.entries.entry import EntryHeader
from storage.errors import InvalidRecord
from storage.ledger.rows import CompressionType

MOST_BYTES = 64 << 20
FREE_MESSAGES = 10_000
MESSAGES_A_BYTE = 8
"""The number of further messages that a batch may claim for each of its compressed bytes."""
_ZSTD_BLOCK = 128 << 10
_ZSTD_SMALLEST_BLOCK = 4
_MOST_TIMES: dict[int, int] = {
    CompressionType.LZ4: 255,
    CompressionType.ZLIB: 1032,
    CompressionType.SNAPPY: 22,
    CompressionType.ZSTD: _ZSTD_BLOCK // _ZSTD_SMALLEST_BLOCK,
}


def check_expansion(header: EntryHeader, max_entry_bytes: int) -> None:
    """Raise InvalidRecord for an entry that claims more than its bytes can hold, or more than a reader should hold.

    `max_entry_bytes`: the largest entry of the topic, as it is stored.
    """
    if header.codec == CompressionType.NONE:
        return
    size, stored = header.payload_bytes, header.stored_bytes
    about = f"an entry of producer {header.producer!r} with {stored} compressed bytes claims"
    if size > max(MOST_BYTES, max_entry_bytes):
        raise InvalidRecord(
            f"{about} {size} bytes uncompressed, and {max(MOST_BYTES, max_entry_bytes)} are allowed",
            "send smaller batches (batchingMaxBytes, batchingMaxMessages); nothing of it was kept",
        )
    times = _MOST_TIMES.get(header.codec)
    if times is not None and size > stored * times:
        raise InvalidRecord(
            f"{about} {size} bytes uncompressed, which is more than {times} times as many",
            "state the uncompressed size as Pulsar's clients do; nothing of it was kept",
        )
    limit = FREE_MESSAGES + MESSAGES_A_BYTE * stored
    if header.messages > limit:
        raise InvalidRecord(
            f"{about} {header.messages} messages, and {limit} are allowed",
            f"send batches of at most {FREE_MESSAGES} messages (batchingMaxMessages), or give each message a sequence "
            "id; nothing of it was kept",
        )
