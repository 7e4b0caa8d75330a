"""Sweeping a log directory: files that ledgers have taken the place of, that deleted topics left, that no row names.

    sealed segment           its file goes after `file.delete.delay`, then its row
    folder of a deleted      goes after `file.delete.delay`, whatever it holds (S8)
      topic
    file without a row       goes if it holds nothing; if it holds messages, it is taken up again or set aside
                             (orphan_segments.py)

Safe beside writers, readers, sealers and other sweepers. What cannot be removed holds up nothing else.
May go wrong: Unavailable and Misconfigured of the database. Must not know: how segments are taken up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from storage.environment import Environment
from storage.errors import CompactorError, LeaseHeld, TopicNotFound
from storage.failpoints import Failpoint, failpoint
from storage.log.directory import sync_folder
from storage.log.orphan_segments import files_set_aside, holds_data, segments_in, set_aside
from storage.log.segment import SegmentPaths
from storage.metadata.policy_store import namespace_scope
from storage.metadata.records import TopicRecord


@dataclass(frozen=True)
class LogSweep:
    """Sweeps a log directory. `take_up` lets a topic have again what the database has lost of its log."""

    environment: Environment
    take_up: Callable[[TopicRecord], object]

    def sweep(self, topic: TopicRecord | None, failed: dict[str, str]) -> int:
        """Remove what may go, of one topic or of all; how many segments. `failed`: why something stays, by topic."""
        uid = self.environment.log.known_uid
        if uid is None:
            return 0
        removed = 0
        now = self.environment.clock.now_ms()
        resolver = self.environment.metadata.policies.resolver()
        for owner, segment in self.environment.metadata.sealing.files(uid, now, topic.id if topic else None):
            delay = resolver.resolved(owner).policies.file_delete_delay_ms
            if segment.sealed_at is not None and segment.sealed_at <= now - delay:
                with _noted(str(owner.name), failed):
                    files = SegmentPaths(self.environment.log.of_topic(owner.uid), segment.first_offset)
                    files.remove()
                    if files.folder.is_dir():
                        sync_folder(files.folder)  # a file that a power cut brings back must find its row
                    failpoint(Failpoint.SEGMENT_FILE_REMOVED)
                    with suppress(TopicNotFound):  # deleted meanwhile, and its rows with it
                        self.environment.metadata.sealing.purge(owner.id, segment.ledger_id)
                    failpoint(Failpoint.SEGMENT_FORGOTTEN)
                    removed += 1
        if topic is None:
            living = {each.uid: each for each in self.environment.metadata.topics.all()}
            for folder in self.environment.log.topic_folders():
                owner_now = living.get(folder.name)
                with _noted(str(owner_now.name) if owner_now else folder.name, failed):
                    if owner_now is not None:
                        removed += self._remove_orphans(owner_now, failed)
                    else:
                        removed += self._remove_deleted(folder, now, failed)
        return removed

    def _remove_deleted(self, folder: Path, now: int, failed: dict[str, str]) -> int:
        """The files of a topic that was deleted long enough ago, and then its folder; how many segments.

        A folder of a topic that the database has never had is another database's, and stays. A writer that has not
        heard yet may make the folder again; then the next sweep removes it.
        """
        deleted = self.environment.metadata.tenancy.deleted_topic(folder.name)
        if deleted is None:
            return 0
        scope = namespace_scope(f"{deleted.name.tenant}/{deleted.name.namespace}")
        policies = self.environment.metadata.policies.resolved_around(scope).policies
        if deleted.deleted_at > now - policies.file_delete_delay_ms:
            return 0
        removed = 0
        for first in segments_in(folder):
            with _noted(folder.name, failed):
                SegmentPaths(folder, first).remove()
                removed += 1
            failpoint(Failpoint.DELETED_SEGMENT_REMOVED)
        with suppress(FileNotFoundError):  # another sweeper was here
            for file in files_set_aside(folder):
                with _noted(folder.name, failed):
                    file.unlink(missing_ok=True)
        with suppress(OSError):  # something that is not ours is in it, or a writer has just made a file
            folder.rmdir()
        return removed

    def _remove_orphans(self, topic: TopicRecord, failed: dict[str, str]) -> int:
        """Files that no row names: those below the topic's end whose writer died before the row; how many.

        Those that hold messages are kept (orphan_segments.py): from the topic's end on they are taken up again, below
        it set aside. The end is older than the list of files, and that older than the rows that are checked: so
        whatever a live writer makes is at or behind the end, and has a row before it holds anything.
        """
        folder = self.environment.log.of_topic(topic.uid)
        found = segments_in(folder)
        named = {segment.first_offset for segment in self.environment.metadata.segments.of_topic(topic.id)}
        removed = 0
        for first, size in found.items():
            files = SegmentPaths(folder, first)
            if first in named or (first >= topic.next_offset and not holds_data(size)):
                continue
            with _noted(str(topic.name), failed):
                if first >= topic.next_offset:
                    self._try_to_take_up(topic, failed)
                elif not holds_data(size):
                    files.remove()
                    removed += 1
                elif files.log.exists():
                    kept = set_aside(files)
                    failed[str(topic.name)] = (
                        f"{files.log} holds messages and has no row, so the database must be older than the log; it "
                        f"was renamed to {kept.name} (docs/operations.md)"
                    )
        return removed

    def _try_to_take_up(self, topic: TopicRecord, failed: dict[str, str]) -> None:
        try:
            self.take_up(topic)
        except (LeaseHeld, TopicNotFound):
            pass  # a writer is at work, and has done so when it began; or the topic was deleted
        except CompactorError as error:
            failed[str(topic.name)] = str(error)


@contextmanager
def _noted(owner: str, failed: dict[str, str]) -> Iterator[None]:
    """What a disk refuses inside is noted for `owner`, and nothing else stops for it."""
    try:
        yield
    except OSError as error:
        failed.setdefault(owner, f"{error.filename or 'a file'}: {error.strerror or error}")
