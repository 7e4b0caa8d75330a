"""Sequence ids of entries: by them an entry that its producer sends again is known.

Of a batch the highest of its messages counts. The chunks of a message have one sequence id, so a chunk is known by its
number, too: ids of one producer are in order as pairs.

Must not know: which ids were stored before.
"""

from __future__ import annotations

from storage.entries.entry import parse, signed
from storage.entries.pulsar_metadata_pb2 import MessageMetadata

WHOLE = 2**31 - 1
"""Stands for the chunk of an entry that ends its message: it is not chunked, or its chunk is the last."""

SequenceId = tuple[int, int]
"""A sequence id, and the number of a chunk that is not the last one, or `WHOLE`."""


def sequence_of_entry(entry: bytes, at_least: int = 0) -> SequenceId:
    """Return the sequence id of an entry, whose checksum was verified before. Raises InvalidRecord.

    `at_least`: as the command that carried it says.
    """
    return sequence_of(parse(entry, checked=True)[0], at_least)


def sequence_of(metadata: MessageMetadata, at_least: int = 0) -> SequenceId:
    """Return the sequence id of the entry of such metadata."""
    number = max(at_least, signed(metadata.sequence_id), highest_of(metadata))
    return number, chunk_or_whole(metadata.chunk_id, metadata.num_chunks_from_msg)


def highest_of(metadata: MessageMetadata) -> int:
    """Return the highest sequence id that the metadata of an entry name besides its first; 0: none."""
    return signed(metadata.highest_sequence_id)


def chunk_or_whole(chunk: int, chunks: int) -> int:
    """Return the second part of the sequence id of one of so many chunks."""
    return chunk if chunks > 1 and chunk < chunks - 1 else WHOLE


def last_whole(sequence: SequenceId) -> int:
    """Return the highest sequence id whose message is complete: in the middle of a chunked one, the one before it."""
    number, chunk = sequence
    return number if chunk == WHOLE else number - 1
