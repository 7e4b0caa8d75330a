"""Holding a topic's writer lease for as long as a piece of work takes.

The lease lives in SQL (`MetadataStore.leases`): it has a TTL, and a token that grows with each owner and fences
the owners before. Here it is waited for, renewed every third of its TTL, and released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from storage.environment import Environment
from storage.errors import CompactorError, LeaseHeld
from storage.heartbeat import Heartbeat
from storage.metadata.liveness import LEASE_TTL_MS
from storage.metadata.records import Lease

_POLL_SECONDS = 0.2
OnHeld = Callable[[LeaseHeld], object]
"""Is called once when a lease is waited for, with who holds it."""
Renewing = Callable[[Lease, Callable[[], object]], AbstractContextManager[object]]
"""Renews a lease inside its context, and calls the function if it is lost to another."""


@contextmanager
def writer_lease(
    environment: Environment,
    topic_id: int,
    owner: str,
    wait_ms: int,
    on_fenced: Callable[[], object] = lambda: None,
    renewing: Renewing | None = None,
    on_held: OnHeld = lambda _: None,
) -> Iterator[Lease]:
    """Inside the context the topic's lease is `owner`'s; `on_fenced` is called if it is lost to another.

    Waits up to `wait_ms` for another holder to finish or expire, then raises LeaseHeld, which names it. `renewing`:
    who renews it; None: a thread of its own (for many leases: storage/log/lease_renewer.py).
    """
    leases = environment.metadata.leases
    lease = _acquire(environment, topic_id, owner, wait_ms, on_held)
    with (
        afterwards(lambda: leases.release(lease)),
        renewing(lease, on_fenced)
        if renewing is not None
        else Heartbeat(lambda: leases.renew(lease, LEASE_TTL_MS), LEASE_TTL_MS / 3000, on_fenced),
    ):
        yield lease


@contextmanager
def afterwards(release: Callable[[], object]) -> Iterator[None]:
    """Call `release` at the end of the context; that it cannot changes nothing of what happened inside.

    For what ends by itself some time later. Raised, it would hide the error before it, or make work that is committed
    look as if it had failed: who then imports again has every message twice.
    """
    try:
        yield
    except BaseException as error:
        try:
            release()
        except CompactorError as second:
            error.add_note(f"and afterwards: {second}")
        raise
    with suppress(CompactorError):
        release()


def _acquire(environment: Environment, topic_id: int, owner: str, wait_ms: int, on_held: OnHeld) -> Lease:
    clock = environment.clock
    deadline = clock.now_ms() + wait_ms
    waiting = False
    while True:
        try:
            return environment.metadata.leases.acquire(topic_id, owner, LEASE_TTL_MS)
        except LeaseHeld as error:
            if clock.now_ms() >= deadline:
                raise
            if not waiting:
                waiting = True
                on_held(error)
            clock.wait(_POLL_SECONDS)
