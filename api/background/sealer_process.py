"""Seals rolled segments beside their writer, in a process of its own: one topic's, or all of a log directory.

The process is started when there is something to seal, or to prepare (storage/log/prepared_segments.py), so a writer
of little pays nothing, and again if it has died. It ends with its writer, also with one that is killed: it holds one
end of a pipe, and the system closes the other one. It can be killed at any moment itself: a segment is sealed or it is
not (storage/log/log_manager.py). What it leaves, the next writer's, a compaction or `compactor log seal` seals. A topic
that is deleted meanwhile is left alone.

An error is printed on standard error, or a line of the service's log, once; the work is tried again `RETRY_SECONDS`
later, and the writer continues.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import TypeAlias

from api.components import open_for_writing
from api.observability import logs
from api.observability.error_text import one_line
from api.settings.settings import Settings
from storage.environment import Environment
from storage.errors import CompactorError, TopicNotFound
from storage.log.log_manager import LogManager
from storage.log.prepared_segments import PreparedSegments
from storage.metadata.records import SegmentState, TopicActiveSegment, TopicRecord
from storage.model import LedgerRecord, TopicName

LOG = logging.getLogger(__name__)
POLL_SECONDS = 1.0
"""Interval at which the process checks whether a segment was rolled, or a file is due for removal, unless it is
woken."""
RETRY_SECONDS = 30.0
"""Delay after an error, so that a damaged segment is not read every second."""
_WAKE = b"w"
_TOPIC_ID = struct.Struct(">q")
_TOPICS_AT_ONCE = 1_000
"""Topics of which the process notes that they have grown; of more, it notes nothing until they have grown again."""
HasMore: TypeAlias = bool
"""The result of a call that seals: whether another call may find more to seal."""
IsRunning: TypeAlias = bool
"""The result of a message to the process: whether the process runs."""


class BackgroundSealer:
    """The owner of the sealing process, as a context manager.

    `wake` starts the process. The end of the context waits until the process has sealed the rolled segments
    and ended.

    `topic`: None: all topics that have segments in the log directory. `report_error`: receives each error as text for a
    person, and can be pickled; None: errors are logged.
    """

    def __init__(
        self, settings: Settings, topic: TopicName | None, report_error: Callable[[str], object] | None = None
    ) -> None:
        self._settings = settings
        self._report_error = report_error
        self._topic = topic
        self._context = multiprocessing.get_context("spawn")
        self._lock = threading.Lock()
        self._process: multiprocessing.process.BaseProcess | None = None
        self._writer_lives: Connection | None = None
        """Our end of the pipe: closed, it tells the process to end."""

    def __enter__(self) -> BackgroundSealer:
        return self

    def wake(self) -> None:
        """Let the process check for rolled segments at once; start it if it does not run. Callable from any thread.

        Raises OSError if no process can be started now.
        """
        with self._lock:
            if self._send_if_running(_WAKE):
                return
            self._stop_process()
            theirs, self._writer_lives = self._context.Pipe(duplex=False)
            os.set_blocking(self._writer_lives.fileno(), False)
            arguments = (self._settings, None if self._topic is None else str(self._topic), theirs, self._report_error)
            process = self._context.Process(target=seal_until_stopped, args=arguments, name="sealer", daemon=True)
            try:
                process.start()
            except BaseException:
                self._writer_lives.close()
                raise
            finally:
                theirs.close()
            self._process = process

    def report_log_growth(self, topic_id: int) -> IsRunning:
        """Report to the process that the log of a topic has grown, so that it prepares the active segment.

        Return False if the process does not run. Callable from any thread.
        """
        with self._lock:
            return self._send_if_running(_TOPIC_ID.pack(topic_id))

    def _send_if_running(self, message: bytes) -> IsRunning:
        """Send a message to the process. Return False if the process does not run.

        A message that finds no room is dropped: the process checks for rolled segments every second. For the holder of
        the lock.
        """
        if self._process is None or self._writer_lives is None or not self._process.is_alive():
            return False
        with suppress(BrokenPipeError, BlockingIOError):  # it ends now; it has many messages
            self._writer_lives.send_bytes(message)
        return True

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._stop_process()

    def _stop_process(self) -> None:
        """Close the pipe to the process, and wait until the process has ended. For the holder of the lock."""
        if self._process is not None and self._writer_lives is not None:
            self._writer_lives.close()
            self._process.join()
            self._process = None


def seal_until_stopped(
    settings: Settings, topic_name: str | None, stop: Connection, report_error: Callable[[str], object] | None = None
) -> None:
    """Run the sealing process: seal rolled segments until the other end of `stop` is closed, then the remaining ones,
    if the writer lives.

    `topic_name`: the topic, whose old files are removed, too; None: all topics of the log directory, for a service, to
    whose log the process writes. `report_error`: as in `BackgroundSealer`. The work is tried again after an error; a
    repeated error is reported once.
    """
    if topic_name is None:
        logs.configure(settings)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the writer hears of Ctrl-C, and ends us
    writer = multiprocessing.parent_process()
    if report_error is None:
        report = _ErrorRepeatFilter("sealing", LOG.warning)
    else:
        report = _ErrorRepeatFilter(f"compactor: sealing {topic_name}", report_error)
    try:
        with open_for_writing(settings) as environment:
            prepared = PreparedSegments(environment.log, environment.clock, settings.maintenance_prepared_bytes)
            sealing = SegmentSealer(environment, lambda: writer is None or writer.is_alive(), prepared)
            if topic_name is None:
                sealing.repeat_until_stopped(stop, sealing.seal_one_per_topic, report)
            else:
                topic = environment.metadata.topics.get(TopicName.parse(topic_name))

                def seal_topic(_: bool) -> HasMore:
                    sealing.seal_and_sweep(topic)
                    return False

                sealing.repeat_until_stopped(stop, seal_topic, report)
    except Exception as error:  # the writer continues, and starts another one when it rolls again
        report(error)


class SegmentSealer:
    """The loop of the sealing process, and the functions that seal a segment.

    Topics take turns, a segment each, so a topic with many segments delays no other. A topic that failed waits for
    `RETRY_SECONDS`. Active segments that grow are prepared while there is nothing to seal. `writer_lives`: returns
    whether the writer's process lives; otherwise no segment is sealed.
    """

    def __init__(self, environment: Environment, writer_lives: Callable[[], bool], prepared: PreparedSegments) -> None:
        self._environment = environment
        self._writer_lives = writer_lives
        self._prepared = prepared
        self._preparing = _SegmentPreparer(environment, prepared)
        self._is_woken = False
        self._again_at: dict[int, int] = {}
        self._reports: dict[int, _ErrorRepeatFilter] = {}
        self._turns: dict[int, Iterator[LedgerRecord]] = {}
        """Topics that have had a turn and may have more to seal."""

    def repeat_until_stopped(
        self, stop: Connection, seal: Callable[[bool], HasMore], report: Callable[[Exception], object]
    ) -> None:
        """Call `seal` repeatedly until the other end of `stop` is closed, and then until it has sealed everything.

        `seal`: gets True after the end of `stop`. `report` gets the errors of `seal`. A wake does not shorten the wait
        after an error.
        """
        wait, last, more = POLL_SECONDS, False, False
        while not last:
            last = self._wait_for_close(stop, wait, or_message=wait != RETRY_SECONDS)
            try:
                if last or more or self._is_woken or not self._preparing.has_more:
                    self._is_woken = False
                    more = seal(last)
                    while more and last:
                        more = seal(last)
                wait = 0.0 if more or (not last and self._prepare_next_segment()) else POLL_SECONDS
            except Exception as error:  # whatever it is: later it may go
                report(error)
                wait = RETRY_SECONDS

    def _wait_for_close(self, writer: Connection, seconds: float, *, or_message: bool) -> bool:
        """Wait at most `seconds` until the writer closes its end of the pipe, or with `or_message` sends a message.

        Messages are processed. Return whether the pipe is closed.
        """
        clock = self._environment.clock
        end = clock.now_ms() + seconds * 1000
        remaining = seconds
        while writer.poll(remaining):
            try:
                self._process_message(writer.recv_bytes())
            except EOFError:
                return True
            remaining = 0.0 if or_message else min(seconds, max(0.0, (end - clock.now_ms()) / 1000))
        return False

    def _process_message(self, message: bytes) -> None:
        """Note what the writer reports: that a segment may be rolled, or the id of a topic whose log has grown."""
        if message == _WAKE:
            self._is_woken = True
        else:
            self._preparing.queue_topic(_TOPIC_ID.unpack(message)[0])

    def _prepare_next_segment(self) -> HasMore:
        """Prepare a part of one active segment, if the writer lives. Return whether more topics wait."""
        return self._writer_lives() and self._preparing.prepare_next_segment()

    def seal_and_sweep(self, topic: TopicRecord) -> None:
        """Seal all rolled segments of a topic, and remove its old files."""
        while self._seal_next_segment(topic):
            pass
        if self._writer_lives():
            LogManager(self._environment).remove_sealed_files(topic)

    def seal_one_per_topic(self, retry_failed: bool) -> HasMore:
        """Seal one segment of each topic that has a rolled segment in this log directory. Return whether any was
        sealed.

        `retry_failed`: also try topics that failed less than `RETRY_SECONDS` ago. No file is removed: the service's
        maintenance does that. Errors of a topic are logged.
        """
        log_uid = self._environment.log.known_uid
        if log_uid is None:
            return False
        topics = self._environment.metadata.segments.topics_with_segments([SegmentState.ROLLED], log_uid)
        sealed = False
        for topic in topics:
            wait = self._again_at.get(topic.id, 0) - self._environment.clock.now_ms()
            if retry_failed or not 0 < wait <= RETRY_SECONDS * 1000:  # longer: the clock was set back
                sealed |= self._try_seal_next_segment(topic)
        listed = {topic.id for topic in topics}
        self._turns = {topic_id: turn for topic_id, turn in self._turns.items() if topic_id in listed}
        return sealed

    def _try_seal_next_segment(self, topic: TopicRecord) -> bool:
        """Seal one segment of a topic. Return whether one was sealed. An error is logged, and the topic waits for
        `RETRY_SECONDS`."""
        self._again_at.pop(topic.id, None)
        try:
            return self._seal_next_segment(topic)
        except TopicNotFound:
            return False  # deleted; what is left of it is swept
        except Exception as error:  # whatever it is: others can be sealed, and this one later
            self._reports.setdefault(topic.id, _ErrorRepeatFilter(f"sealing {topic.name}", LOG.warning))(error)
            self._again_at[topic.id] = self._environment.clock.now_ms() + int(RETRY_SECONDS * 1000)
            return False

    def _seal_next_segment(self, topic: TopicRecord) -> bool:
        """Seal the oldest rolled segment of a topic. Return whether there was one."""
        if not self._writer_lives():
            return False
        turn = self._turns.pop(topic.id, None) or LogManager(self._environment, prepared=self._prepared).seal(topic)
        self._preparing.discard_cached_segment(topic.id)
        if next(turn, None) is None:
            return False
        self._turns[topic.id] = turn
        return True


class _SegmentPreparer:
    """The preparation of active segments for their sealing: topics that have grown take turns, a part each.

    Methods raise nothing.
    """

    def __init__(self, environment: Environment, prepared: PreparedSegments) -> None:
        self._environment = environment
        self._prepared = prepared
        self._turns: dict[int, bool] = {}
        """Topics that have grown, by id, in the order of their turns; True: no part of this growth is prepared yet."""
        self._rows: dict[int, TopicActiveSegment] = {}
        """The SQL rows of the active segments that were prepared last, by topic id."""
        self._report = _ErrorRepeatFilter("preparing open segments", LOG.warning)

    @property
    def has_more(self) -> bool:
        """True if a topic waits for its turn."""
        return bool(self._turns)

    def queue_topic(self, topic_id: int) -> None:
        """Queue a topic whose active segment has grown, unless `_TOPICS_AT_ONCE` are queued."""
        if len(self._turns) < _TOPICS_AT_ONCE:
            self._turns[topic_id] = True

    def discard_cached_segment(self, topic_id: int) -> None:
        """Remove a topic's active segment from the cache: the topic's next turn reads it from SQL again."""
        self._rows.pop(topic_id, None)

    def prepare_next_segment(self) -> HasMore:
        """Prepare a part of the active segment of the next queued topic. Return whether more topics wait.

        An error is logged; the segment is then sealed from its file.
        """
        if not self._turns:
            return False
        topic_id = next(iter(self._turns))
        is_new = self._turns.pop(topic_id)
        try:
            active = self._rows.get(topic_id) or self._load_active_segment(topic_id)
            if active is not None and active.open is not None and self._prepared.extend(active.topic, active.open):
                self._turns[topic_id] = False
            elif is_new:
                self.discard_cached_segment(topic_id)  # it may have another open segment now
        except (CompactorError, OSError) as error:  # its sealer or readers report it
            LOG.debug("the open segment of topic %d is not prepared: %s", topic_id, error)
            self.discard_cached_segment(topic_id)
        except Exception as error:  # whatever it is, segments must be sealed
            self._report(error)
            self.discard_cached_segment(topic_id)
        return self.has_more

    def _load_active_segment(self, topic_id: int) -> TopicActiveSegment | None:
        """Read the active segment of a topic from SQL into the cache, and return it; None: it is not in this log
        directory."""
        for active in self._environment.metadata.segments.active_segments([topic_id]):
            if active.open is not None and active.open.log_uid == self._environment.log.known_uid:
                if len(self._rows) >= _TOPICS_AT_ONCE:
                    self._rows.clear()
                self._rows[topic_id] = active
                return active
        return None


class _ErrorRepeatFilter:
    """A writer of errors that leaves out an error equal to the last one."""

    def __init__(self, about: str, write: Callable[[str], object]) -> None:
        self._about = about
        self._write = write
        self._printed = ""

    def __call__(self, error: Exception) -> None:
        line = f"{self._about}: {one_line(error)}"
        if line != self._printed:
            self._printed = line
            self._write(line)
