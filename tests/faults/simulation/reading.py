"""Readers that stay open over many events, and what they were given in the end (R1–R4, R7, R10; properties 6 and 10).

Each message is checked as it comes: it is one of the topic's, and none comes twice or out of order. When a reader has
come to its end, what it got is compared twice: with what the generations that it pinned hold, exactly; and with what
R7 promises whatever way it took: every live key's newest value, and every deletion of a key that it was given.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from itertools import takewhile

from api.formats.position_text import parse_start
from compactor.reference import newest_payloads
from storage.entries.chunk_assembler import assemble_messages
from storage.errors import CompactorError, DataLoss, StateMayBeStale, TopicNotFound, Unavailable
from storage.ledger.manifest import read_manifest
from storage.metadata.records import TopicSnapshot
from storage.model import EARLIEST, Message, MessageId
from storage.positions import ContinuationToken
from storage.reading.page_reader import ReadLimits
from storage.topic import Topic
from tests.faults.engine.report import Violation
from tests.faults.simulation.model import TopicModel, require
from tests.faults.simulation.process import Process
from tests.faults.simulation.world import World


@dataclass(frozen=True)
class ReadSnapshot:
    """A snapshot that a compacted reader took, with the compacted ledger that it pinned.

    And how many messages it had been given then, the topic's life, where it ended, and where its raw messages began. A
    page is given whole: of several searches for one page, each is at the count before the page.
    """

    count: int
    snapshot: TopicSnapshot
    life: int
    end: int
    first: int

    @property
    def ledger(self) -> int | None:
        return self.snapshot.compacted.ledger_id if self.snapshot.compacted else None

    @property
    def start(self) -> int:
        return self.snapshot.topic.start_offset


@dataclass
class Reading:
    """One open read. `end`: of a raw reader, where the topic ended when it began; `page`: it asks for pages of that
    many messages, and continues by their tokens; None: it is one read.
    """

    process: Process
    model: TopicModel
    start: MessageId
    compacted: bool
    faults: int
    end: int
    source: Iterator[Message]
    page: int | None
    messages: list[Message] = field(default_factory=list)
    snapshots: list[ReadSnapshot] = field(default_factory=list)

    def __str__(self) -> str:
        kind = ("compacted" if self.compacted else "raw") + (f" (pages of {self.page})" if self.page else "")
        return f"a {kind} reader of {self.model.record.name} from {self.start} with {len(self.messages)} messages"


class Readers:
    """Events of readers."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.open: list[Reading] = []

    def begin(self, model: TopicModel | None = None) -> None:
        """A reader opens, and is given something."""
        world = self._world
        free = world.free("r")
        if not free or len(self.open) > 8:
            return
        process, model = world.random.choice(free), model or world.random.choice(world.topics)
        start = EARLIEST
        if model.everything and world.random.random() < 0.4:
            start = world.random.choice(model.everything).message_id
        compacted = world.random.random() < 0.8
        page = world.random.choice([None, None, 1, 4])
        world.run_as(
            process, f"opens a reader from {start}", lambda: self._open(process, model, start, compacted, page)
        )
        if self.open:
            self.advance(self.open[-1], world.random.choice([1, 2, 3]))

    def _open(self, process: Process, model: TopicModel, start: MessageId, compacted: bool, page: int | None) -> None:
        topic = self._world.topic(model, process)
        source = topic.messages(start, compacted) if page is None else _pages(topic, start, compacted, page)
        reading = Reading(process, model, start, compacted, process.faults, len(model.everything), source, page)
        self.open.append(reading)
        process.on_death.append(lambda: self._forget(reading))

    def advance(self, reading: Reading | None = None, count: int | None = None, faults: float = 0.12) -> None:
        """A reader is given some more."""
        world = self._world
        candidates = [item for item in self.open if item.process in world.free("r")]
        if reading is None:
            if not candidates:
                return
            reading = world.random.choice(candidates)
        chosen = reading
        amount = count or world.random.choice([1, 1, 2, 3, 8, 100])
        world.run_as(chosen.process, f"gives {amount} more to {chosen}", lambda: self._advance(chosen, amount), faults)

    def _advance(self, reading: Reading, count: int) -> None:
        process, model = reading.process, reading.model

        def note(snapshot: TopicSnapshot) -> None:
            reading.snapshots.append(
                ReadSnapshot(len(reading.messages), snapshot, model.life, len(model.everything), model.first)
            )

        process.on_pin = note
        try:
            for _ in range(count):
                self._take(reading, next(reading.source))
        except StopIteration:
            self.open.remove(reading)
            self._world.note(f"  ended with {len(reading.messages)}, {len(reading.snapshots)} snapshots")
            self._check(reading, complete=True)
        except CompactorError as error:
            self.open.remove(reading)
            self._world.note(f"  {type(error).__name__}: {error}"[:150])
            self._world.report.count(f"reader {type(error).__name__}")
            self._check_error(reading, error)
            if isinstance(error, StateMayBeStale):
                reading.snapshots.pop()
            self._check(reading, complete=False)
        finally:
            process.on_pin = None
        if len({check.ledger for check in reading.snapshots}) > 1:
            self._world.report.count("reader moved")

    def _take(self, reading: Reading, message: Message) -> None:
        everything = reading.model.everything
        if message.offset >= len(everything):
            self._world.observe()
        require(message.offset < len(everything), f"{reading} was given offset {message.offset}, which is not there")
        require(message == everything[message.offset], f"{reading} was given {message}, not what was imported")
        require(message.message_id >= reading.start, f"{reading} was given {message.message_id}, before its start")
        if reading.messages:
            last = reading.messages[-1].offset
            require(message.offset > last, f"{reading} was given offset {message.offset} after {last} (R7)")
        reading.messages.append(message)

    def _check_error(self, reading: Reading, error: CompactorError) -> None:
        faulty = reading.process.faults > reading.faults
        if isinstance(error, StateMayBeStale):
            require(len(reading.snapshots) > 1 and bool(reading.messages), f"{reading} lost no generation: {error}")
            check, model, behind = reading.snapshots[-1], reading.model, reading.messages[-1].offset
            require(check.first > behind + 1, f"{reading} could continue raw: {error}")
            if check.ledger is None or check.first > max(behind, model.horizons[check.ledger]) + 1:
                return  # a gap that no compacted ledger replaces
            seen = [item.ledger for item in reading.snapshots]
            orders = {item is not None and model.policies[item].event_time_order for item in seen}
            state = model.states[check.ledger]
            hides = model.hides_compacted and check.start > behind + 1  # what was trimmed there may have been newer
            dropped = state.dropped_to > behind
            require(dropped or hides or len(orders) > 1, f"{reading} misses nothing: {error}")
        elif isinstance(error, DataLoss):
            lost = any(name in str(error) for name in self._world.lost)
            require(faulty or lost, f"{reading} lost data without a fault: {error}")
        else:
            over = isinstance(error, TopicNotFound) and reading.model.deleted_at is not None
            require(over or (isinstance(error, Unavailable) and faulty), f"{reading} failed: {error!r}")

    def _check(self, reading: Reading, complete: bool) -> None:
        """Compare the messages that the reader received with the generations that it has checked."""
        model = reading.model
        if not reading.compacted:
            expected = model.at_or_after(None, len(model.everything), reading.start)
            offsets = {message.offset for message in reading.messages}
            expected = [item for item in expected if item.offset in offsets or item.offset >= model.first]
            self._equal(reading, reading.messages, expected, reading.end if complete else 0)
            return
        complete_to, inside = -1, None
        begins: ReadSnapshot | None = None
        counts = [check.count for check in reading.snapshots]
        for number, check in enumerate(reading.snapshots):
            count, ledger, first = counts[number], check.ledger, check.first
            last = number == len(reading.snapshots) - 1
            behind = reading.messages[count - 1].offset if count else -1
            raw_lasts = bool(count) and ledger != inside and first <= behind + 1
            # What was trimmed before it began is not missed by a later page either.
            still_there = begins is not None and ledger == inside == begins.ledger
            raw_from = first if not count else begins.first if begins is not None and still_there else 0
            expected = model.at_or_after(
                None if raw_lasts else ledger, len(model.everything), reading.start, behind, raw_from, check.start
            )
            if not last and counts[number + 1] <= count:
                counts[number + 1] = count + _shared(
                    reading.messages[count : check.count + (reading.page or 0)], expected
                )
            until = len(reading.messages) if last else counts[number + 1]
            went_on = until > count or (complete and last)  # not: met an error before it was given anything there
            if not count:
                begins, complete_to = check, -1 if ledger is None else model.horizons[ledger]
            elif went_on and ledger != inside:
                if raw_lasts:
                    ledger = None
                elif ledger is not None:
                    dropped_to, known_to = model.states[ledger].dropped_to, max(behind, complete_to)
                    text = f"{reading} went on in {ledger} at offset {behind}"
                    require(dropped_to <= known_to, f"{text}, though changes up to {dropped_to} are gone (R7)")
                complete_to = -1
            self._equal(reading, reading.messages[count:until], expected, check.end if complete and last else 0)
            inside = ledger
        if complete and begins is not None:
            self._check_promises(reading, begins)

    def _equal(self, reading: Reading, delivered: list[Message], expected: list[Message], end: int) -> None:
        """`delivered` begins as `expected`, at least up to the offset `end`: an open segment may grow meanwhile."""
        least = sum(message.offset < end for message in expected)
        if len(delivered) >= least and delivered == expected[: len(delivered)]:
            return
        missed = [m.offset for m in expected if m not in delivered]
        extra = [m.offset for m in delivered if m not in expected]
        raise Violation(f"{reading} missed offsets {missed if end else '…'} and was given {extra} too many")

    def _check_promises(self, reading: Reading, begins: ReadSnapshot) -> None:
        """R7, whatever way it took. What was trimmed by force before it began, and no run had seen, no reader knows."""
        model = reading.model
        check = reading.snapshots[-1]
        everything = model.everything[: max(check.end, reading.messages[-1].offset + 1 if reading.messages else 0)]
        if reading.snapshots[0].life == check.life:
            offsets = {message.offset for message in reading.messages}
            live = model.at_or_after(check.ledger, len(everything), EARLIEST, first=model.first, hidden_to=model.start)
            newest = {message.key: message for message in live if message.key is not None}
            for key, message in newest.items():
                if message.payload and message.message_id >= reading.start:
                    require(
                        message.offset in offsets, f"{reading} missed {key!r}'s newest value, {message.offset} (R7)"
                    )
        if model.by_event:
            return
        last_given = {message.key: message for message in reading.messages if message.key is not None}
        seen_to = -1 if begins.ledger is None else model.horizons[begins.ledger]
        known = [message for message in everything if not seen_to < message.offset < begins.first]
        last = {message.key: message for message in known if message.key is not None}
        for key, message in last_given.items():
            if message.payload and message != last[key]:
                raise Violation(f"{reading} missed what became of {key!r} at offset {last[key].offset} (R7)")

    def _forget(self, reading: Reading) -> None:
        if reading in self.open:
            self.open.remove(reading)
        reading.source.close()  # type: ignore[attr-defined]

    def drain(self) -> None:
        """Read every reader to its end, without faults; those of the dead are closed."""
        while self.open:
            self.advance(self.open[0], 10_000, faults=0.0)

    def read_page(self) -> None:
        """One read of a page: at most that many messages (R10), and those that come first (R1–R4)."""
        world = self._world
        model = world.random.choice(world.topics)
        start = world.random.choice(model.everything).message_id if model.everything else EARLIEST
        compacted, size = world.random.random() < 0.7, world.random.choice([1, 2, 7])
        page = list(world.topic(model).messages(start, compacted, size))
        serving = model.serving if compacted else None
        expected = model.at_or_after(serving, len(model.everything), start, first=model.first, hidden_to=model.start)[
            :size
        ]
        require(page == expected, f"a page of {size} from {start} of {model.record.name} is wrong")

    def audit(self, model: TopicModel, *, raw_too: bool = True) -> None:
        """The compacted ledger is the reference's, with its manifest's facts (properties 1, 2, 4, 10, 19)."""
        world = self._world
        name = model.record.name
        topic = world.topic(model)
        if raw_too:
            require(list(topic.messages()) == model.raw, f"{name}: raw reads have changed (property 10)")
        batches = list(topic.read(read_compacted=True))
        delivered = list(assemble_messages(iter(batches), name.partition))
        expected = model.readable(compacted=True)
        missed = [m.offset for m in expected if m not in delivered]
        extra = [m.offset for m in delivered if m not in expected]
        require(delivered == expected, f"{name}: compacted reads miss offsets {missed}, and have {extra} too many")
        self._audit_last(model)
        if model.serving is None:
            return
        self._audit_manifest(model, {o: t for b in batches for o, t in _retained(b) if o <= model.horizon})
        model.audited = model.serving
        used = topic.snapshot().last_run
        if not model.by_event and used is not None:
            for key in world.random.sample([b"a", b"b", b"c", b"d", b""], 2):
                self._audit_key(model, key, newest_payloads(expected).get(key))

    def _audit_last(self, model: TopicModel) -> None:
        """R6: the id of the last message that a reader gets, of each kind."""
        for compacted in (False, True):
            readable = model.readable(compacted=compacted)
            last = readable[-1].message_id if readable else EARLIEST
            answer = self._world.topic(model).last_message_id(compacted)
            require(answer == last, f"{model.record.name}: {answer} is the last message, not {last}: {compacted=} (R6)")

    def _audit_manifest(self, model: TopicModel, retained_at: dict[int, int]) -> None:
        name, state = model.record.name, model.state
        compacted = self._world.topic(model).snapshot().compacted
        assert compacted is not None
        manifest = read_manifest(self._world.store, compacted.manifest)
        keyed = [message for message in state.messages if message.key is not None]
        last = state.messages[-1].message_id if state.messages else None
        visible = {message.offset for message in model.visible(model.serving, model.start)}
        for what, actual, expected in [
            ("messages", (manifest.messages, compacted.messages), (len(state.messages),) * 2),
            ("tombstones", manifest.tombstones, len(state.retained_at)),
            ("keys", manifest.keys, len(keyed) - len(state.retained_at)),
            ("what was dropped", manifest.dropped_to, state.dropped_to),
            ("last message", compacted.last_message_id, last),
            ("times of retained tombstones", retained_at, {o: t for o, t in state.retained_at.items() if o in visible}),
        ]:
            require(
                actual == expected, f"{name}: {what} of {compacted.ledger_id} are {actual}, not {expected} (T1, R6)"
            )

    def _audit_key(self, model: TopicModel, key: bytes, expected: bytes | None) -> None:
        message = self._world.topic(model).newest_value(key)
        require(
            (message.payload if message else None) == expected,
            f"{model.record.name}: a point read of {key!r} gave {message}",
        )


def _shared(delivered: list[Message], expected: list[Message]) -> int:
    """Return the number of messages that both begin with: a page may have come before the reader polled again."""
    same = (message == other for message, other in zip(delivered, expected, strict=False))
    return sum(takewhile(bool, same))


def _pages(topic: Topic, start: MessageId, compacted: bool, count: int) -> Generator[Message, None, None]:
    """A read page by page, each of which knows nothing but the token of the one before."""
    token = str(start) if start != EARLIEST else "earliest"
    while True:
        page = topic.reader(ContinuationToken.from_token(token, parse_start), compacted).messages(
            ReadLimits(messages=count)
        )
        yield from page.messages
        if not page.messages and page.next.to_token() == token:
            return
        token = page.next.to_token()


def _retained(batch: object) -> list[tuple[int, int]]:
    offsets = batch.column("offset").to_pylist()  # type: ignore[attr-defined]
    times = batch.column("retained_at").to_pylist()  # type: ignore[attr-defined]
    return [(offset, time) for offset, time in zip(offsets, times, strict=True) if time is not None]
