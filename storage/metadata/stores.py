"""The stores of a MetadataStore, one per noun: each binds the functions of its module to a kind of transaction.

A bound method commits before it returns, and has changed nothing if it raised; its docstring is the function's. Methods
that are written out combine several transactions. Must not know: SQL.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from functools import cached_property

from storage.errors import TopicNotFound
from storage.failpoints import Failpoint
from storage.metadata import (
    attempts,
    compaction_backlogs,
    compaction_control,
    cursors,
    leases,
    ledgers,
    metrics_queries,
    mirrors,
    partitions,
    pins,
    policy_store,
    producer_sequences,
    runs,
    schemas,
    sealing,
    segments,
    services,
    stats,
    store_binding,
    tenancy,
    topic_deletion,
    topic_work,
    topics,
    trimming,
)
from storage.metadata.records import ServiceRecord, TopicRecord
from storage.metadata.transactions import Store, reads, snapshots, writes, writes_once
from storage.options import policies
from storage.owner import same_process


class TopicStore(Store):
    """Topics. TenancyStore creates and deletes them, in their namespaces."""

    get = reads(topics.by_name)
    by_names = reads(topics.by_names)
    all = reads(topics.all_topics)
    by_ids = reads(topics.by_ids)
    by_uid = reads(topics.by_uid)
    page_by_id = reads(topics.page_by_id)
    page_by_uid = reads(topics.page_by_uid)
    in_namespace = reads(topics.in_namespace)
    with_iceberg_tables = reads(topics.with_iceberg_tables)
    summaries = reads(topics.summaries)
    producer_epoch = reads(topics.producer_epoch)
    raise_producer_epoch = writes(topics.raise_producer_epoch)
    properties = reads(topics.properties)
    set_properties = writes(topics.set_properties)

    def in_pages(self, page_size: int) -> Iterator[list[TopicRecord]]:
        """Yield all topics by id, `page_size` at a time; each page is of its own moment."""
        page = self.page_by_id(-1, page_size)
        while page:
            yield page
            page = self.page_by_id(page[-1].id, page_size)


class TenancyStore(Store):
    """Tenants, namespaces, permissions and topics in them."""

    tenants = reads(tenancy.tenants)
    tenant = snapshots(tenancy.tenant)
    create_tenant = writes(tenancy.create_tenant)
    update_tenant = writes(tenancy.update_tenant)
    delete_tenant = writes(tenancy.delete_tenant)
    namespaces = snapshots(tenancy.namespaces)
    namespace = snapshots(tenancy.namespace)
    administered_namespaces = snapshots(tenancy.administered_namespaces)
    create_namespace = writes(tenancy.create_namespace)
    ensure_namespace = writes(tenancy.ensure_namespace)
    delete_namespace = writes(tenancy.delete_namespace)
    set_permissions = writes(tenancy.set_permissions)
    revoke = writes(tenancy.revoke)
    topic_permissions = reads(tenancy.topic_permissions)
    topic_permissions_in = reads(tenancy.topic_permissions_in)
    topic_permissions_of = reads(tenancy.topic_permissions_of)
    ensure_topic = writes(tenancy.ensure_topic)
    create_topic = writes(tenancy.create_topic)
    deleted_topic = reads(topic_deletion.find_deleted)
    uncollected_topics = reads(topic_deletion.uncollected_topics)
    set_collected = writes(topic_deletion.set_collected)
    check_no_writer = reads(topic_deletion.check_no_writer)
    delete_unused_topic = writes(topic_deletion.delete_unused_topic)
    delete_topic = writes_once(
        tenancy.delete_topic,
        tenancy.has_deleted,
        lambda topic_id, **_: f"whether the topic with id {topic_id} was deleted",
        Failpoint.TOPIC_DELETED,
    )


class PartitionStore(Store):
    """Partitioned topics."""

    find = reads(partitions.find)
    by_names = reads(partitions.by_names)
    in_namespace = reads(partitions.in_namespace)
    create = writes(partitions.create)
    increase_partitions_to = writes(partitions.increase_partitions_to)
    set_properties = writes(partitions.set_properties)
    delete = writes(partitions.delete_topic)


class PolicyStore(Store):
    """Policies that users have set, by scope."""

    _change = writes(policy_store.change)
    readable_of_scope = reads(policy_store.readable_of_scope)
    readable_of_scopes = reads(policy_store.readable_of_scopes)
    of_scope = reads(policy_store.of_scope)
    effective = reads(policy_store.effective)
    resolve_policies = reads(policy_store.resolve_policies)
    policies_inherited_from = reads(policy_store.policies_inherited_from)
    smallest_value = reads(policy_store.smallest_value)
    resolver = reads(policy_store.resolver)
    resolver_of = reads(policy_store.resolver_of)
    unreadable_policies = snapshots(policy_store.unreadable_policies)

    def change(
        self, scopes: Collection[str], values: Mapping[str, object], removed: Collection[str] | None = ()
    ) -> None:
        """Set and remove policies in each of these scopes, all or none. `values`: texts or JSON values, by name.

        `removed`: names of policies; None: all that a scope has. Raises InvalidInput for a name or value that is not
        allowed, before it waits for the database; and the errors of `policy_store.change`.
        """
        new = policy_store.parse_values(values)
        old = None if removed is None else {policies.policy(name).name for name in removed}
        self._change(scopes, new, old)


class LeaseStore(Store):
    """Writer leases of topics."""

    acquire = writes(leases.acquire)
    renew = writes(leases.renew)
    renew_many = writes(leases.renew_many)
    release = writes(leases.release)
    current = reads(leases.current)
    current_of = reads(leases.current_of)
    revoke = writes(leases.revoke)


class AttemptStore(Store):
    """Attempts. RunStore expires them."""

    begin = writes(attempts.begin)
    heartbeat = writes(attempts.heartbeat)
    finish = writes(attempts.finish)
    find = reads(attempts.find)
    of_topic = reads(attempts.of_topic)
    purge = writes(attempts.purge)


class LedgerStore(Store):
    """Raw ledgers and their ids."""

    allocate_ids = writes(ledgers.allocate_ids)
    skip_ids = writes(ledgers.skip_ids)
    claim_id = writes(ledgers.claim_id)
    append = writes_once(
        ledgers.append,
        ledgers.has_appended,
        lambda lease, new: f"whether ledger {new[-1].ledger_id if new else None} and those with it were appended",
    )
    of_topic = reads(ledgers.of_topic)


class SegmentStore(Store):
    """Unsealed segments. Changes are the lease owner's."""

    open = writes_once(
        segments.open_segment,
        segments.has_opened,
        lambda lease, segment: f"whether the segment of ledger {segment.ledger_id} was opened",
    )
    restore = writes_once(
        segments.restore,
        segments.has_opened,
        lambda lease, segment: f"whether the segment of ledger {segment.ledger_id} was restored",
    )
    roll = writes_once(
        segments.roll,
        segments.has_rolled,
        lambda lease, ledger_id, content: f"whether the segment of ledger {ledger_id} was rolled",
    )
    drop_empty = writes(segments.drop_empty)
    request_roll = writes(segments.request_roll)
    clear_roll_request = writes(segments.clear_roll_request)
    check_open = writes(segments.check_open)
    of_topic = reads(segments.of_topic)
    find_open = reads(segments.find_open)
    active_segments = reads(segments.active_segments)
    is_roll_requested = reads(segments.is_roll_requested)
    roll_requests_and_deletions = reads(segments.roll_requests_and_deletions)
    topics_to_roll = reads(segments.topics_to_roll)
    open_segments_in = snapshots(segments.open_segments_in)
    topics_with_segments = reads(segments.topics_with_segments)
    topics_unsealed_outside = reads(segments.topics_unsealed_outside)
    first_offsets = reads(segments.first_offsets)
    rolled_bytes = reads(segments.rolled_bytes)
    open_segments_without_writer = snapshots(segments.open_segments_without_writer)


