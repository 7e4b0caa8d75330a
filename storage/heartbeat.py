"""A background thread that sends heartbeats for its owner.

Used for writer leases and for runs. A heartbeat that fails because the owner was fenced, or its topic deleted (S8),
ends the thread and calls `on_fenced`; after any other failure (no database) the next heartbeat is sent as usual. The
thread does not decide whether its owner may continue: each commit checks token or epoch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from storage.errors import Fenced, TopicNotFound


class Heartbeat:
    """A context manager that calls `beat` every `seconds`, in a thread, first after `seconds`.

    If `beat` raises Fenced or TopicNotFound, `on_fenced` is called once and the heartbeats end; other errors are
    ignored.
    """

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

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
