"""A check of a store's promises with racing writers, before data is trusted to the store.

A store that is correct in sequence may still let two racing writers both win (s3s-fs does), and then two compactions
both believe that they published. So in each round several threads create one new name with different bytes at the same
time: exactly one may win, every other must get `ObjectExists`, and the object must hold the winner's bytes. The same is
checked for the path of large objects (on S3: conditional CompleteMultipartUpload). Ranged reads, listing right after a
write, and deletes are tried as well.

All objects are below one random name and are deleted at the end, also after failures. An error that is no answer to the
check (no credentials, no space, unreachable) is raised as it is: the check then has no result. It knows no particular
store. A passed check is evidence, not proof: rounds are few.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from storage.errors import CompactorError, DataLoss, Misconfigured, ObjectExists

if TYPE_CHECKING:
    from storage.objects.interface import ObjectStore

ROUNDS = 4
RACERS = 6
BODY_BYTES = 1024
LARGE_BODY_BYTES = 4 << 20
"""Large enough for a server that checks first and then assembles its parts: moto 5.2 fails at 4 MiB in three checks of
four, and passes every one at 1 KiB."""
PROBE_PREFIX = "compactor-store-check"


@dataclass(frozen=True)
class Capability:
    """Result of the check of one promise of a store: whether it held, and `finding`, a description in a few words."""

    name: str
    held: bool
    finding: str


@dataclass(frozen=True)
class CapabilityReport:
    """The result of a check: every capability once, in the order of the checks."""

    url: str
    capabilities: tuple[Capability, ...]

    def require(self) -> CapabilityReport:
        """Return this report if every capability held. Raises Misconfigured, which names those that did not."""
        broken = [
            f"{capability.name} ({capability.finding})" for capability in self.capabilities if not capability.held
        ]
        if broken:
            raise Misconfigured(
                f"store {self.url} fails its check: {'; '.join(broken)}",
                "use a store, or a release of its server, that keeps this promise; data would be lost on this one",
            )
        return self


def check_capabilities(
    store: ObjectStore, *, streamed: ObjectStore, rounds: int = ROUNDS, racers: int = RACERS
) -> CapabilityReport:
    """Check the promises of a store with temporary objects; return the report, also of broken promises.

    `streamed`: the same store, whose writers take the path of large objects even for 4 MiB. `rounds`: the races for
    each kind of write; `racers`: the writers in each. Raises any store error, except those that show a broken promise.
    """
    base = f"{PROBE_PREFIX}/{uuid.uuid4().hex}"
    body = bytes(range(256)) * (BODY_BYTES // 256)

    def put(name: str, data: bytes, together: threading.Barrier) -> None:
        together.wait()
        store.put(name, data)

    def stream(name: str, data: bytes, together: threading.Barrier) -> None:
        with streamed.create(name) as writer:
            writer.write(data)
            together.wait()

    try:
        capabilities = (
            _check_conditional_writes("conditional put", store, put, f"{base}/put", BODY_BYTES, rounds, racers),
            _check_conditional_writes(
                "conditional put of large objects", store, stream, f"{base}/large", LARGE_BODY_BYTES, rounds, racers
            ),
            _check_ranged_reads(store, f"{base}/ranges", body),
            _check_list_after_write(store, f"{base}/listed", body),
            _check_delete(store, f"{base}/listed"),
        )
    finally:
        with suppress(CompactorError):  # the failure above explains more than an error here
            for remaining in list(store.list(base + "/")):
                store.delete(remaining.name)
    return CapabilityReport(store.url, capabilities)


def _check_conditional_writes(
    capability: str,
    store: ObjectStore,
    write: Callable[[str, bytes, threading.Barrier], None],
    base: str,
    size: int,
    rounds: int,
    racers: int,
) -> Capability:
    bodies = [bytes([racer]) * size for racer in range(racers)]
    with ThreadPoolExecutor(racers, "store-check") as pool:
        for turn in range(rounds):
            name = f"{base}-{turn}"
            together = threading.Barrier(racers)

            def race(racer: int, name: str = name, together: threading.Barrier = together) -> bool:
                try:
                    write(name, bodies[racer], together)
                except ObjectExists:
                    return False
                except BaseException:
                    together.abort()  # otherwise the others would wait forever
                    raise
                return True

            won = _run_race(pool, race, racers)
            winners = [racer for racer in range(racers) if won[racer]]
            if len(winners) != 1:
                return Capability(capability, False, f"{len(winners)} of {racers} racing writers won round {turn + 1}")
            try:
                kept = store.get(name)
            except DataLoss as error:
                return Capability(capability, False, error.message)
            if kept != bodies[winners[0]]:
                return Capability(capability, False, f"the object is not the winner's in round {turn + 1}")
    return Capability(capability, True, f"one of {racers} racing writers won in each of {rounds} rounds")


def _run_race(pool: ThreadPoolExecutor, race: Callable[[int], bool], racers: int) -> list[bool]:
    """Run all racers concurrently, and return which won. Raises the first error that no other racer caused."""
    futures = [pool.submit(race, racer) for racer in range(racers)]
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error
    return [future.result() for future in futures]


def _check_ranged_reads(store: ObjectStore, name: str, body: bytes) -> Capability:
    capability = "ranged get"
    store.put(name, body)
    for start, length in ((0, None), (0, 1), (100, 200), (len(body) - 7, 7), (len(body) - 7, None)):
        end = len(body) if length is None else start + length
        try:
            same = store.get(name, start, length) == body[start:end]
        except DataLoss as error:
            return Capability(capability, False, error.message)
        if not same:
            return Capability(capability, False, f"wrong bytes for start={start} length={length}")
    return Capability(capability, True, "ranges at both ends and inside")


def _check_list_after_write(store: ObjectStore, base: str, body: bytes) -> Capability:
    names = [f"{base}-x", f"{base}/a", f"{base}/b"]  # "-" sorts before "/": a store that lists by folder shows here
    for name in reversed(names):
        store.put(name, body)
        if name not in [item.name for item in store.list(base)]:
            return Capability("list after write", False, "an object just written was not listed")
    listed = [(item.name, item.size) for item in store.list(base)]
    held = listed == [(name, len(body)) for name in names]
    return Capability("list after write", held, "complete and ascending" if held else "incomplete or out of order")


def _check_delete(store: ObjectStore, base: str) -> Capability:
    for item in list(store.list(base)):
        store.delete(item.name)
        store.delete(item.name)
    is_empty = not list(store.list(base))
    return Capability(
        "delete", is_empty, "gone at once, twice is once" if is_empty else "a deleted object was still listed"
    )
