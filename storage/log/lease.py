"""Holding a topic's writer lease for as long as a piece of work takes.

The lease is stored in SQL (`MetadataStore.leases`): it has a TTL, and a token that grows with each owner and fences
earlier owners. This module waits for it, renews it every third of its TTL, and releases it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from storage.environment import Environment
from storage.errors import CompactorError, LeaseHeld
from storage.heartbeat import Heartbeat
from storage.log.lease_renewer import LeaseRenewer
from storage.metadata.liveness import LEASE_TTL_MS
from storage.metadata.records import Lease

_POLL_SECONDS = 0.2
OnHeld = Callable[[LeaseHeld], object]
"""A callback that is called once, when a lease must be waited for, with the error that names its present owner."""


@contextmanager
def writer_lease(
    environment: Environment,
    topic_id: int,
    owner: str,
    wait_ms: int,
    on_fenced: Callable[[], object] = lambda: None,
    renewer: LeaseRenewer | None = None,
    on_held: OnHeld = lambda _: None,
) -> Iterator[Lease]:
    """Hold the topic's writer lease for `owner` inside the context, and renew it; call `on_fenced`, once, if another
    owner takes it.

    Waits up to `wait_ms` for another owner to finish or expire, then raises LeaseHeld, which names it. `renewer`:
    renews the lease, with many others; None: a thread is started for it. `on_held`: called once if the lease must be
    waited for. Raises TopicNotFound.
    """
    leases = environment.metadata.leases
    lease = _acquire_lease(environment, topic_id, owner, wait_ms, on_held)
    with (
        release_ignoring_errors(lambda: leases.release(lease)),
        renewer.renewing(lease, on_fenced)
        if renewer is not None
        else Heartbeat(lambda: leases.renew(lease, LEASE_TTL_MS), LEASE_TTL_MS / 3000, on_fenced),
    ):
        yield lease


@contextmanager
def release_ignoring_errors(release: Callable[[], object]) -> Iterator[None]:
    """Call `release` at the end of the context, and ignore its CompactorErrors.

    The row that it releases expires anyway. If its error were raised, it would hide the error before it, or make
    committed work look failed: a second import would then append every message twice.
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


def _acquire_lease(environment: Environment, topic_id: int, owner: str, wait_ms: int, on_held: OnHeld) -> Lease:
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
