"""One service leads, trusts itself no longer than it may, and is followed when it is gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compactor.scheduling.leadership import Leadership
from storage.errors import Fenced, Unavailable
from storage.metadata.records import RUN_DEAD_MS
from storage.metadata.store import MetadataStore
from storage.metadata.stores import ServiceStore
from tests.clocks import ManualClock

TERM = 10_000
TRUST = 8_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def metadata(tmp_path: Path, clock: ManualClock) -> Iterator[MetadataStore]:
    store = MetadataStore(f"sqlite:///{tmp_path / 'metadata.db'}", clock)
    store.upgrade()
    yield store
    store.close()


class Slow(ServiceStore):
    """Answers, or fails, only after a while: its COMMIT has happened long before."""

    takes_ms = 0
    away = False

    def acquire_leadership(self, name: str, ttl_ms: int) -> int | None:
        token = super().acquire_leadership(name, ttl_ms)
        self._wait()
        return token

    def renew_leadership(self, token: int, ttl_ms: int) -> None:
        if self.away:
            raise Unavailable("the database is away", "wait")
        super().renew_leadership(token, ttl_ms)
        self._wait()

    def _wait(self) -> None:
        assert isinstance(self._clock, ManualClock)
        self._clock.advance(self.takes_ms)


def leadership(metadata: MetadataStore, clock: ManualClock, name: str) -> Leadership:
    return Leadership(metadata.services, clock, name, TERM)


def test_one_leads_until_its_term_is_over(metadata: MetadataStore, clock: ManualClock) -> None:
    first, second = leadership(metadata, clock, "a:1:x"), leadership(metadata, clock, "b:2:y")
    token = first.acquire_or_renew()
    assert token is not None
    assert second.acquire_or_renew() is None
    assert metadata.services.leader() == "a:1:x"
    clock.advance(TERM - 1)
    assert second.acquire_or_renew() is None
    clock.advance(1)
    assert metadata.services.leader() is None
    following = second.acquire_or_renew()
    assert following is not None
    assert following > token
    assert (first.token, second.token) == (None, following)
    assert first.acquire_or_renew() is None, "the first stands again, and the second leads"


def test_a_leader_renews_and_keeps_its_token(metadata: MetadataStore, clock: ManualClock) -> None:
    first, second = leadership(metadata, clock, "a:1:x"), leadership(metadata, clock, "b:2:y")
    token = first.acquire_or_renew()
    for _ in range(20):
        clock.advance(TERM // 3)
        assert first.acquire_or_renew() == token
        assert second.acquire_or_renew() is None


def test_trust_ends_before_anybody_else_may_lead(metadata: MetadataStore, clock: ManualClock) -> None:
    first = leadership(metadata, clock, "a:1:x")
    token = first.acquire_or_renew()
    clock.advance(TRUST - 1)
    assert first.required_token() == token
    clock.advance(1)
    assert first.token is None
    with pytest.raises(Fenced, match="is not the leader"):
        first.required_token()
    assert leadership(metadata, clock, "b:2:y").acquire_or_renew() is None
    assert first.acquire_or_renew() == token, "no other took it meanwhile"


def test_trust_counts_from_the_start_of_the_attempt(metadata: MetadataStore, clock: ManualClock) -> None:
    """An answer that takes long to come is worth as much less, or nothing."""
    slow = Slow(metadata.database, clock, {}, RUN_DEAD_MS)
    first = Leadership(slow, clock, "a:1:x", TERM)
    slow.takes_ms = TRUST - 1
    assert first.acquire_or_renew() is not None
    clock.advance(1)
    assert first.token is None
    slow.takes_ms = TRUST
    assert first.acquire_or_renew() is None, "it is over when it comes"


def test_a_leader_without_a_database_leads_until_its_trust_is_over(metadata: MetadataStore, clock: ManualClock) -> None:
    slow = Slow(metadata.database, clock, {}, RUN_DEAD_MS)
    first = Leadership(slow, clock, "a:1:x", TERM)
    token = first.acquire_or_renew()
    slow.away = True
    clock.advance(TRUST - 1)
    with pytest.raises(Unavailable):
        first.acquire_or_renew()
    assert first.token == token
    clock.advance(1)
    assert first.token is None


def test_who_resigns_is_followed_at_once_and_never_leads_again(metadata: MetadataStore, clock: ManualClock) -> None:
    first, second = leadership(metadata, clock, "a:1:x"), leadership(metadata, clock, "b:2:y")
    first.acquire_or_renew()
    first.resign()
    assert metadata.services.leader() is None
    assert second.acquire_or_renew() is not None
    first.resign()
    assert metadata.services.leader() == "b:2:y"
    clock.advance(10 * TERM)
    assert first.acquire_or_renew() is None


def test_a_leader_that_died_before_the_clock_was_set_back_is_followed(
    metadata: MetadataStore, clock: ManualClock
) -> None:
    """Its term would end in a day: that is no term. One that lives finds out that it was overtaken."""
    first, second = leadership(metadata, clock, "a:1:x"), leadership(metadata, clock, "b:2:y")
    token = first.acquire_or_renew()
    assert token is not None
    clock.advance(-TERM)
    assert second.acquire_or_renew() is None, "a leader with a longer term, or a clock that is ahead, is one"
    clock.advance(-24 * 3_600_000)
    following = second.acquire_or_renew()
    assert following is not None
    assert following > token
    assert first.acquire_or_renew() is None
    assert first.token is None


def test_who_resigns_while_it_becomes_leader_gives_it_back(metadata: MetadataStore, clock: ManualClock) -> None:
    first: Leadership

    class Resigning(ServiceStore):
        def acquire_leadership(self, name: str, ttl_ms: int) -> int | None:
            token = super().acquire_leadership(name, ttl_ms)
            first.resign()
            return token

    first = Leadership(Resigning(metadata.database, clock, {}, RUN_DEAD_MS), clock, "a:1:x", TERM)
    assert first.acquire_or_renew() is None
    assert metadata.services.leader() is None


def test_a_leader_that_resigns_while_it_renews_is_no_cause_for_a_warning(
    metadata: MetadataStore, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    leader: Leadership

    class Resigning(ServiceStore):
        def renew_leadership(self, token: int, ttl_ms: int) -> None:
            leader.resign()
            super().renew_leadership(token, ttl_ms)

    leader = Leadership(Resigning(metadata.database, clock, {}, RUN_DEAD_MS), clock, "a:1:x", TERM)
    assert leader.acquire_or_renew() is not None
    assert leader.acquire_or_renew() is None
    assert metadata.services.leader() is None
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == []
