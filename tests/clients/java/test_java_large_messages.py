"""Messages and batches that are larger than a client's largest message before they are compressed, with Pulsar's Java
client: it sends them, and its readers get them, before and after they are sealed, raw and compacted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.clients.java.messaging import JavaClient

pytestmark = pytest.mark.slow

LARGE, PIECE = 20 << 20, 200 << 10


@pytest.mark.parametrize("codec", ["ZSTD", "LZ4"])
def test_what_is_small_once_compressed_is_read(
    java: JavaClient, topic: str, compact: Callable[[str], None], codec: str
) -> None:
    single = java.producer(topic, compression=codec)
    single.send("large", bytes(LARGE))
    single.send("behind", b"behind")
    batching = java.producer(topic, batched=True, compression=codec, batchingMaxBytes=64 << 20)
    batching.send_together([(f"k{number % 60}", bytes(PIECE)) for number in range(100)])
    single.send("behind", b"behind")

    def sizes(compacted: bool) -> list[int]:
        reader = java.reader(topic, compacted=compacted)
        sizes = []
        while reader.has_message_available():
            sizes.append(reader.java.readNext(20, java.seconds).size())
        reader.java.close()
        return sizes

    raw = [LARGE, 6, *[PIECE] * 100, 6]
    assert sizes(compacted=False) == sizes(compacted=True) == raw  # in the log
    compact(topic)
    assert sizes(compacted=False) == raw  # sealed
    assert sizes(compacted=True) == [LARGE, *[PIECE] * 60, 6]
