"""Faults of a round: services die, stop and end; links to the database break; requests to the store and calls to the
disk fail. Chance picks one after the other."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Sequence

from tests.faults.engine.report import Report
from tests.faults.engine.schedule import choose
from tests.faults.histories.services import LONGEST_STOP_SECONDS, Service
from tests.faults.s3_proxy import Answer, CutBody, NoAnswer, Silence, What, WireFault
from tests.servers.cut_link import Cut

_STORE_FAULTS: list[What] = [Answer(500, "InternalError"), Answer(503, "SlowDown"), CutBody(), NoAnswer(), Silence()]


class Disturber:
    """One fault after the other, until the end; at most one service is stopped at a time."""

    def __init__(
        self, services: Sequence[Service], ended: threading.Event, chance: random.Random, report: Report
    ) -> None:
        self._services = services
        self._ended = ended
        self._chance = chance
        self._report = report
        self._cuts = sum(service.link.cuts for service in services)
        self._disk_faults = sum(service.disk.met for service in services)

    def run(self, seconds: float) -> None:
        """Disturb for so long at most."""
        deadline = time.monotonic() + seconds
        while not self._ended.is_set() and (remaining := deadline - time.monotonic()) > 0:
            choose(self._chance, self._faults(remaining))()
            self._ended.wait(min(self._chance.expovariate(1 / 1.5), max(0.0, deadline - time.monotonic())))

    def _faults(self, remaining: float) -> list[tuple[Callable[[], None], float]]:
        has_disk_faults = self._services[0].disk.library is not None
        return [
            (self._kill, 4),
            (self._kill_all, 0.7),
            (self._end, 1),
            (lambda: self._stop(self._chance.uniform(0.5, 5)), 3),
            (lambda: self._stop(min(remaining, self._chance.uniform(16, 25))), 0.5 if remaining > 20 else 0),
            (lambda: self._stop(LONGEST_STOP_SECONDS), 0.3 if remaining > LONGEST_STOP_SECONDS else 0),
            (self._cut_commit, 8),
            (self._sever, 3),
            (self._spoil_store, 5),
            (self._spoil_disk, 3 if has_disk_faults else 0),
        ]

    def calm(self) -> None:
        """End all faults: links hold, store and disks answer, every service runs."""
        for service in self._services:
            service.go_on()
            service.link.restore()
            service.link.disarm()
            service.s3.spoil()
            service.disk.turn_off()
            if not service.is_alive:
                service.start()
        for service in self._services:
            service.wait_until_it_answers()
        self._report.count("COMMITs cut", sum(service.link.cuts for service in self._services) - self._cuts)
        self._report.count("disk faults", sum(service.disk.met for service in self._services) - self._disk_faults)

    def _kill(self) -> None:
        self._restart([self._chance.choice(self._services)], signal.SIGKILL)

    def _kill_all(self) -> None:
        self._restart(self._services, signal.SIGKILL)

    def _end(self) -> None:
        self._restart([self._chance.choice(self._services)], signal.SIGTERM)

    def _restart(self, services: Sequence[Service], how: signal.Signals) -> None:
        for service in services:
            self._report.note(f"{service.name}: {how.name}")
            service.end(how)
            self._report.count(how.name)
        self._ended.wait(self._chance.choice([0, 0.5, 3]))
        for service in services:
            service.start()
        if self._chance.random() < 0.8:  # else it may be killed while it starts
            for service in services:
                service.wait_until_it_answers()
                self._report.note(f"{service.name} answers again")

    def _stop(self, seconds: float) -> None:
        service = self._chance.choice(self._services)
        service.stop()
        self._report.count("SIGSTOP" if seconds < 16 else "SIGSTOP beyond a lease")
        self._report.note(f"{service.name} stopped for {seconds:.1f} s")
        self._ended.wait(seconds)
        service.go_on()

    def _cut_commit(self) -> None:
        for service in self._services:
            if self._chance.random() < 0.6:
                when = self._chance.choice([Cut.BEFORE, Cut.AFTER, Cut.AFTER])
                service.link.cut(when)
                self._report.note(f"{service.name}: the next COMMIT is cut {when.name}")

    def _sever(self) -> None:
        service = self._chance.choice(self._services)
        service.link.sever()
        self._report.count("database severed")
        seconds = self._chance.choice([0, 0.3, 2, 5])
        self._report.note(f"{service.name}: no database for {seconds} s")
        self._ended.wait(seconds)
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
        self._report.count("store faults", service.s3.met)
        self._report.note(f"{service.name}: {service.s3.met} store faults of {faults}")
        service.s3.spoil()

    def _spoil_disk(self) -> None:
        service = self._chance.choice(self._services)
        before = service.disk.met
        service.disk.turn_on()
        self._ended.wait(self._chance.uniform(1, 6))
        service.disk.turn_off()
        self._report.note(f"{service.name}: {service.disk.met - before} disk faults")
