"""The keys that tokens are checked with, looked at again while the service runs: rotation and revocation.

Keys, JWKS and the list of revoked tokens stand in files. Every `auth.reload-interval` the next request looks, in a
thread, whether one of them has changed (its inode, time or size), and then all are read again. What cannot be read or
used changes nothing: the keys of before go on to count, and the log says so, until the files are right again.

The list of revoked tokens has one id (the claim `jti`) a line; `#` begins a comment. Must not know: HTTP.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path

from api.settings import Settings
from api.tokens import Verifier, file_of
from storage.clock import Clock
from storage.errors import Misconfigured

LOG = logging.getLogger(__name__)
_Stamps = tuple[tuple[int, int, int] | None, ...]


class TokenKeys:
    """A verifier that follows its files. Safe to share between threads."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        """Raises Misconfigured for keys that cannot be used."""
        self._settings = settings
        self._clock = clock
        named = (
            settings.auth_token_secret_key,
            settings.auth_token_public_key,
            settings.auth_jwks_file,
            settings.auth_revoked_tokens_file,
        )
        self._files = [path for one in named if one and (path := file_of(one)) is not None]
        self._stamps = self._stamped()
        self.verifier = Verifier.of(settings, clock)
        self._looked_at = clock.now_ms()
        self._said = ""

    def is_due(self) -> bool:
        """Whether the files are to be looked at now; it is said to one who asks, who then calls `look`."""
        now = self._clock.now_ms()
        if not self._files or 0 <= now - self._looked_at < self._settings.auth_reload_interval_ms:
            return False
        self._looked_at = now
        return True

    def look(self) -> None:
        """Read the files again if one has changed."""
        stamps = self._stamped()  # before they are read: what changes meanwhile is read again the next time
        if stamps == self._stamps:
            return
        try:
            self.verifier = Verifier.of(self._settings, self._clock)
        except Exception as error:  # whatever is wrong with a file, the request that looks is not
            if str(error) != self._said:
                self._said = str(error)
                defect = None if isinstance(error, Misconfigured) else error
                LOG.warning("the keys of before go on to count: %s", error, exc_info=defect)
            return
        self._stamps, self._said = stamps, ""
        LOG.info("keys of tokens, and revoked tokens, were read again")

    def _stamped(self) -> _Stamps:
        return tuple(map(_stamp, self._files))


def _stamp(file: Path) -> tuple[int, int, int] | None:
    with suppress(OSError):
        found = file.stat()
        return found.st_ino, found.st_mtime_ns, found.st_size
    return None
