"""Verify: chunked messages (P10). Raw says which chunks must be live, the chunk tables which ones are.

The first stage has proven the chunk table of each raw ledger against its rows, and adds up the live chunks of the
parts; the fingerprint of the tables of the compacted ledger must be the same. So the tables stand for the parts' rows,
and the messages that they make are, with the parts' other keyed rows, what the key index must show.

What a chunk must be, by what raw puts together:

    of a complete message    live exactly if its message is: visible in the index, or without a key kept by policy
    stale                    gone
    pending                  live, or expired: a run may have found it too old

A message that was incomplete when a run may have found it too old is *uncertain*: its chunks, and its key if it is the
winner, are left alone. So is one of which the topic's limits may have taken a chunk (C2), and one across a gap of
trimmed raw, but if all its chunks are live.

The rule that makes messages is written here again, apart from the kernel that it proves. Memory: about a kilobyte a
chunk of the hash range.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from pyroaring import BitMap64

from compactor.verify.findings import Difference, Findings, Kind
from compactor.verify.fingerprints import (
    Fingerprint,
    Mask,
    compare_bitmaps,
    fingerprint,
)
from compactor.verify.plan import VerifyPlan
from storage.ledger import chunk_table
from storage.ledger.chunk_table import EMPTY, Chunks
from storage.ledger.key_index import NO_EVENT_TIME, OFFSET_MASK, TOMBSTONE, HashRange, Records
from storage.objects.interface import ObjectStore

_COMPARED = tuple(name for name in chunk_table.RECORD.names or () if name != "retained_at")


@dataclass
class Chunked:
    """A chunked message: its chunks in order, as records; or what of it there is so far."""

    chunks: list[np.void] = field(default_factory=list)

    @property
    def keyed(self) -> bool:
        return bool(self.chunks[0]["offset"] & chunk_table.KEYED)

    @property
    def offsets(self) -> list[int]:
        return [int(one["offset"] & OFFSET_MASK) for one in self.chunks]

    @property
    def offset(self) -> int:
        return self.offsets[-1]

    @property
    def empty(self) -> bool:
        return all(one["offset"] & EMPTY for one in self.chunks)

    @property
    def published(self) -> int:
        return int(self.chunks[-1]["publish_time"])


@dataclass
class Made:
    """What chunks make. `stale`: by the offset of the message behind them."""

    complete: list[Chunked] = field(default_factory=list)
    stale: dict[int, list[int]] = field(default_factory=dict)
    pending: list[np.void] = field(default_factory=list)


def made_of(chunks: Chunks) -> Made:
    """By the rule of docs/format.md."""
    made = Made()
    begun: dict[tuple[object, ...], Chunked] = {}
    waiting: dict[tuple[object, ...], list[np.void]] = {}
    for one in chunks[np.argsort(chunk_table.offsets(chunks), kind="stable")]:
        keyed = bool(one["offset"] & chunk_table.KEYED)
        identity = (keyed, *(int(one[name]) for name in ("uuid_hi", "uuid_lo", "key_hi", "key_lo", "count")))
        waiting.setdefault(identity, []).append(one)
        if one["index"] == 0:
            begun[identity] = Chunked()
        message = begun.get(identity)
        if message is None or one["index"] != len(message.chunks):
            continue
        message.chunks.append(one)
        if len(message.chunks) == one["count"]:
            made.complete.append(begun.pop(identity))
            left_out = {int(other["offset"] & OFFSET_MASK) for other in waiting.pop(identity)} - set(message.offsets)
            made.stale[message.offset] = sorted(left_out)
    made.pending = [one for group in waiting.values() for one in group]
    return made


def records_of(messages: Iterable[Chunked]) -> Records:
    """A record for each of some messages with a key."""
    keyed = [message for message in messages if message.keyed]
    flagged = [message.offset | (int(TOMBSTONE) if message.empty else 0) for message in keyed]
    hi, lo, offset = (
        np.array(column, dtype=np.uint64)
        for column in (
            [message.chunks[-1]["key_hi"] for message in keyed],
            [message.chunks[-1]["key_lo"] for message in keyed],
            flagged,
        )
    )
    event_time = np.array([message.chunks[0]["event_time"] for message in keyed], dtype=np.int64)
    return Records(hi, lo, offset, offset, event_time)


def chunk_fingerprint(chunks: Chunks) -> Fingerprint:
    """Of all that tables say of some chunks but when they were first kept."""
    return fingerprint(*(chunks[name].astype(chunks[name].dtype.str.replace("4", "8")) for name in _COMPARED))


class RangeChunks:
    """The chunks of one hash range: in the tables of the compacted ledger, and in raw at or below the horizon."""

    def __init__(self, store: ObjectStore, plan: VerifyPlan, wanted: HashRange) -> None:
        assert plan.manifest is not None
        tables = chunk_table.read_tables(store, plan.manifest.chunks, wanted)
        self._live = np.concatenate([chunk_table.none(), *tables])
        self._plan = plan
        ledgers = [chunk_table.read_ledger_chunks(store, ledger.index) for ledger in plan.below]
        trimmed = self._live[~plan.covered(chunk_table.offsets(self._live).astype(np.int64))]
        found = np.concatenate([chunk_table.none(), *(chunk_table.inside(one, wanted) for one in ledgers)])
        raw = np.concatenate([trimmed, found[plan.took_part(chunk_table.offsets(found).astype(np.int64))]])
        self._alive = set(chunk_table.offsets(self._live).tolist())
        self._raw = made_of(raw)
        self.live = made_of(self._live)
        self.uncertain = {message.offset for message in self._raw.complete if self._is_uncertain(message)}

    def winners(self) -> Records:
        """Records of the messages of raw."""
        return records_of(self._raw.complete)

    def _is_uncertain(self, message: Chunked) -> bool:
        assert self._plan.history is not None
        offsets = message.offsets
        first, last = offsets[0], offsets[-1]
        if not self._plan.known(np.array(offsets, dtype=np.int64)).all():
            return True
        if any(first <= end and start <= last for start, end in self._plan.gaps):
            return not self._alive.issuperset(offsets)
        if any(map(self._may_be_gone, message.chunks)):
            return True
        ledgers = {self._plan.ledger_of(offset) for offset in offsets}
        oldest = min(int(one["publish_time"]) for one in message.chunks)
        return len(ledgers) > 1 and oldest <= self._plan.history.chunks_dropped_between(first, last)

    def _may_be_gone(self, one: np.void) -> bool:
        """Whether the topic's limits may have taken a chunk, whatever it is of (C2), or a trim before its run."""
        assert self._plan.history is not None
        at = np.array([one["offset"] & OFFSET_MASK], dtype=np.int64)
        return bool(one["publish_time"] <= self._plan.history.may_go(at)[0] or not self._plan.known(at)[0])

    def compare(self, visible: set[int], findings: Findings) -> None:
        """`visible`: offsets of the records of the index that have a row."""
        assert self._plan.manifest is not None
        assert self._plan.history is not None
        history = self._plan.history
        wanted: set[int] = set()
        excused: set[int] = set()
        for message in self._raw.complete:
            if message.offset in self.uncertain:
                excused.update(message.offsets, self._raw.stale[message.offset])
            elif message.keyed:
                wanted.update(message.offsets if message.offset in visible else ())
            elif self._plan.manifest.policies.get("retain_null_key"):
                dropped = message.offset <= history.null_keys_dropped_to and not self._alive & set(message.offsets)
                wanted.update(() if dropped else message.offsets)
        for one in self._raw.pending:
            offset = int(one["offset"] & OFFSET_MASK)
            may_be_gone = one["publish_time"] <= history.chunks_dropped(offset) or self._may_be_gone(one)
            (excused if may_be_gone else wanted).add(offset)
        where = f"compacted ledger {self._plan.manifest.ledger_id}"
        compare_bitmaps(findings, where, "chunks", BitMap64(wanted), BitMap64(self._alive - (excused - wanted)))
        self._check_times(where, findings)

    def _check_times(self, where: str, findings: Findings) -> None:
        """What goes by time: a value that has expired, a tombstone that is overdue (T1, T2)."""
        history = self._plan.history
        assert history is not None
        for message in self.live.complete:
            at = np.array([message.offset], dtype=np.int64)
            retained = int(message.chunks[-1]["retained_at"])
            tombstone = message.keyed and message.empty
            if tombstone != (retained != NO_EVENT_TIME):
                what = "retained_at is set exactly where a tombstone is retained"
                findings.add(Difference(Kind.INCONSISTENT, where, what, message.offset))
            elif tombstone and retained <= history.must_drop(at)[0]:
                what = "a tombstone is there whose retention was over when a run went over it"
                findings.add(Difference(Kind.EXTRA, where, what, message.offset))
            elif message.keyed and not tombstone and message.published <= history.must_expire(at)[0]:
                what = "its value had expired when a run went over it, and is still there"
                findings.add(Difference(Kind.REVIVED, where, what, message.offset))


