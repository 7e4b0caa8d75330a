"""The messages of many batches at once: an array operation for each field, where batch.py has a loop over messages.

A message begins with the size of its metadata, whose high bytes are zero, and a tag, so one search through the bytes
locates all messages; where payloads look like that, too, the stated sizes decide. Then the fields of all messages are
read side by side, and each message must end where the next begins. The layout is the one that producers write:
properties and a key, each shorter than 128 bytes, then the payload's size and other numbers. Batches with another
layout and damaged ones are left to batch.py. A property test holds the two equal.

Raises nothing, for any bytes. Must not know: entries, offsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from storage.entries.field_tags import (
    BASE64,
    COMPACTED_OUT,
    EVENT_TIME,
    KEY,
    MORE,
    NULL_VALUE,
    PAYLOAD_SIZE,
    PROPERTY,
    PROPERTY_KEY,
    PROPERTY_VALUE,
    SEQUENCE_ID,
)
from storage.entries.uniform_batches import decode_uniform_messages
from storage.slices import I64, Flags, Spans, slices

LEAST_MESSAGES = 200
"""With fewer messages the array operations cost more than a loop over them."""
_BLOCK_MESSAGES = 1 << 16
_BLOCK_BYTES = 4 << 20
"""Messages, and their bytes, that are read side by side: they and their arrays stay in a processor's cache."""
_LEAST_METADATA = 2
"""Bytes of the smallest metadata of a message: its payload's size."""
_MOST_PROPERTIES = 64
_MOST_NUMBERS = 16
"""Each property, and each number, of a message takes a step for all; messages with more are left to batch.py."""
_WORD = 8
_U32 = 0xFFFFFFFF
_PADDING = bytes(1 << 10)
"""After the last batch, so that a short field of any message can be read without a check."""
_MOST_PAYLOAD = 1 << 31
_EVEN_MESSAGES = 1 << 12
"""Messages of one size that are decoded apart from their neighbours."""
_SEARCHED_BYTES = 1 << 18
"""Bytes that are searched together: the masks stay in a core's cache."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch to decode: its uncompressed bytes, its number of messages, and the sequence id and event time for
    messages that have none of their own, unsigned."""

    data: bytes | memoryview
    count: int
    sequence_id: int
    event_time: int

    @property
    def possible_uniform_size(self) -> int:
        """The size in bytes of each message, if all messages of the batch can have the same size; 0: they cannot."""
        size, rest = divmod(len(self.data), self.count)
        return 0 if rest else size


@dataclass(frozen=True, slots=True)
class BatchColumns:
    """The decoded messages of several batches in order, as columns of shape (n,). `event_times` 0: none.

    `property_rows`: the row of each of the properties, ascending, whose keys and values follow.
    """

    keys: pa.Array
    payloads: pa.Array
    sequence_ids: I64
    event_times: I64
    compacted_out: Flags
    property_rows: I64
    property_keys: pa.Array
    property_values: pa.Array


class DecodedBatches(NamedTuple):
    """The result for a group of neighbouring batches. `end`: the number of the batch after the group. `decoded`: a mask
    of the batches that were decoded, shape (batches,); `columns`: their messages, None if no batch was decoded."""

    end: int
    columns: BatchColumns | None
    decoded: Flags


def decode_batches(batches: Sequence[Batch]) -> Iterator[DecodedBatches]:
    """Decode batches in groups of neighbours; yield the result of each group, at least one. The caller decodes the
    batches of another layout, which a result marks as not decoded."""
    end = 0
    for neighbours in _group_neighbours(batches):
        end += len(neighbours)
        if sum(batch.count for batch in neighbours) < LEAST_MESSAGES:
            yield DecodedBatches(end, None, np.zeros(len(neighbours), bool))
        else:
            yield _decode_group(end, neighbours)


def _group_neighbours(batches: Sequence[Batch]) -> Iterator[Sequence[Batch]]:
    """Yield all batches in order, in groups that end at `_BLOCK_MESSAGES` messages or `_BLOCK_BYTES` bytes.

    Batches with many messages of one size are in groups of their own.
    """
    first = messages = size = message_size = 0
    for number, batch in enumerate(batches):
        is_full = messages >= _BLOCK_MESSAGES or size >= _BLOCK_BYTES
        if number > first and (
            is_full or (message_size not in (0, batch.possible_uniform_size) and messages >= _EVEN_MESSAGES)
        ):
            yield batches[first:number]
            first, messages, size = number, 0, 0
        message_size = (
            batch.possible_uniform_size if number == first or batch.possible_uniform_size == message_size else 0
        )
        messages, size = messages + batch.count, size + len(batch.data)
    yield batches[first:]


