"""What goes wrong meanwhile: services die, stop and end, links to the database break, requests to the store fail."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Sequence

from tests.faults.histories.actors import Tally
from tests.faults.histories.services import LONGEST_STOP_SECONDS, Service
from tests.faults.s3_proxy import Answer, CutBody, NoAnswer, Silence, What, WireFault
from tests.servers.cut_link import Cut

_STORE_FAULTS: list[What] = [Answer(500, "InternalError"), Answer(503, "SlowDown"), CutBody(), NoAnswer(), Silence()]


class Disturber:
    """One fault after the other, until the end; at most one service is stopped at a time."""

    def __init__(
        self, services: Sequence[Service], ended: threading.Event, chance: random.Random, tally: Tally
    ) -> None:
        self._services = services
        self._ended = ended
        self._chance = chance
        self._tally = tally
        self._cuts = sum(service.link.cuts for service in services)

    def run(self, seconds: float) -> None:
        """For so long at most."""
        deadline = time.monotonic() + seconds
        while not self._ended.is_set() and (remaining := deadline - time.monotonic()) > 0:
            fault, weight = zip(*self._faults(remaining), strict=True)
            (chosen,) = self._chance.choices(fault, weight)
            chosen()
            self._ended.wait(min(self._chance.expovariate(1 / 1.5), max(0.0, deadline - time.monotonic())))

    def _faults(self, left: float) -> list[tuple[Callable[[], None], float]]:
        return [
            (self._kill, 4),
            (self._kill_all, 0.5),
            (self._end, 1),
            (lambda: self._stop(self._chance.uniform(0.5, 5)), 3),
            (lambda: self._stop(min(left, self._chance.uniform(16, 25))), 0.5 if left > 20 else 0),
            (lambda: self._stop(LONGEST_STOP_SECONDS), 0.3 if left > LONGEST_STOP_SECONDS else 0),
            (self._cut_commit, 8),
            (self._sever, 3),
            (self._spoil_store, 6),
        ]

    def calm(self) -> None:
        """Nothing fails any more: links hold, the store answers, every service runs."""
        for service in self._services:
            service.go_on()
            service.link.restore()
            service.link.disarm()
            service.s3.spoil()
            if not service.is_alive:
                service.start()
        for service in self._services:
            service.wait_until_it_answers()
        cuts = sum(service.link.cuts for service in self._services)
        self._tally.add("COMMITs cut", cuts - self._cuts)
        self._cuts = cuts

    def _kill(self) -> None:
        self._again([self._chance.choice(self._services)], signal.SIGKILL)

    def _kill_all(self) -> None:
        self._again(self._services, signal.SIGKILL)

    def _end(self) -> None:
        self._again([self._chance.choice(self._services)], signal.SIGTERM)

    def _again(self, services: Sequence[Service], how: signal.Signals) -> None:
        for service in services:
            service.end(how)
            self._tally.add(how.name)
        self._ended.wait(self._chance.choice([0, 0.5, 3]))
        for service in services:
            service.start()
        if self._chance.random() < 0.8:  # else it may be killed while it starts
            for service in services:
                service.wait_until_it_answers()

    def _stop(self, seconds: float) -> None:
        service = self._chance.choice(self._services)
        service.stop()
        self._tally.add("SIGSTOP" if seconds < 16 else "SIGSTOP beyond a lease")
        self._ended.wait(seconds)
        service.go_on()

    def _cut_commit(self) -> None:
        for service in self._services:
            if self._chance.random() < 0.6:
                service.link.cut(self._chance.choice([Cut.BEFORE, Cut.AFTER, Cut.AFTER]))

    def _sever(self) -> None:
        service = self._chance.choice(self._services)
        service.link.sever()
        self._tally.add("database severed")
        self._ended.wait(self._chance.choice([0, 0.3, 2, 5]))
        service.link.restore()

    def _spoil_store(self) -> None:
        service = self._chance.choice(self._services)
        faults = [
            WireFault(
                self._chance.choice(_STORE_FAULTS),
                self._chance.choice(["GET", "PUT", "POST", "HEAD", "DELETE"]),
                nth=self._chance.randint(1, 3),
                times=self._chance.choice([1, 2, 20]),
            )
            for _ in range(3)
        ]
        service.s3.spoil(*faults)
        self._ended.wait(self._chance.uniform(1, 6))
        self._tally.add("store faults met", service.s3.met)
        service.s3.spoil()
