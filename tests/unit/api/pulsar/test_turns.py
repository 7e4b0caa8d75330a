"""Turns: a flood waits between those of others; a role has one share, however many connections it has."""

from __future__ import annotations

from collections.abc import Callable

from api.pulsar.turns import QUANTUM_SECONDS, TURN_SECONDS, TurnQueue

FRAME_SECONDS = QUANTUM_SECONDS / 2


class Flood:
    """A worker with a number of frames, each of which takes half a quantum."""

    def __init__(self, role: str, frames: int, log: list[str]) -> None:
        self.role = role
        self.frames = frames
        self.log = log

    def handle_frames(self, seconds: float) -> float:
        used = 0.0
        while self.frames and used < seconds:
            self.frames -= 1
            used += FRAME_SECONDS
            self.log.append(self.role)
        return used

    @property
    def has_frames(self) -> bool:
        return self.frames > 0


class Loop:
    """An event loop whose turns a test takes."""

    def __init__(self) -> None:
        self.scheduled: list[Callable[[], None]] = []
        self.log: list[str] = []
        self.now = 1.0
        self.turns = TurnQueue(self.scheduled.append, lambda: self.now)

    def turn(self) -> list[str]:
        """One turn of the loop: the roles whose frames were handled."""
        del self.log[:]
        scheduled, self.scheduled[:] = list(self.scheduled), []
        for work in scheduled:
            work()
        return list(self.log)

    def flood(self, role: str, frames: int = 1_000) -> Flood:
        flood = Flood(role, frames, self.log)
        self.turns.handle_now_or_enqueue(flood)
        return flood


def test_a_few_frames_are_handled_at_once() -> None:
    loop = Loop()
    flood = loop.flood("a", 2)
    assert flood.frames == 0
    assert not loop.scheduled


def test_a_flood_is_handled_a_little_in_each_turn_of_the_loop() -> None:
    loop = Loop()
    loop.flood("a")
    for _ in range(10):
        assert len(loop.turn()) <= TURN_SECONDS / FRAME_SECONDS
    assert len(loop.scheduled) == 1


def test_a_role_with_many_connections_has_the_share_of_one() -> None:
    loop = Loop()
    for _ in range(50):
        loop.flood("many")
    loop.flood("one")
    handled = [role for _ in range(40) for role in loop.turn()]
    assert 0.4 <= handled.count("one") / len(handled) <= 0.6


def test_many_connections_at_once_share_what_is_handled_at_once() -> None:
    loop = Loop()
    floods = [loop.flood(str(number), 1) for number in range(50)]
    assert sum(not flood.frames for flood in floods) <= TURN_SECONDS / FRAME_SECONDS
    while loop.scheduled:
        loop.turn()
    assert not any(flood.frames for flood in floods)


def test_a_worker_that_has_ended_is_forgotten() -> None:
    loop = Loop()
    first, second = loop.flood("a"), loop.flood("a")
    before = first.frames
    loop.turns.remove(first)
    loop.turns.remove(second)
    loop.turns.remove(second)
    loop.turn()
    assert first.frames == before
    assert not loop.scheduled
