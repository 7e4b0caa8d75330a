"""Ownership of topics among the services of one database: the service that must execute a request.

    a write   the service in whose log directory the topic's open segment is, or that holds its lease
    clients   the service that holds its lease: producers and consumers are connected there
    a read    the service in whose log directory the first unsealed messages are that the read reaches; a read of the
              newest messages: the service with the last of them

Messages that no live service has are no reason to refuse a read: sealed messages are read here, and a read that
reaches the others ends with SegmentNotLocal. Services read the same rows, so they agree on the owner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from api.broker.refusals import NoLogOwner, NotTheOwner, WriterElsewhere
from storage.clock import Clock
from storage.log.directory import LogDirectory
from storage.metadata.records import Lease, SegmentState, ServiceRecord, TopicRecord
from storage.metadata.store import MetadataStore
from storage.model import TopicName
from storage.owner import Owner, same_process
from storage.positions import StartPosition
from storage.reading.snapshot_reader import may_read_extent


@dataclass(frozen=True)
class UnservedLogDirectory:
    """A log directory that no live service uses, and the topics whose unsealed messages are in it.

    `log_uid` None: the service had written nothing. `service`: the last service that used the directory; None: it has
    left, or no service used it.
    """

    log_uid: str | None
    service: ServiceRecord | None
    topics: Sequence[TopicName]


class TopicOwnership:
    """Decisions on which service owns a topic, from the view of this service. Reads the database. Thread-safe."""

    def __init__(
        self,
        metadata: MetadataStore,
        clock: Clock,
        log: LogDirectory,
        is_open: Callable[[TopicRecord], bool] = lambda _: False,
    ) -> None:
        """`log`: the log directory of this service. `is_open`: returns whether this service writes a topic now."""
        self._metadata = metadata
        self._clock = clock
        self._log = log
        self._is_open = is_open
        self._process = str(Owner.current())

    def check_for_writing(self, topic: TopicRecord) -> None:
        """Raise NotTheOwner, WriterElsewhere or NoLogOwner if another process writes the topic, or has its open
        segment. Return if this service writes the topic or may try to."""
        if self._is_open(topic):
            return
        segment = self._metadata.segments.find_open(topic.id)
        if segment is not None and segment.log_uid != self._log.known_uid:
            raise NotTheOwner(self._service_with_log(segment.log_uid, topic), topic)
        lease = self._metadata.leases.current(topic.id)
        if lease is None or self.holds(lease):
            return
        service = self._metadata.services.of_owner(lease.owner)
        if service is not None:
            raise NotTheOwner(service, topic)
        raise WriterElsewhere(topic.name, lease.owner, lease.expires_at - self._clock.now_ms())

    def check_not_owned_elsewhere(self, *topics: TopicRecord) -> None:
        """Raise NotTheOwner if another service serves one of the topics to producers and consumers."""
        for other in self.owned_elsewhere(topics):
            raise other

    def owned_elsewhere(self, topics: Sequence[TopicRecord]) -> list[NotTheOwner]:
        """Return a NotTheOwner error, which names the service, for each topic that another service serves to
        clients."""
        leases = self._metadata.leases.current_of([topic.id for topic in topics])
        held = [(topic, leases[topic.id]) for topic in topics if topic.id in leases]
        foreign = [(topic, lease.owner) for topic, lease in held if not self.holds(lease)]
        services = {owner: self._metadata.services.of_owner(owner) for owner in {owner for _, owner in foreign}}
        return [NotTheOwner(service, topic) for topic, owner in foreign if (service := services[owner]) is not None]

    def check_for_reading(self, topic: TopicRecord, start: StartPosition | None = None) -> None:
        """Raise NotTheOwner if another service has the unsealed messages that a read needs.

        `start`: the first position of the read; None: the newest messages.
        """
        unsealed = [
            item for item in self._metadata.segments.of_topic(topic.id) if item.state is not SegmentState.SEALED
        ]
        if not unsealed:
            return
        own_uid = self._log.known_uid
        if all(item.log_uid == own_uid for item in unsealed):
            return
        candidates = (
            unsealed[::-1] if start is None else [item for item in unsealed if may_read_extent(start, item)][:1]
        )
        live = {item.log_uid: item for item in self._metadata.services.live() if item.url}
        for segment in candidates:
            if segment.log_uid == own_uid:
                return
            if segment.log_uid in live:
                raise NotTheOwner(live[segment.log_uid], topic)

    def is_leased_here(self, topic_id: int) -> bool:
        """Return whether this process holds the topic's lease. The database decides, not the open logs."""
        lease = self._metadata.leases.current(topic_id)
        return lease is not None and self.holds(lease)

    def holds(self, lease: Lease) -> bool:
        """Return whether this process holds a lease."""
        return same_process(lease.owner, self._process)

    def unserved_log_directories(self) -> list[UnservedLogDirectory]:
        """Return the log directories that no live service uses: of services that crashed, and all others with unsealed
        messages."""
        uids = [self._log.known_uid, *(item.log_uid for item in self._metadata.services.live())]
        served = {uid for uid in uids if uid is not None}
        topics = self._metadata.segments.topics_unsealed_outside(served)
        lost = {
            item.log_uid or item.name: item for item in self._metadata.services.lost() if item.log_uid not in served
        }
        logs = [UnservedLogDirectory(item.log_uid, item, topics.pop(uid, ())) for uid, item in lost.items()]
        return [*logs, *(UnservedLogDirectory(uid, None, names) for uid, names in topics.items())]

    def _service_with_log(self, log_uid: str, topic: TopicRecord) -> ServiceRecord:
        """Return the live service of a log directory. Raises NoLogOwner."""
        for service in self._metadata.services.live():
            if service.log_uid == log_uid and service.url:
                return service
        raise NoLogOwner(topic.name, log_uid)
