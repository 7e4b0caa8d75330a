"""The directory of the unsealed segments on this machine: `<directory>/<topic uid>/<first offset>.log`, and its
identity.

A file `log.uid` holds 32 hex digits that were drawn when the directory was created. Rows of segments carry them, so a
directory that was mistyped, lost, or belongs to another machine is an error, and never taken for an empty log.

Errors: Misconfigured, if the directory cannot be created or read; SegmentNotLocal, for a segment in another directory.
Must not know: SQL, frames.
"""

from __future__ import annotations

import os
import re
import secrets
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from storage.errors import Misconfigured, SegmentNotLocal
from storage.file_modes import create_private_folder, file_mode_in, sync_folder
from storage.log.committers import Committers
from storage.log.decode_budget import DecodeBudget
from storage.log.log_space import LogSpaceLimit
from storage.metadata.records import SegmentRecord
from storage.model import TopicName

UID_FILE = "log.uid"
_UID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class LogDirectory:
    """The log directory of this machine, at `path`. It is created with its first file.

    `wake_sealer`: wakes the process that seals large segments, so that this process cannot run out of memory; None:
    there is none, and any process may seal them. `has_preparation`: that process encodes open segments in advance
    (prepared_segments.py). `roll_open`: rolls the log of a topic id, if it is open in this process, and waits for that
    for a number of milliseconds; returns whether the segment was rolled; None: logs are open in another process.
    `space_limit`: the limits of appends; None: the disk is the limit.
    """

    path: Path
    wake_sealer: Callable[[], object] | None = field(default=None, compare=False)
    roll_open: Callable[[int, int], bool] | None = field(default=None, compare=False)
    space_limit: LogSpaceLimit | None = field(default=None, compare=False)
    has_preparation: bool = field(default=False, compare=False)
    lost_ids_reserved: threading.Event = field(default_factory=threading.Event, compare=False, repr=False)
    """Set when this process has reserved the ledger ids of files that the database has lost (ledger_id_recovery.py)."""
    decoding: DecodeBudget = field(default_factory=DecodeBudget, compare=False, repr=False)
    """The bound on what all reads of this process hold of decoded large entries."""
    committers: Committers = field(default_factory=Committers, compare=False, repr=False)
    """The threads that commit the appends of all open segments."""

    @cached_property
    def uid(self) -> str:
        """The directory's identity in rows; the directory is created if it does not exist. Raises Misconfigured."""
        try:
            return self.known_uid or self._create_uid()
        except OSError as error:
            raise Misconfigured(
                f"the log directory {self.path} cannot be used ({error.strerror})",
                "set COMPACTOR_LOG to a directory on a local disk that can be written",
            ) from error

    @property
    def known_uid(self) -> str | None:
        """The directory's identity in rows; None: the directory was never written to. Raises Misconfigured.

        The file is read once: requests compare rows with the uid in threads that must not wait for this disk.
        """
        if "uid" not in self.__dict__ and (uid := self._read_uid()) is not None:
            self.__dict__["uid"] = uid  # where `cached_property` keeps it
        return self.__dict__.get("uid")

    def check_space(self) -> None:
        """Raise StorageFull if the directory has no room for appends now."""
        if self.space_limit is not None:
            self.space_limit.check()

    @property
    def is_known_to_have_space(self) -> bool:
        """True if the directory has room for appends, as far as that is known without waiting for the disk."""
        return self.space_limit is None or self.space_limit.is_known_to_have_space

    def topic_folder(self, topic_uid: str) -> Path:
        """Return the path of the folder of a topic's segments. The folder need not exist."""
        return self.path / topic_uid

    def topic_folders(self) -> list[Path]:
        """Return the existing folders of topics, also of deleted ones, by uid. A folder's name is the topic's uid."""
        if not self.path.is_dir():
            return []
        return sorted(folder for folder in self.path.iterdir() if _UID.fullmatch(folder.name) and folder.is_dir())

    def check_is_local(self, topic: TopicName, segment: SegmentRecord) -> None:
        """Raise SegmentNotLocal unless the segment is in this log directory. `topic`: for the error's text."""
        uid = self._read_uid()
        if segment.log_uid != uid:
            end = "on" if segment.content is None else f"to {segment.content.last_offset}"
            raise SegmentNotLocal(
                f"messages of {topic} from offset {segment.first_offset} {end} are not sealed yet: the segment "
                f"{segment.ledger_id} is in the log directory {segment.log_uid}",
                f"use the machine, and the COMPACTOR_LOG, with which they were written: {self.path} is "
                f"{uid or 'not one that was written to'}; if they are lost, see docs/operations.md",
            )

    def _read_uid(self) -> str | None:
        """Return the uid in the directory's file; None: there is no such file. Raises Misconfigured for other
        content."""
        file = self.path / UID_FILE
        try:
            uid = file.read_text()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not _UID.fullmatch(uid):
            raise Misconfigured(
                f"{file} holds {uid[:40]!r}, not 32 hex digits",
                "restore it: every segment's row in the database names the uid (table segments, column log_uid)",
            )
        return uid

    def _create_uid(self) -> str:
        """Create the directory and a file with a new uid, durably, unless another process was first; return the uid
        that the file has."""
        missing = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        create_private_folder(self.path)
        for folder in {self.path, *missing}:  # the first also if its creator died before this
            sync_folder(folder.parent)
        temporary = self.path / f"{UID_FILE}.{secrets.token_hex(8)}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, file_mode_in(self.path))
        with os.fdopen(descriptor, "w") as handle:
            handle.write(secrets.token_hex(16))
            handle.flush()
            os.fsync(handle.fileno())
        with suppress(FileExistsError):
            os.link(temporary, self.path / UID_FILE)
        temporary.unlink()
        sync_folder(self.path)
        uid = self._read_uid()
        assert uid is not None, "it was just written"
        return uid
