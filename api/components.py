"""Construction of the components that settings describe. Heavy libraries are imported only where they are used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from api.settings.settings import Settings
from storage.errors import Misconfigured, ObjectMissing, Unavailable

if TYPE_CHECKING:
    from storage.clock import Clock
    from storage.environment import Environment
    from storage.log.directory import LogDirectory
    from storage.metadata.store import MetadataStore
    from storage.objects.interface import ObjectStore
    from storage.store_trial import StoreTrial


@contextmanager
def open_environment(settings: Settings) -> Iterator[Environment]:
    """Yield an environment with the database, the object store and the log directory of `settings`. They are closed at
    the end of the context.

    The embedded database is upgraded to the newest schema. Any other must have been upgraded by `compactor db upgrade`.
    For readers: nothing is created in the store. If an object is missing because the store belongs to another database,
    the error says so. Raises Misconfigured, Unavailable.
    """
    with closing(open_metadata(settings)) as metadata:
        if settings.is_database_embedded:
            metadata.upgrade()
        else:
            metadata.check_schema()
        metadata.ensure_reserve()
        with closing(open_object_store(settings)) as store:
            from storage.clock import SystemClock
            from storage.environment import Environment

            clock = SystemClock()
            try:
                yield Environment(metadata, store, clock, _log_directory(settings, metadata, clock))
            except ObjectMissing:
                from storage.store_identity import StoreIdentity

                StoreIdentity(metadata, store).check()
                raise


@contextmanager
def open_for_reading(settings: Settings) -> Iterator[Environment]:
    """Yield an environment for a command that only reads, as `open_environment` does. Nothing is created.

    Raises Misconfigured if the embedded database does not exist.
    """
    _check_database_exists(settings)
    with open_environment(settings) as environment:
        yield environment


@contextmanager
def open_existing_for_writing(settings: Settings, *, dry_run: bool = False) -> Iterator[Environment]:
    """Yield an environment for a command that changes existing topics, as `open_for_writing` does. No database is
    created.

    `dry_run`: write nothing, but refuse what the change would refuse. Raises Misconfigured if the embedded database
    does not exist.
    """
    _check_database_exists(settings)
    with open_for_writing(settings, dry_run=dry_run) as environment:
        yield environment


def _check_database_exists(settings: Settings) -> None:
    """Raise Misconfigured if the settings choose the embedded database and its file does not exist."""
    if settings.is_database_embedded and not settings.embedded_database_file.exists():
        raise Misconfigured(
            f"the data directory {settings.data_directory} has no database",
            "set --data or COMPACTOR_DATA to the directory that has it; importing to a topic, producing to one or "
            "creating one makes a new database",
        )


@contextmanager
def open_for_writing(settings: Settings, *, dry_run: bool = False) -> Iterator[Environment]:
    """Yield an environment for a writer, as `open_environment` does. Raises Misconfigured unless the object store
    belongs to the database.

    If neither was used before, the two are bound to each other; with `dry_run` they are not. The check costs one small
    GET. A store that is unavailable now is checked again before the first write to it: appends need no store.
    """
    with open_environment(settings) as environment:
        from storage.store_identity import StoreIdentity

        identity = StoreIdentity(environment.metadata, environment.store)
        with suppress(Unavailable):
            identity.check() if dry_run else identity.check_or_bind()
        yield environment


def store_trial(settings: Settings, environment: Environment) -> StoreTrial:
    """Return the trial that the object store must pass before a service writes to it. The trial is not run yet."""
    from storage.store_trial import StoreTrial

    return StoreTrial(environment.metadata, environment.store, settings.limits_request_timeout_ms / 1000)


def _log_directory(settings: Settings, metadata: MetadataStore, clock: Clock) -> LogDirectory:
    """Return the log directory of the settings, with its limits of disk space and its threads for commits."""
    from storage.log.committers import Committers
    from storage.log.directory import LogDirectory
    from storage.log.log_space import LogSpaceLimit

    bare = LogDirectory(settings.log_directory)

    def rolled_bytes() -> int:
        uid = bare.known_uid
        return metadata.segments.rolled_bytes(uid) if uid is not None else 0

    room = LogSpaceLimit(
        clock,
        bare.path,
        rolled_bytes,
        max_rolled_bytes=settings.limits_rolled_bytes,
        min_free_bytes=settings.limits_log_free_bytes,
    )
    return replace(bare, space_limit=room, committers=Committers(settings.threads_commit))


def open_metadata(settings: Settings) -> MetadataStore:
    """Open the database of the settings, whatever its schema version, and return it. The caller closes it. Raises
    Misconfigured."""
    from storage.clock import SystemClock
    from storage.metadata.store import MetadataStore

    if settings.is_database_embedded:
        settings.make_data_directory()
    run_dead_ms = settings.compaction_run_dead_after_ms
    return MetadataStore(settings.database_url, SystemClock(), settings.policies, run_dead_ms)


def open_object_store(settings: Settings) -> ObjectStore:
    """Open the object store of the settings, and return it. The caller closes it. Raises Misconfigured."""
    from storage.objects.interface import StoreLocation
    from storage.objects.registry import open_store

    if not settings.store:
        settings.make_data_directory()
    return open_store(StoreLocation(settings.store_url, settings.s3_endpoint or None))
