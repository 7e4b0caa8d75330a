"""Reloading of the service's certificate while it runs: renewal needs no restart.

Every `tls.reload-interval` a thread checks whether one of the two files has changed, and loads both into the contexts
in use: new connections get the new certificate, others keep theirs. Files that do not match, or cannot be read, change
nothing: the previous certificate stays in use, the log reports the fault, and the next check tries again. Must not
know: sockets.
"""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Sequence
from pathlib import Path

from api.http.file_stamps import Stamp, stamp_of

LOG = logging.getLogger(__name__)


class CertificateReloader:
    """A thread that loads the files of a certificate and its key into TLS contexts again when a file has changed."""

    def __init__(self, certificate: str, key: str, contexts: Sequence[ssl.SSLContext], interval_ms: int) -> None:
        """`contexts`: those in use, with the present certificate."""
        self._files = Path(certificate), Path(key)
        self._contexts = contexts
        self._interval_seconds = interval_ms / 1000
        self._stamps = self._current_stamps()
        self._reported = ""
        self._ends = threading.Event()

    def start(self) -> None:
        """Start the thread, a daemon, because a file system may hang."""
        threading.Thread(target=self._reload_until_stopped, name="certificates", daemon=True).start()

    def stop(self) -> None:
        """End the thread; a check in progress is completed."""
        self._ends.set()

    def reload_if_changed(self) -> bool:
        """Load the files into the contexts if one has changed. Return whether they were loaded. A fault is logged once,
        and raises nothing."""
        stamps = self._current_stamps()
        if stamps == self._stamps:
            return False
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(*self._files)
            for context in self._contexts:
                context.load_cert_chain(*self._files)
        except (OSError, ValueError) as error:  # SSLError is an OSError
            reason = (
                f"the certificate {self._files[0]} and the key {self._files[1]} cannot be loaded ({error}): the "
                "previous ones stay in use until both files are valid"
            )
            if reason != self._reported:
                self._reported = reason
                LOG.warning(reason)
            return False
        self._stamps, self._reported = stamps, ""
        LOG.info("the certificate %s was read again", self._files[0])
        return True

    def _reload_until_stopped(self) -> None:
        while not self._ends.wait(self._interval_seconds):
            self.reload_if_changed()

    def _current_stamps(self) -> tuple[Stamp, Stamp]:
        certificate, key = self._files
        return stamp_of(certificate), stamp_of(key)