class SealingStore(Store):
    """Sealing of rolled segments."""

    claim = writes(sealing.claim)
    release = writes(sealing.release)
    seal = writes_once(
        sealing.seal, sealing.has_sealed, lambda attempt, ledger: f"whether ledger {ledger.ledger_id} was sealed"
    )
    removable_segments = snapshots(sealing.removable_segments)
    purge_segment = writes(sealing.purge_segment)


class TrimmingStore(Store):
    """Trims and truncations."""

    trim = writes_once(
        trimming.trim,
        trimming.has_trimmed,
        lambda topic_id, *_, **__: f"whether the topic with id {topic_id} was trimmed",
    )
    truncate = writes_once(
        trimming.truncate_all,
        trimming.has_truncated,
        lambda topic_ids: f"whether topics {topic_ids} were truncated",
        Failpoint.TRUNCATED,
    )
    trimmed_ledgers = reads(trimming.trimmed_ledgers)
    purge = writes(trimming.purge)


class CursorStore(Store):
    """Cursors and their acknowledgements."""

    create = writes(cursors.create)
    ensure = writes(cursors.ensure)
    get = reads(cursors.get)
    of_topic = reads(cursors.of_topic)
    reset = writes(cursors.reset)
    set_properties = writes(cursors.set_properties)
    replace_properties = writes(cursors.replace_properties)
    delete = writes(cursors.delete_cursor)
    slowest_compacted_reader_offset = reads(cursors.slowest_compacted_reader_offset)
    load = snapshots(cursors.load)
    merge = writes(cursors.merge)
    summaries = snapshots(cursors.summaries)
    summary = snapshots(cursors.summary)