def _decode_group(end: int, batches: Sequence[Batch]) -> DecodedBatches:
    """Decode neighbouring batches together; return their messages, and which of the batches were decoded. `end`: the
    number of the batch after them."""
    data = b"".join([*(batch.data for batch in batches), _PADDING])
    sizes = {batch.possible_uniform_size for batch in batches}
    columns = _decode_uniform_batches(batches, data, sizes.pop()) if len(sizes) == 1 else None
    if columns is not None:
        return DecodedBatches(end, columns, np.ones(len(batches), bool))
    block = _MessageBlock(batches, data)
    return DecodedBatches(end, block.columns() if block.regular.any() else None, block.regular)


def _decode_uniform_batches(batches: Sequence[Batch], data: bytes, message_size: int) -> BatchColumns | None:
    """Decode batches whose messages all have one size and one layout, and return their columns; None: sizes or layouts
    differ."""
    counts = [batch.count for batch in batches]
    messages = decode_uniform_messages(data, sum(counts), message_size) if message_size else None
    if messages is None:
        return None
    sequence_ids, event_times = messages.sequence_ids, messages.event_times
    if sequence_ids is None:
        sequence_ids = _repeat_for_messages([batch.sequence_id for batch in batches], counts)
    if event_times is None:
        event_times = _repeat_for_messages([batch.event_time for batch in batches], counts)
    compacted_out = np.zeros(sum(counts), bool)
    no_rows, no_texts = np.empty(0, np.int64), pa.array([], pa.string())
    return BatchColumns(
        messages.keys, messages.payloads, sequence_ids, event_times, compacted_out, no_rows, no_texts, no_texts
    )


class _MessagePositions:
    """The joined bytes of batches, followed by _PADDING, and the positions of their messages in them.

    `counts`: the messages of each batch; `ends`: the end of each batch; `starts`: the position of each message, −1
    where it is not known. `words`: the eight bytes from each position on, as a number.
    """

    def __init__(self, batches: Sequence[Batch], data: bytes) -> None:
        self.data = pa.py_buffer(data)
        self.end = len(data) - len(_PADDING)
        self.words: I64 = np.ndarray(len(data) - _WORD + 1, "<i8", data, strides=(1,))
        self.counts = np.fromiter((batch.count for batch in batches), np.int64, len(batches))
        self.ends = np.cumsum(np.fromiter((len(batch.data) for batch in batches), np.int64, len(batches)))
        self.starts = self._locate_messages(np.append(0, self.ends[:-1]))

    def _locate_messages(self, firsts: I64) -> I64:
        """Return the position of each message; -1 where it is not known. `firsts`: the start of each batch."""
        candidates = self._find_candidates()
        known = np.append(candidates, -1)
        begins, stops = np.searchsorted(candidates, firsts), np.searchsorted(candidates, self.ends)
        rows = np.cumsum(self.counts) - self.counts
        surplus = np.where(known[begins] == firsts, stops - begins - self.counts, -1)
        numbers = np.arange(int(self.counts.sum())) + np.repeat(begins - rows, self.counts)
        starts: I64 = known[np.minimum(numbers, len(candidates))]
        starts[np.repeat(surplus != 0, self.counts)] = -1
        for batch in np.flatnonzero(surplus > 0).tolist():
            chain = self._follow_chain(candidates[begins[batch] : stops[batch]], int(self.counts[batch]))
            starts[rows[batch] : rows[batch] + len(chain)] = chain
        return starts

    def _find_candidates(self) -> I64:
        """Return the positions, ascending, where the bytes look like the start of a message."""
        data = np.frombuffer(self.data, np.uint8)
        pieces = [np.empty(0, np.int64)]
        for first in range(0, self.end, _SEARCHED_BYTES):
            is_zero = data[first : min(first + _SEARCHED_BYTES, self.end) + 1] == 0
            pieces.append(np.flatnonzero(is_zero[:-1] & is_zero[1:]) + first)
        at: I64 = np.concatenate(pieces)
        tags = data[at + 4]
        at = at[(tags == KEY) | (tags == PROPERTY) | (tags == PAYLOAD_SIZE)]
        at = at[(data[at + 3] >= _LEAST_METADATA) | (data[at + 2] > 0)]
        # Of two neighbours the second has the size of the first as the high byte of its own.
        return at[np.diff(at, prepend=-2) > 1]

    def _follow_chain(self, candidates: I64, count: int) -> I64:
        """Return the positions of a batch's first messages, at most `count`, as far as each message ends where the next
        candidate begins."""
        after = self._message_ends(candidates)
        successors = np.searchsorted(candidates, after)
        is_known = np.append(candidates, -1)[successors] == after
        following = np.where(is_known & (after > candidates), successors, -1).tolist()
        chain = [0]
        while len(chain) < count and (number := following[chain[-1]]) > 0:
            chain.append(number)
        return candidates[chain]

    def _message_ends(self, starts: I64) -> I64:
        """Return the position after each message that begins at `starts`; an arbitrary position for a message of
        another layout."""
        words = self.words[starts].byteswap()
        metadata = (words >> 32) & _U32
        tags, lengths = (words >> 24) & 0xFF, (words >> 16) & 0xFF
        at = starts + 4
        for _ in range(_MOST_PROPERTIES):
            rows = np.flatnonzero((tags == PROPERTY) & (at < starts + 4 + metadata))
            if not len(rows):
                break
            at[rows] = np.minimum(at[rows] + 2 + lengths[rows], self.end)
            words = self.words[at[rows]]
            tags[rows], lengths[rows] = words & 0xFF, (words >> 8) & 0xFF
        lengths = np.where(tags == KEY, lengths, -2)
        payload, _ = _decode_varints(self.words[at + 3 + lengths])
        return starts + 4 + metadata + payload


