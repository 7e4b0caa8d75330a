"""The keys that tokens are checked with, read again while the service runs: rotation and revocation.

Keys, JWKS and the list of revoked tokens are in files. Every `auth.reload-interval` after the last check the next
request checks, in its own thread, whether one of them has changed (its inode, time or size), and reads that one
again. The list of revoked tokens comes first, and counts at once. A file that cannot be read or used changes nothing:
its previous content stays valid, and the log reports it, until it is right again; the other files are still read.
One check runs at a time, and a request waits `WAIT_MS` for it and no longer: a file that hangs (NFS) holds one
thread, and delays one request.

The list of revoked tokens has one id (the claim `jti`) a line; `#` begins a comment. Must not know: HTTP.
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
from api.http.tokens import TokenKey, TokenVerifier, file_of, key_sources, revoked_tokens
from api.settings.settings import Settings
from storage.clock import Clock
from storage.errors import Misconfigured

LOG = logging.getLogger(__name__)
WAIT_MS = 1000
"""How long the request that checks waits for the check."""
Content = TypeVar("Content")


class _Source(Generic[Content]):
    """Keys or ids, from the place that a setting names; `content` is what was read of them last."""

    def __init__(self, value: str, read: Callable[[], Content]) -> None:
        """Raises Misconfigured."""
        self.file = file_of(value)
        self._read = read
        self._stamp = stamp_of(self.file)
        self._said = ""
        self.content = read()

    def check(self) -> bool:
        """Read the file again if it has changed; whether it was."""
        stamp = stamp_of(self.file)  # before it is read: what changes meanwhile is read again the next time
        if stamp == self._stamp:
            return False
        try:
            self.content = self._read()
        except Exception as error:  # a fault of a file is not a fault of the request that checks
            if str(error) != self._said:
                self._said = str(error)
                defect = None if isinstance(error, Misconfigured) else error
                LOG.warning("what was read before stays valid: %s", error, exc_info=defect)
            return False
        self._stamp, self._said = stamp, ""
        LOG.info("read again: %s", self.file)
        return True


class TokenKeyReloader:
    """A verifier that follows its files. Safe to share between threads."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        """Raises Misconfigured for keys that cannot be used."""
        self._clock = clock
        self._interval_ms = settings.auth_reload_interval_ms
        self._keys = [_Source(value, read) for value, read in key_sources(settings)]
        listed = settings.auth_revoked_tokens_file
        self._revoked: _Source[frozenset[str]] | None = None
        if listed:
            self._revoked = _Source(listed, lambda: revoked_tokens(listed))
        self._has_files = listed != "" or any(key.file is not None for key in self._keys)
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

    async def keep_up(self) -> None:
        """Check the files, in a thread, if that is due; the check may outlast this call."""
        if not self.is_due():
            return
        loop = asyncio.get_running_loop()
        result = loop.create_future()

        def check() -> None:
            self.check()
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(result.cancel)

        try:
            threading.Thread(target=check, name="token-keys", daemon=True).start()
        except RuntimeError as error:  # no thread is left: a later request checks
            LOG.warning("the files of keys cannot be checked: %s", error)
            self._ended()
            return
        await asyncio.wait({result}, timeout=WAIT_MS / 1000)

    def is_due(self) -> bool:
        """Return whether the files are due for a check now; true for one caller, which then calls `check`."""
        with self._lock:
            waited = self._clock.now_ms() - self._checked_at
            if not self._has_files or self._checking or 0 <= waited < self._interval_ms:
                return False
            self._checking = True
            return True

    def check(self) -> None:
        """Read again each file that has changed."""
        try:
            if self._revoked is not None and self._revoked.check():
                self.verifier = replace(self.verifier, revoked=self._revoked.content)
            for key in self._keys:
                if key.check():
                    self.verifier = replace(self.verifier, keys=self._all_keys())
        finally:
            self._ended()

    def _ended(self) -> None:
        with self._lock:
            self._checking, self._checked_at = False, self._clock.now_ms()

    def _all_keys(self) -> list[TokenKey]:
        return [key for item in self._keys for key in item.content]