class PinStore(Store):
    """Pins, and the collection of compacted ledgers."""

    take = writes(pins.take)
    renew = writes(pins.renew)
    release = writes(pins.release)
    retired_ledgers = reads(pins.retired_ledgers)
    delete_ledger_if_unpinned = writes(pins.delete_ledger_if_unpinned)
    gc_snapshot = snapshots(pins.gc_snapshot)


class RunStore(Store):
    """Compaction runs. PublishingStore publishes their results."""

    claim = writes_once(
        runs.claim, runs.has_claimed, lambda topic_id, owner, *_, **__: f"whether {owner} claimed a compaction run"
    )
    update = writes(runs.record_progress)
    heartbeat = writes(runs.heartbeat)
    succeed_unchanged = writes_once(
        runs.succeed_unchanged,
        runs.has_succeeded_unchanged,
        lambda run, statistics: f"whether run {run.run_id} has ended",
    )
    fail = writes(runs.fail)
    cancel = writes(runs.cancel)
    expire_attempts = writes(runs.expire_attempts)
    get = reads(runs.get)
    get_with_topic_name = reads(runs.get_with_topic_name)
    last = reads(runs.last)
    of_topic = reads(runs.of_topic)
    newest = reads(runs.newest)
    run_that_published = reads(runs.run_that_published)
    has_published = reads(runs.has_published)


class CompactionControlStore(Store):
    """Requests for compactions, pauses and failures."""

    get = reads(compaction_control.get)
    all = reads(compaction_control.all_topics)
    of_topics = reads(compaction_control.of_topics)
    activity = snapshots(compaction_control.activity)
    requests = snapshots(compaction_control.requests)
    topics_to_retry = snapshots(compaction_control.topics_to_retry)
    check_requestable = snapshots(compaction_control.check_requestable)
    request = writes(compaction_control.request)
    withdraw = writes(compaction_control.withdraw)
    topics_to_request_again = reads(compaction_control.topics_to_request_again)
    request_again_if_run_died = writes(compaction_control.request_again_if_run_died)
    cancel_and_request_again = writes(compaction_control.cancel_and_request_again)
    pause = writes_once(
        compaction_control.pause,
        compaction_control.has_paused,
        lambda topic_ids: f"whether the compaction of topics {topic_ids} was paused",
    )
    resume = writes(compaction_control.resume)
    abort = writes(compaction_control.abort)
    record_failure = writes(compaction_control.record_failure)
    fail_run = writes(compaction_control.fail_run)
    clear_failures = writes(compaction_control.clear_failures)

    def request_dead_runs_again(self, by: str) -> list[TopicRecord]:
        """Request a new run of each topic whose run died with its worker; return these topics."""
        requested = []
        for topic_id in self.topics_to_request_again():
            with suppress(TopicNotFound):  # deleted meanwhile
                requested.append(self.request_again_if_run_died(topic_id, by))
        return [topic for topic in requested if topic is not None]