class _MessageBlock:
    """A decoder of the messages of some batches, side by side. `regular`: a mask of the batches whose layout is the
    expected one.

    Arrays have a value for each message, shape (n,).
    """

    def __init__(self, batches: Sequence[Batch], data: bytes) -> None:
        located = _MessagePositions(batches, data)
        self._words, self._data, self._end = located.words, located.data, located.end
        counts, ends, starts = located.counts, located.ends, located.starts
        self._counts = counts
        self._known = starts >= 0
        self._sequence_ids = _repeat_for_messages([batch.sequence_id for batch in batches], counts)
        self._event_times = _repeat_for_messages([batch.event_time for batch in batches], counts)
        self._properties = [(np.empty(0, np.int64), np.empty(0, np.int64))]
        self._parse_fields(np.maximum(starts, 0))
        last = np.cumsum(counts) - 1
        following = np.append(starts[1:], 0)
        following[last] = ends
        self._known &= self._payload + self._payload_size == following
        self.regular = np.logical_and.reduceat(self._known, last - counts + 1)
        self._property_rows, self._texts = self._read_properties()

    def _parse_fields(self, starts: I64) -> None:
        """Parse the metadata of the messages that begin at `starts` into one array for each field; mark messages of
        another layout as not known."""
        known = self._known
        at = starts + 4
        payload = at + ((self._words[starts].byteswap() >> 32) & _U32)
        known &= payload <= self._end
        payload = np.minimum(payload, self._end)
        self._skip_properties(at, payload)
        words = self._words[at]
        key_size = np.where((words & 0xFF == KEY) & (at < payload), (words >> 8) & 0xFF, -1)
        self._key, self._key_size, self._payload = at + 2, key_size, payload
        known &= key_size < MORE
        at = np.minimum(np.where(key_size < 0, at, at + 2 + key_size), payload)
        zeros = np.zeros_like(at)
        fields = {
            PAYLOAD_SIZE: zeros + _MOST_PAYLOAD,
            SEQUENCE_ID: self._sequence_ids,
            EVENT_TIME: self._event_times,
            BASE64: zeros.copy(),
            NULL_VALUE: zeros.copy(),
            COMPACTED_OUT: zeros,
        }
        for _ in range(_MOST_NUMBERS):
            active = known & (at < payload)
            if not active.any():
                break
            rows: Any = slice(None) if active.all() else np.flatnonzero(active)
            words = self._words[at[rows]]
            tags = words & 0xFF
            numbers, sizes = _decode_varints(words >> 8)
            at[rows] += 1 + sizes
            is_known = np.zeros(len(tags), bool)
            for tag, values in fields.items():
                if tag == tags[0] and (tags == tag).all():
                    values[rows] = numbers
                    is_known = sizes < _WORD
                    break
            else:
                for tag, values in fields.items():
                    chosen = tags == tag
                    values[rows] = np.where(chosen, numbers, values[rows])
                    is_known |= chosen & (sizes < _WORD)
            known[rows] = is_known
        known &= (at == payload) & (fields[PAYLOAD_SIZE] < _MOST_PAYLOAD) & (fields[BASE64] == 0)
        self._payload_size = fields[PAYLOAD_SIZE]
        self._compacted_out = fields[COMPACTED_OUT] != 0
        self._null = self._compacted_out | (fields[NULL_VALUE] != 0)

    def _skip_properties(self, at: I64, payload: I64) -> None:
        """Move each position in `at` past the properties that begin there, and record the positions of these
        properties."""
        for _ in range(_MOST_PROPERTIES):
            words = self._words[at]
            rows = np.flatnonzero(self._known & (words & 0xFF == PROPERTY) & (at < payload))
            if not len(rows):
                return
            positions, words = at[rows], words[rows]
            end = positions + 2 + ((words >> 8) & 0xFF)
            value = positions + 4 + ((words >> 24) & 0xFF)
            value_words = self._words[value]
            self._known[rows] = (
                (words & 0x8000 == 0)
                & ((words >> 16) & 0xFF == PROPERTY_KEY)
                & (value_words & 0xFF == PROPERTY_VALUE)
                & (value + 2 + ((value_words >> 8) & 0xFF) == end)
            )
            self._properties.append((rows, positions))
            at[rows] = np.minimum(end, payload[rows])

    def _read_properties(self) -> tuple[I64, list[pa.Array]]:
        """Return the properties of the regular batches: the row of each, ascending, and the arrays of keys and values.

        If a property is not UTF-8, all batches with properties are left to batch.py.
        """
        rows, at = (np.concatenate(arrays) for arrays in zip(*self._properties, strict=True))
        chosen = np.flatnonzero(np.repeat(self.regular, self._counts)[rows])
        order = chosen[np.argsort(rows[chosen], kind="stable")]
        rows, at = rows[order], at[order]
        value = at + 4 + ((self._words[at] >> 24) & 0xFF)
        value_size = (self._words[value] >> 8) & 0xFF
        texts = slices(self._data, self._end, pa.string(), Spans(at + 4, value - at - 4), Spans(value + 2, value_size))
        try:
            for text in texts:
                text.validate(full=True)
        except pa.ArrowInvalid:
            self.regular[np.repeat(np.arange(len(self._counts)), self._counts)[rows]] = False
            return rows[:0], [text[:0] for text in texts]
        return rows, texts

    def columns(self) -> BatchColumns:
        """Return the messages of the regular batches as columns."""
        is_regular = np.repeat(self.regular, self._counts)
        rows: Any = slice(None) if is_regular.all() else np.flatnonzero(is_regular)
        key_size = self._key_size[rows]
        keys, payloads = slices(
            self._data,
            self._end,
            pa.binary(),
            Spans(self._key[rows], key_size, key_size < 0),
            Spans(self._payload[rows], self._payload_size[rows], self._null[rows]),
        )
        return BatchColumns(
            keys,
            payloads,
            self._sequence_ids[rows],
            self._event_times[rows],
            self._compacted_out[rows],
            (np.cumsum(is_regular) - 1)[self._property_rows],
            *self._texts,
        )


def _repeat_for_messages(numbers: list[int], counts: Sequence[int] | I64) -> I64:
    """Return the number of each batch once for each of its messages; unsigned numbers become signed ones with the same
    bits."""
    return np.repeat(np.array(numbers, np.uint64).view(np.int64), counts)


def _decode_varints(words: I64) -> tuple[I64, I64]:
    """Decode the protobuf varint at the low end of each word; return the numbers, and their sizes in bytes. A size of 8
    or more: the number is longer than 7 bytes, and its value is not valid."""
    values = words & 0x7F
    more = (words >> 7) & 1
    sizes = more + 1
    for index in range(1, _WORD):
        if not more.any():
            break
        values |= ((words >> (8 * index)) & (0x7F * more)) << (7 * index)
        more &= words >> (8 * index + 7)
        sizes += more
    return values, sizes
