"""A sweep of a log directory: files that ledgers have replaced, that deleted topics left, that no row names.

    sealed segment           its file is removed after `file.delete.delay`, then its row
    folder of a deleted      is removed after `file.delete.delay`, with all its content (S8)
      topic
    file without a row       is removed if it is empty; if it holds messages, it is adopted or set aside
                             (orphan_segments.py)

Safe beside writers, readers, sealers and other sweepers. A file that cannot be removed stops nothing else. Errors:
Unavailable and Misconfigured of the database. Must not know: the adoption of segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from storage.environment import Environment
from storage.errors import CompactorError, ErrorText, LeaseHeld, TopicNotFound
from storage.failpoints import Failpoint, failpoint
from storage.file_modes import sync_folder
from storage.log.orphan_segments import files_set_aside, holds_data, segment_sizes_by_offset, set_aside_files
from storage.log.segment import SegmentPaths
from storage.metadata.policy_store import enclosing_scope
from storage.metadata.records import TopicRecord


@dataclass(frozen=True)
class LogSweep:
    """A sweep that removes files of a log directory that are no longer needed. `adopt`: lets a topic adopt the segments
    that the database has lost."""

    environment: Environment
    adopt: Callable[[TopicRecord], object]

    def remove_files(self, topic: TopicRecord | None, errors: dict[str, ErrorText]) -> int:
        """Remove the unneeded segment files of one topic, or of all if `topic` is None; return the number of segments.

        `errors` receives the reasons for files that stay, by the topic's name, or by uid for a deleted topic.
        """
        uid = self.environment.log.known_uid
        if uid is None:
            return 0
        removed = 0
        now = self.environment.clock.now_ms()
        resolver = self.environment.metadata.policies.resolver()
        for owner, segment in self.environment.metadata.sealing.removable_segments(
            uid, now, topic.id if topic else None
        ):
            delay = resolver.resolve(owner).policies.file_delete_delay_ms
            if segment.sealed_at is not None and segment.sealed_at <= now - delay:
                with _collecting_disk_errors(str(owner.name), errors):
                    files = SegmentPaths(self.environment.log.topic_folder(owner.uid), segment.first_offset)
                    files.remove()
                    if files.folder.is_dir():
                        sync_folder(files.folder)  # a file that a power cut restores must still have its row
                    failpoint(Failpoint.SEGMENT_FILE_REMOVED)
                    with suppress(TopicNotFound):  # the topic was deleted meanwhile, and its rows with it
                        self.environment.metadata.sealing.purge_segment(owner.id, segment.ledger_id)
                    failpoint(Failpoint.SEGMENT_FORGOTTEN)
                    removed += 1
        if topic is None:
            living = {each.uid: each for each in self.environment.metadata.topics.all()}
            for folder in self.environment.log.topic_folders():
                owner_now = living.get(folder.name)
                with _collecting_disk_errors(str(owner_now.name) if owner_now else folder.name, errors):
                    if owner_now is not None:
                        removed += self._sweep_files_without_row(owner_now, errors)
                    else:
                        removed += self._remove_deleted_topic(folder, now, errors)
        return removed

    def _remove_deleted_topic(self, folder: Path, now: int, failed: dict[str, ErrorText]) -> int:
        """Remove the files of a topic that was deleted long enough ago, and then its folder; return the number of
        segments.

        A folder of a topic that the database has never had is another database's, and stays. A writer that does not
        know of the deletion yet may create the folder again; then the next sweep removes it.
        """
        deleted = self.environment.metadata.tenancy.deleted_topic(folder.name)
        if deleted is None:
            return 0
        policies = self.environment.metadata.policies.policies_inherited_from(enclosing_scope(deleted.name)).policies
        if deleted.deleted_at > now - policies.file_delete_delay_ms:
            return 0
        removed = 0
        for first in segment_sizes_by_offset(folder):
            with _collecting_disk_errors(folder.name, failed):
                SegmentPaths(folder, first).remove()
                removed += 1
            failpoint(Failpoint.DELETED_SEGMENT_REMOVED)
        with suppress(FileNotFoundError):  # another sweeper removed it
            for file in files_set_aside(folder):
                with _collecting_disk_errors(folder.name, failed):
                    file.unlink(missing_ok=True)
        with suppress(OSError):  # it holds a foreign file, or a writer has just created one
            folder.rmdir()
        return removed

    def _sweep_files_without_row(self, topic: TopicRecord, failed: dict[str, ErrorText]) -> int:
        """Remove empty segment files below the topic's end that no database row names; return their number.

        Files that hold messages are kept (orphan_segments.py): from the topic's end on they are adopted, below it set
        aside. The end is older than the list of files, and that is older than the rows that are checked: so any file
        that a live writer creates is at or after the end, and has a row before it holds messages.
        """
        folder = self.environment.log.topic_folder(topic.uid)
        sizes = segment_sizes_by_offset(folder)
        named = {segment.first_offset for segment in self.environment.metadata.segments.of_topic(topic.id)}
        removed = 0
        for first, size in sizes.items():
            files = SegmentPaths(folder, first)
            if first in named or (first >= topic.next_offset and not holds_data(size)):
                continue
            with _collecting_disk_errors(str(topic.name), failed):
                if first >= topic.next_offset:
                    self._try_to_adopt(topic, failed)
                elif not holds_data(size):
                    files.remove()
                    removed += 1
                elif files.log.exists():
                    kept = set_aside_files(files)
                    failed[str(topic.name)] = ErrorText(
                        f"{files.log} holds messages and has no row, so the database must be older than the log; it "
                        f"was renamed to {kept.name} (docs/operations.md)"
                    )
        return removed

    def _try_to_adopt(self, topic: TopicRecord, failed: dict[str, ErrorText]) -> None:
        try:
            self.adopt(topic)
        except (LeaseHeld, TopicNotFound):
            pass  # a writer has adopted them when it began; or the topic was deleted
        except CompactorError as error:
            failed[str(topic.name)] = ErrorText.from_error(error)


@contextmanager
def _collecting_disk_errors(owner: str, failed: dict[str, ErrorText]) -> Iterator[None]:
    """Record an OSError inside the context in `failed`, by `owner`, instead of raising it, so that the sweep
    continues."""
    try:
        yield
    except OSError as error:
        failed.setdefault(owner, ErrorText(f"{error.filename or 'a file'}: {error.strerror or error}"))