class CompactionBacklogStore(Store):
    """Compaction backlogs of topics."""

    of_topics = snapshots(compaction_backlogs.of_topics)
    of_all = snapshots(compaction_backlogs.of_all)


class TopicWorkStore(Store):
    """Queues of topics that the leader checks for work, and the leader's notes."""

    queue_for_new_leader = writes(topic_work.queue_for_new_leader)
    queue = writes(topic_work.queue)
    leader_note = reads(topic_work.leader_note)
    set_leader_note = writes(topic_work.set_leader_note)
    due = reads(topic_work.due)
    of_topics = reads(topic_work.of_topics)
    reschedule = writes(topic_work.reschedule)


class ServiceStore(Store):
    """Services and their leader."""

    heartbeat = writes(services.heartbeat)
    live = reads(services.live)
    lost = reads(services.lost)
    leave = writes(services.leave)
    purge_dead = writes(services.purge_dead)
    acquire_leadership = writes(services.acquire_leadership)
    renew_leadership = writes(services.renew_leadership)
    resign = writes(services.resign)
    leader = reads(services.leader)

    def of_owner(self, owner: str) -> ServiceRecord | None:
        """Return the live service whose process is the owner `owner` (storage/owner.py); None: there is none."""
        return next((service for service in self.live() if same_process(service.name, owner)), None)


class SchemaStore(Store):
    """Schemas, by topic; the partitions of a partitioned topic share those of the whole."""

    outlines = reads(schemas.outlines)
    versions = reads(schemas.versions)
    find_by_data = reads(schemas.find_by_data)
    add = writes(schemas.add)
    delete = writes(schemas.delete_all)


class ProducerSequenceStore(Store):
    """Sequence ids of producers and progress of source clusters, by topic."""

    of_topic = reads(producer_sequences.of_topic)
    store = writes(producer_sequences.store)
    replace = writes(producer_sequences.replace)
    _delete_sequence_ids = writes(producer_sequences.delete_sequence_ids)

    def delete_sequence_ids(self, topic_id: int) -> None:
        """Delete the stored sequence ids of a topic's producers, if there are any. Raises TopicNotFound.

        Producers' entries are not deduplicated any more; the positions of source clusters stay.
        """
        stored = self.of_topic(topic_id)
        if stored is not None and stored.highest is not None:
            self._delete_sequence_ids(topic_id)


class MirrorStore(Store):
    """Mirrors of Kafka's topics."""

    add = writes(mirrors.add)
    all = reads(mirrors.all_mirrors)
    get = reads(mirrors.get)
    counts = reads(mirrors.counts)
    partitions = reads(mirrors.partitions)
    pause = writes(mirrors.pause)
    resume = writes(mirrors.resume)
    fail = writes(mirrors.fail)
    set_start_offset = writes(mirrors.set_start_offset)
    store_epochs = writes(mirrors.store_epochs)
    clear_progress = writes(mirrors.clear_progress)
    store_error = writes(mirrors.store_error)
    store_progress = writes(mirrors.store_progress)
    remove = writes(mirrors.remove)
    removed_source_topic_id = reads(mirrors.removed_source_topic_id)


class StatsStore(Store):
    """Statistics of topics."""

    of_topic = snapshots(stats.of_topic)


class MetricsQueries(Store):
    """Counts of topics, segments and runs, for metrics."""

    ping = reads(metrics_queries.ping)
    counts = snapshots(metrics_queries.counts)
    topic_names = reads(metrics_queries.topic_names)
    runs = reads(metrics_queries.page_of_runs)


class StoreBinding(Store):
    """The binding of the object store, and trials of stores."""

    @cached_property
    def verified_locations(self) -> set[str]:
        """The locations of stores that this process has verified to be the bound one; callers add to it."""
        return set()

    find = reads(store_binding.find)
    ensure = writes(store_binding.ensure)
    confirm = writes(store_binding.confirm)
    expected_object = reads(store_binding.expected_object)
    knows_topic = reads(store_binding.knows_topic)
    has_passed_trial = reads(store_binding.has_passed_trial)
    record_passed_trial = writes(store_binding.record_passed_trial)
