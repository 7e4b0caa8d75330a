"""Seals rolled segments beside their writer, in a process of its own: one topic's, or all of a log directory.

The process is started when there is something to seal, so a writer that never rolls pays nothing, and again if it has
died. It ends with its writer, also with one that is killed: it holds one end of a pipe, and the system closes the other
one. It can be killed at any moment itself: a segment is sealed or it is not (storage/log/log_manager.py). What it
leaves, the next writer's, a compaction or `compactor log seal` seals. A topic that is deleted meanwhile is left alone.

An error is printed on standard error, or a line of the service's log, once; the work is tried again `RETRY_SECONDS`
later, and the writer continues.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType

from api.cli.kit.failures import describe
from api.cli.kit.stderr import say
from api.components import open_for_writing
from api.observability import logs
from api.settings.settings import Settings
from storage.environment import Environment
from storage.errors import TopicNotFound
from storage.log.log_manager import LogManager
from storage.metadata.records import SegmentState, TopicRecord
from storage.model import TopicName

LOG = logging.getLogger(__name__)
POLL_SECONDS = 1.0
"""How often it checks whether something was rolled, or a file's time is over."""
RETRY_SECONDS = 30.0
"""When it looks again after something went wrong: what is damaged is not read every second."""


class BackgroundSealer:
    """A context manager; `wake` starts the process, the end of the context lets it finish what it is at.

    `name` None: all topics that have segments in the log directory.
    """

    def __init__(self, settings: Settings, name: TopicName | None) -> None:
        self._settings = settings
        self._name = name
        self._context = multiprocessing.get_context("spawn")
        self._lock = threading.Lock()
        self._process: multiprocessing.process.BaseProcess | None = None
        self._writer_lives: Connection | None = None
        """Our end of the pipe: closed, it tells the process to end."""

    def __enter__(self) -> BackgroundSealer:
        return self

    def wake(self) -> None:
        """There is something to seal. Called from any thread. Raises OSError if no process can be started now."""
        with self._lock:
            if self._process is not None and self._process.is_alive():
                return
            self._end()
            theirs, self._writer_lives = self._context.Pipe(duplex=False)
            arguments = (self._settings, None if self._name is None else str(self._name), theirs)
            process = self._context.Process(target=seal_until, args=arguments, name="sealer", daemon=True)
            try:
                process.start()
            except BaseException:
                self._writer_lives.close()
                raise
            finally:
                theirs.close()
            self._process = process

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._process is not None and self._writer_lives is not None:
            self._writer_lives.close()
            self._process.join()
            self._process = None


def seal_until(settings: Settings, name: str | None, stop: Connection) -> None:
    """Seal and sweep until the other end of `stop` is closed, and once more then, if the writer lives.

    An error is printed or logged once, and the work is tried again. `name` None: of all topics in the log directory,
    for a service, whose log it writes.
    """
    if name is None:
        logs.configure(settings)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the writer hears of Ctrl-C, and ends us
    writer = multiprocessing.parent_process()
    report = _Once("sealing", LOG.warning) if name is None else _Once(f"compactor: sealing {name}", say)
    try:
        with open_for_writing(settings) as environment:
            sealing = _Sealing(environment, lambda: writer is None or writer.is_alive())
            if name is None:
                sealing.until(stop, sealing.seal_all, report)
            else:
                topic = environment.metadata.topics.get(TopicName.parse(name))
                sealing.until(stop, lambda _: sealing.seal_and_sweep(topic), report)
    except Exception as error:  # the writer continues, and starts another one when it rolls again
        report(error)


class _Sealing:
    """What the process does. Of many topics, one that failed is left alone for a while; the others have their turn."""

    def __init__(self, environment: Environment, writer_lives: Callable[[], bool]) -> None:
        self._environment = environment
        self._writer_lives = writer_lives
        self._again_at: dict[int, int] = {}
        self._reports: dict[int, _Once] = {}

    def until(self, stop: Connection, seal: Callable[[bool], None], report: _Once) -> None:
        """`seal` is told whether it is the last time."""
        wait, last = POLL_SECONDS, False
        while not last:
            last = stop.poll(wait)
            wait = POLL_SECONDS
            try:
                seal(last)
            except Exception as error:  # whatever it is: later it may go
                report(error)
                wait = RETRY_SECONDS

    def seal_and_sweep(self, topic: TopicRecord) -> None:
        self._seal(topic)
        if self._writer_lives():
            LogManager(self._environment).sweep(topic)

    def seal_all(self, last: bool) -> None:
        """What is rolled in this log directory; files are swept by the service's maintenance."""
        here = self._environment.log.known_uid
        if here is None:
            return
        for topic in self._environment.metadata.segments.topics_with([SegmentState.ROLLED], here):
            wait = self._again_at.get(topic.id, 0) - self._environment.clock.now_ms()
            if last or not 0 < wait <= RETRY_SECONDS * 1000:  # longer: the clock was set back
                self._seal_alone(topic)

    def _seal_alone(self, topic: TopicRecord) -> None:
        self._again_at.pop(topic.id, None)
        try:
            self._seal(topic)
        except TopicNotFound:
            return  # deleted; what is left of it is swept
        except Exception as error:  # whatever it is: others can be sealed, and this one later
            self._reports.setdefault(topic.id, _Once(f"sealing {topic.name}", LOG.warning))(error)
            self._again_at[topic.id] = self._environment.clock.now_ms() + int(RETRY_SECONDS * 1000)

    def _seal(self, topic: TopicRecord) -> None:
        sealing = LogManager(self._environment).seal(topic)
        while self._writer_lives() and next(sealing, None) is not None:
            pass


class _Once:
    """Writes each error once."""

    def __init__(self, about: str, write: Callable[[str], object]) -> None:
        self._about = about
        self._write = write
        self._printed = ""

    def __call__(self, error: Exception) -> None:
        line = describe(error).replace("compactor: ", f"{self._about}: ", 1)
        if line != self._printed:
            self._printed = line
            self._write(line)
