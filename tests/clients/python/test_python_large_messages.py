"""Messages and batches larger than a client's largest message that are small once compressed, with Pulsar's Python
client: a broker takes them, and every reader gets them, before and after they are sealed, raw and compacted."""

from __future__ import annotations

import pulsar
import pytest

from tests.clients.python.conftest import Admin, all_of

pytestmark = pytest.mark.slow

LARGE, PIECE = 20 << 20, 200 << 10


def produce_large(client: pulsar.Client, topic: str, codec: pulsar.CompressionType) -> None:
    """A message of 20 MiB, a batch of 100 messages of 200 KiB for 60 keys, and a small message behind each."""
    producer = client.create_producer(topic, compression_type=codec, batching_enabled=False)
    producer.send(bytes(LARGE), partition_key="large")
    producer.send(b"behind", partition_key="behind")
    batching = client.create_producer(
        topic, compression_type=codec, batching_enabled=True, batching_max_messages=100,
        batching_max_allowed_size_in_bytes=64 << 20, batching_max_publish_delay_ms=60_000,
    )  # fmt: skip
    for number in range(100):
        batching.send_async(bytes(PIECE), lambda *_: None, partition_key=f"k{number % 60}")
    batching.flush()
    batching.close()
    producer.send(b"behind", partition_key="behind")
    producer.close()


RAW_SIZES = [LARGE, 6, *[PIECE] * 100, 6]
COMPACTED_SIZES = [LARGE, *[PIECE] * 60, 6]


@pytest.mark.parametrize("codec", ["ZSTD", "LZ4", "ZLib", "SNAPPY"])
def test_what_is_small_once_compressed_is_read(client: pulsar.Client, topic: str, admin: Admin, codec: str) -> None:
    produce_large(client, topic, getattr(pulsar.CompressionType, codec))

    def sizes(compacted: bool) -> list[int]:
        reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=compacted)
        lengths = [len(message.data()) for message in all_of(reader)]
        reader.close()
        return lengths

    assert sizes(compacted=False) == sizes(compacted=True) == RAW_SIZES  # in the log
    admin.compact(topic)
    assert sizes(compacted=False) == RAW_SIZES  # sealed
    assert sizes(compacted=True) == COMPACTED_SIZES
