"""Environment: the components that every part of a process uses, as one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from storage.clock import Clock
    from storage.log.directory import LogDirectory
    from storage.metadata.store import MetadataStore
    from storage.objects.interface import ObjectStore


@dataclass(frozen=True)
class Environment:
    """The components that code is handed: open database and object store, clock, directory of the unsealed segments."""

    metadata: MetadataStore
    store: ObjectStore
    clock: Clock
    log: LogDirectory
