"""A background thread that sends heartbeats for its owner.

Used for writer leases and for runs. A beat that fails because the owner was fenced, or its topic deleted (S8), ends the
heart and calls `on_fenced`; one that fails otherwise (the database is away) is tried again at the next heartbeat.
Losing the right to work is not decided here but where it counts: the commit checks token or epoch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from storage.errors import Fenced, TopicNotFound


class Heartbeat:
    """A context manager: inside it, `beat` is called every `seconds`; `on_fenced` if a beat raises Fenced."""

    def __init__(
        self, beat: Callable[[], object], seconds: float, on_fenced: Callable[[], object] = lambda: None
    ) -> None:
        self._beat = beat
        self._seconds = seconds
        self._on_fenced = on_fenced
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            try:
                self._beat()
            except (Fenced, TopicNotFound):
                self._on_fenced()
                return
            except Exception:  # noqa: S112  a heartbeat that stops at the first fault would lose its owner's work
                continue

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
