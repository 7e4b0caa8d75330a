"""Makes the components that settings describe. Heavy libraries are imported only when what needs them is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from api.settings.settings import Settings
from storage.errors import ObjectMissing, Unavailable

if TYPE_CHECKING:
    from storage.clock import Clock
    from storage.environment import Environment
    from storage.log.directory import LogDirectory
    from storage.metadata.store import MetadataStore
    from storage.model import TopicName
    from storage.objects.interface import ObjectStore
    from storage.store_trial import StoreTrial
    from storage.topic import Topic


@contextmanager
def open_environment(settings: Settings) -> Iterator[Environment]:
    """Open what `settings` name; closed at the end of the context.

    The embedded database is upgraded to the newest schema automatically; any other must have been, by
    `compactor db upgrade`. For readers: nothing is made in the store. If an object is
    missing because the store is another one, the error states it.
    """
    metadata = open_metadata(settings)
    try:
        if settings.embedded_database:
            metadata.upgrade()
        else:
            metadata.check_schema()
        metadata.keep_reserve()
        store = open_object_store(settings)
        try:
            from storage.clock import SystemClock
            from storage.environment import Environment

            clock = SystemClock()
            try:
                yield Environment(metadata, store, clock, _log_directory(settings, metadata, clock))
            except ObjectMissing:
                from storage.store_identity import StoreIdentity

                StoreIdentity(metadata, store).check()
                raise
        finally:
            store.close()
    finally:
        metadata.close()


@contextmanager
def open_for_writing(settings: Settings) -> Iterator[Environment]:
    """Open the environment for a writer. Raises Misconfigured unless the store is the database's.

    One small GET. A store that is unavailable now is checked again before the first write to it: appends need no store.
    """
    with open_environment(settings) as environment:
        from storage.store_identity import StoreIdentity

        with suppress(Unavailable):
            StoreIdentity(environment.metadata, environment.store).require()
        yield environment


def store_trial(settings: Settings, environment: Environment) -> StoreTrial:
    """Return the trial that the store must pass before a service uses it."""
    from storage.store_trial import StoreTrial

    return StoreTrial(environment.metadata, environment.store, settings.limits_request_timeout_ms / 1000)


def _log_directory(settings: Settings, metadata: MetadataStore, clock: Clock) -> LogDirectory:
    from storage.log.directory import LogDirectory
    from storage.log.log_space import LogSpace

    bare = LogDirectory(settings.log_directory)

    def rolled_bytes() -> int:
        uid = bare.known_uid
        return metadata.segments.rolled_bytes(uid) if uid is not None else 0

    room = LogSpace(
        clock,
        bare.path,
        rolled_bytes,
        max_rolled_bytes=settings.limits_rolled_bytes,
        min_free_bytes=settings.limits_log_free_bytes,
    )
    return replace(bare, room=room)


def open_topic(environment: Environment, name: TopicName) -> Topic:
    """The topic of that name. Raises TopicNotFound."""
    from storage.topic import Topic

    return Topic(environment, environment.metadata.topics.get(name))


def ensure_topic(
    environment: Environment, name: TopicName, on_missing: Callable[[TopicName], object] = lambda _: None
) -> Topic:
    """The topic of that name, created if it does not exist; `on_missing` is called before that."""
    from storage.errors import TopicNotFound
    from storage.topic import Topic

    try:
        environment.metadata.topics.get(name)
    except TopicNotFound:
        on_missing(name)
    return Topic(environment, environment.metadata.tenancy.ensure_topic(name))


def open_metadata(settings: Settings) -> MetadataStore:
    """The database, with any schema."""
    from storage.clock import SystemClock
    from storage.metadata.store import MetadataStore

    if settings.embedded_database:
        settings.make_data_directory()
    run_dead_ms = settings.compaction_run_dead_after_ms
    return MetadataStore(settings.database_url, SystemClock(), settings.policies, run_dead_ms)


def open_object_store(settings: Settings) -> ObjectStore:
    """The object store."""
    from storage.objects.interface import StoreLocation
    from storage.objects.registry import open_store

    if not settings.store:
        settings.make_data_directory()
    return open_store(StoreLocation(settings.store_url, settings.s3_endpoint or None))
