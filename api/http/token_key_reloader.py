"""Reloading of the keys that verify tokens, while the service runs: for rotation and revocation.

Keys, JWKS and the list of revoked tokens are files. The first request after each `auth.reload-interval` checks, in a
thread of its own, whether a file has changed (its inode, time or size), and reads it again. The list of revoked tokens
is checked first, and takes effect at once. A file that cannot be read or used changes nothing: its previous content
stays valid and the log reports the fault, until the file is valid again; the other files are read nevertheless. One
check runs at a time, and a request waits for it at most `WAIT_MS`: a file system that hangs (NFS) blocks one thread
and delays one request.

Must not know: HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Generic, TypeVar

from api.http.file_stamps import stamp_of
from api.http.tokens import TokenKey, TokenVerifier, key_sources, named_file, read_revoked_token_ids
from api.settings.settings import Settings
from storage.clock import Clock
from storage.errors import Misconfigured

LOG = logging.getLogger(__name__)
WAIT_MS = 1000
"""The time that the request which starts a check waits for it."""
Content = TypeVar("Content")


class _ReloadableContent(Generic[Content]):
    """The keys or token ids that a setting names, which are read again when their file changes. `content`: the result
    of the last successful read."""

    def __init__(self, value: str, read: Callable[[], Content]) -> None:
        """Read the content. Raise Misconfigured."""
        self.file = named_file(value)
        self._read = read
        self._stamp = stamp_of(self.file)
        self._reported = ""
        self.content = read()

    def reload_if_changed(self) -> bool:
        """Read the file again if it has changed. Return whether it was read. A fault is logged once, and raises
        nothing."""
        stamp = stamp_of(self.file)  # before the read, so that a change meanwhile is noticed the next time
        if stamp == self._stamp:
            return False
        try:
            self.content = self._read()
        except Exception as error:  # a fault of a file is not a fault of the request that checks
            if str(error) != self._reported:
                self._reported = str(error)
                defect = None if isinstance(error, Misconfigured) else error
                LOG.warning("what was read before stays valid: %s", error, exc_info=defect)
            return False
        self._stamp, self._reported = stamp, ""
        LOG.info("read again: %s", self.file)
        return True


class TokenKeyReloader:
    """The token verifier (`verifier`), which is replaced when a file of keys or of revoked tokens changes. Safe to
    share between threads."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        """Read all files. Raise Misconfigured for keys that cannot be used."""
        self._clock = clock
        self._interval_ms = settings.auth_reload_interval_ms
        self._keys = [_ReloadableContent(value, read) for value, read in key_sources(settings)]
        revoked_file = settings.auth_revoked_tokens_file
        self._revoked: _ReloadableContent[frozenset[str]] | None = None
        if revoked_file:
            self._revoked = _ReloadableContent(revoked_file, lambda: read_revoked_token_ids(revoked_file))
        self._has_files = revoked_file != "" or any(key.file is not None for key in self._keys)
        self.verifier = TokenVerifier(
            self._all_keys(),
            clock,
            settings.auth_role_claim,
            settings.auth_audience,
            settings.auth_leeway_ms,
            frozenset() if self._revoked is None else self._revoked.content,
        )
        self._lock = threading.Lock()
        self._checking = False
        self._checked_at = clock.now_ms()

    async def reload_if_due(self) -> None:
        """Read changed files again, in a thread, if a check of the files is due. Return after at most `WAIT_MS`; the
        check may take longer."""
        if not self.claim_due_check():
            return
        loop = asyncio.get_running_loop()
        result = loop.create_future()

        def check() -> None:
            self.reload_changed_files()
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(result.cancel)

        try:
            threading.Thread(target=check, name="token-keys", daemon=True).start()
        except RuntimeError as error:  # no thread is left: a later request checks
            LOG.warning("the files of keys cannot be checked: %s", error)
            self._end_check()
            return
        await asyncio.wait({result}, timeout=WAIT_MS / 1000)

    def claim_due_check(self) -> bool:
        """Return whether a check of the files is due, and mark it as running. True is returned to one caller, which
        must then call `reload_changed_files`."""
        with self._lock:
            waited = self._clock.now_ms() - self._checked_at
            if not self._has_files or self._checking or 0 <= waited < self._interval_ms:
                return False
            self._checking = True
            return True

    def reload_changed_files(self) -> None:
        """Read again each file of keys or revoked tokens that has changed. A file that cannot be used is logged, and
        its previous content stays valid."""
        try:
            if self._revoked is not None and self._revoked.reload_if_changed():
                self.verifier = replace(self.verifier, revoked=self._revoked.content)
            for key in self._keys:
                if key.reload_if_changed():
                    self.verifier = replace(self.verifier, keys=self._all_keys())
        finally:
            self._end_check()

    def _end_check(self) -> None:
        """Mark the check of the files as ended now."""
        with self._lock:
            self._checking, self._checked_at = False, self._clock.now_ms()

    def _all_keys(self) -> list[TokenKey]:
        return [key for item in self._keys for key in item.content]