def check_tables(store: ObjectStore, plan: VerifyPlan, findings: Findings) -> Fingerprint | None:
    """Each table of the compacted ledger against what the manifest says of it; the fingerprint of all chunks."""
    assert plan.manifest is not None
    total = Fingerprint()
    read = 0
    for table in plan.manifest.chunks:
        with findings.reading(table.name):
            (chunks,) = chunk_table.read_tables(store, [table], table.hash_range)
            offsets = chunk_table.offsets(chunks)
            ascend = bool(np.all(offsets[1:] > offsets[:-1]))
            within = len(chunks) == table.records and int(offsets.max(initial=0)) <= plan.manifest.horizon.offset
            if not (ascend and within):
                what = "its chunks do not ascend, or are outside its hash range or above the horizon"
                findings.add(Difference(Kind.INCONSISTENT, table.name, what))
            _check_bounds(table, made_of(chunks), findings)
            total += chunk_fingerprint(chunks)
            read += 1
    return total if read == len(plan.manifest.chunks) else None


def _check_bounds(table: chunk_table.ChunkTable, made: Made, findings: Findings) -> None:
    kept = [message for message in made.complete if message.keyed]
    groups: dict[tuple[int, ...], int] = {}
    for one in made.pending:
        identity = tuple(int(one[name]) for name in ("uuid_hi", "uuid_lo", "key_hi", "key_lo", "count"))
        groups[identity] = max(groups.get(identity, int(one["publish_time"])), int(one["publish_time"]))
    bounds = {
        "oldest_value": [message.published for message in kept if not message.empty],
        "oldest_tombstone": [int(message.chunks[-1]["retained_at"]) for message in kept if message.empty],
        "first_tombstone": [message.offset for message in kept if message.empty],
        "oldest_pending": list(groups.values()),
    }
    for name, seen in bounds.items():
        bound = getattr(table, name)
        if seen and (bound is None or bound > min(seen)):
            what = f"the manifest says {name} {bound} of it, but a message has {min(seen)}"
            findings.add(Difference(Kind.INCONSISTENT, table.name, what))
    if table.pending != len(made.pending):
        what = f"the manifest says pending {table.pending} of it, it has {len(made.pending)}"
        findings.add(Difference(Kind.INCONSISTENT, table.name, what))


def certain_of(winners: Records, uncertain: set[int]) -> Mask:
    """Which winners are no uncertain messages."""
    plain = (winners.offset & OFFSET_MASK).astype(np.int64)
    return ~np.isin(plain, np.array(sorted(uncertain), dtype=np.int64))
