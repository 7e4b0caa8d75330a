"""The topic that a command appends to, and what the command says about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Self, TypeVar

from api.cli.kit.stderr import report_topic_created, say
from storage.errors import CompactorError, NotFound, TopicNotFound

if TYPE_CHECKING:
    from storage.environment import Environment
    from storage.errors import LeaseHeld
    from storage.log.bulk_append import BulkAppend
    from storage.metadata.records import Lease
    from storage.model import TopicName
    from storage.topic import Topic as OpenTopic


Writer = TypeVar("Writer")

WAIT_SECONDS = 30
"""Maximum wait for another writer, in seconds."""


def with_file_name(message: str, file: str) -> str:
    """Return a message about a file with the file's name in front, unless the message contains it. `file` `-`: standard
    input."""
    name = "standard input" if file == "-" else file
    return message if name in message else f"{name}: {message}"


class AppendTarget:
    """The topic that a command appends to: created if it does not exist. A context manager.

    At its end it reports the creation. After a failure, or always unless `keeps_unused`, it deletes a topic that it
    created and that was not used, and reports what stays: the topic if it was used, else a tenant and namespace that
    were created with it.
    """

    def __init__(self, environment: Environment, name: TopicName, *, keeps_unused: bool = True) -> None:
        """Raises Unavailable or Conflict if the topic's backlog exceeds a quota that refuses producers, InvalidInput
        for a partition that its partitioned topic does not have."""
        self._environment = environment
        self._name = name
        self._keeps_unused = keeps_unused
        self._created_scopes = _missing_scopes(environment, name)
        self._find_or_create_topic()

    def _find_or_create_topic(self) -> None:
        """Find the topic by its name, or create it with its tenant and namespace, and check its backlog quota."""
        from api.broker import names
        from compactor.maintenance.backlog_limits import BacklogLimits
        from storage.topic import Topic as OpenTopic

        existing = self._environment.metadata.topics.by_names([self._name]).get(self._name)
        record = existing or names.ensure_with_namespace(self._environment, self._name)
        self._is_new = existing is None
        BacklogLimits(self._environment).check_accepts_messages(record)
        self.topic = OpenTopic(self._environment, record)

    @contextmanager
    def hold_writer(self, open_writer: Callable[[OpenTopic], AbstractContextManager[Writer]]) -> Iterator[Writer]:
        """Hold the writer of the topic inside the context. `open_writer`: waits for the topic's lease.

        A topic that was deleted before the writer had its lease is created again: a failed command that created the
        topic deletes it, also while others wait for its lease.
        """
        with ExitStack() as stack:
            while True:
                try:
                    writer = stack.enter_context(open_writer(self.topic))
                    break
                except TopicNotFound:
                    self._find_or_create_topic()
            yield writer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        if not self._is_new:
            return
        if (failure is None and self._keeps_unused) or not self._delete_if_unused():
            report_topic_created(self._name)
            return
        if failure is None:
            say(f"The topic {self._name} does not exist: without messages it is not created")
        if self._created_scopes:
            after = "" if failure is None else " after the failure"
            say(f"The {' and the '.join(self._created_scopes)} did not exist: created, and kept{after}")

    def _delete_if_unused(self) -> bool:
        """Delete the topic if it was not used. Return whether it does not exist any more; the caller reports it if
        it does."""
        try:
            return self._environment.metadata.tenancy.delete_unused_topic(self.topic.record.id)
        except CompactorError:
            return False


def _missing_scopes(environment: Environment, name: TopicName) -> list[str]:
    """Return the tenant and namespace of a topic, as texts, as far as they do not exist."""
    tenancy, namespace = environment.metadata.tenancy, f"{name.tenant}/{name.namespace}"
    missing = []
    for scope, find in (
        (f"tenant {name.tenant}", lambda: tenancy.tenant(name.tenant)),
        (f"namespace {namespace}", lambda: tenancy.namespace(namespace)),
    ):
        try:
            find()
        except NotFound:
            missing.append(scope)
    return missing


def lease_wait_reporter(max_seconds: int) -> Callable[[LeaseHeld], object]:
    """Return a callback that reports that another writer has the topic. `max_seconds`: the longest wait, for the
    message."""
    return lambda held: say(f"compactor: {held.message}: waiting for it to end, for {max_seconds} s at most")


@contextmanager
def bulk_writer(topic: OpenTopic, ledger_bytes: int) -> Iterator[tuple[BulkAppend, Lease]]:
    """Hold the topic's lease inside the context; yield the writer of sealed ledgers, and the lease to append under."""
    writer = topic.bulk_append(
        ledger_bytes=ledger_bytes, wait_ms=WAIT_SECONDS * 1000, on_held=lease_wait_reporter(WAIT_SECONDS)
    )
    with writer.lease() as lease:
        yield writer, lease
