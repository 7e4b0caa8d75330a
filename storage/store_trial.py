"""Trial of an object store before a service trusts it with messages: once for each database and location.

The trial is `ObjectStore.check_capabilities`: some 200 requests, a second or two. The database keeps the locations that
passed (the table `store_trials`), so later starts and other services make no request. A store that is copied to another
server has another location, and is tried there. A newer release of a server at the same location is not tried again:
`ObjectStore.check_capabilities` may be called at any time.

Errors: Misconfigured, if the store breaks a promise; Unavailable; any error of the database.
"""

from __future__ import annotations

from dataclasses import dataclass

from storage.metadata.store import MetadataStore
from storage.objects.interface import ObjectStore, StoreLocation


@dataclass(frozen=True)
class StoreTrial:
    """The trial of one store for one database. `silence_seconds`: the longest wait for an answer to a request."""

    metadata: MetadataStore
    store: ObjectStore
    silence_seconds: float

    def try_unless_passed(self) -> bool:
        """Try the store unless it has passed its trial before; return whether it was tried now.

        Raises Misconfigured if it breaks a promise, Unavailable.
        """
        binding, location = self.metadata.store_binding, location_text(self.store.location)
        if binding.has_passed_trial(location):
            return False
        bounded = self.store.with_timeout(self.silence_seconds)
        try:
            bounded.check_capabilities().require()
        finally:
            if bounded is not self.store:
                bounded.close()
        binding.record_passed_trial(location)
        return True


def location_text(location: StoreLocation) -> str:
    """Return the location of a store as one line of text, unique by server, bucket and prefix."""
    return location.url if location.s3_endpoint is None else f"{location.url} at {location.s3_endpoint}"
