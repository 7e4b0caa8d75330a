"""`compactor import` of the files of other logs: segments of Kafka, ledgers that Pulsar has offloaded."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from api.cli.kit.stderr import counted, say, size
from api.cli.local.append_target import AppendTarget, bulk_writer
from api.components import open_for_writing
from storage.errors import InvalidInput

if TYPE_CHECKING:
    from api.formats.inputs import EmptyValues
    from api.formats.kafka_segments import KafkaPartition, OmittedRecords
    from api.settings.settings import Settings
    from storage.environment import Environment
    from storage.log.bulk_append import BulkAppendResult
    from storage.model import TopicName

SHOWN_LEDGERS = 5


def import_kafka_segments(
    settings: Settings, topic: TopicName, paths: list[str], ledger_bytes: int, empty_values: EmptyValues
) -> None:
    """Append the partitions of a Kafka topic to a topic, or each to the partition of its number."""
    from api.formats.input_files import open_paths
    from api.formats.kafka_segments import PartitionReader, find_partitions

    with open_paths(paths, settings.s3_endpoint or None) as files:
        partitions = find_partitions(files)
        with open_for_writing(settings) as environment:
            targets = _target_topics(environment, topic, partitions)
            for partition, name in zip(partitions, targets, strict=True):
                producer = f"kafka:{partition.label if partition.topic else name.topic}"
                reader = PartitionReader(partition, producer, empty_values)
                started = time.perf_counter()
                with (
                    AppendTarget(environment, name) as target,
                    target.hold_writer(lambda opened: bulk_writer(opened, ledger_bytes)) as (writer, lease),
                ):
                    appended = writer.append_under(lease, reader.tables())
                    label = partition.label or str(name)
                    _report_import(label, appended, time.perf_counter() - started)
                    _report_omitted_records(label, partition.segments[-1].name, reader.omitted)


def _target_topics(environment: Environment, topic: TopicName, partitions: list[KafkaPartition]) -> list[TopicName]:
    """Return the topic or partition to which each partition of Kafka goes. Raises InvalidInput if there is none."""
    partitioned = environment.metadata.partitions.find(topic)
    highest = partitions[-1].number
    if partitioned is None:
        if len(partitions) > 1:
            raise InvalidInput(
                f"the paths have {len(partitions)} partitions, and {topic} has none",
                f"create it first: compactor topics create {topic} --partitions {highest + 1}",
            )
        return [topic]
    if partitions[0].number < 0:
        raise InvalidInput(
            f"{topic} has partitions, and the folder of {partitions[0].segments[0].name} is not called TOPIC-NUMBER",
            f"name the partition: {topic.of_partition(0)}",
        )
    if highest >= partitioned.partitions:
        raise InvalidInput(
            f"the paths have partition {highest}, and {topic} has {counted(partitioned.partitions, 'partition')}",
            f"give it {highest + 1} partitions first: compactor-admin topics update-partitioned-topic",
        )
    return [topic.of_partition(partition.number) for partition in partitions]


def _report_import(label: str, appended: BulkAppendResult, seconds: float) -> None:
    say(
        f"{label}: {counted(appended.messages, 'message')}, {size(appended.logical_bytes)} in "
        f"{counted(len(appended.ledgers), 'ledger')} ({size(appended.stored_bytes)} stored) in {seconds:.2f} s"
    )


def _report_omitted_records(label: str, newest: str, omitted: OmittedRecords) -> None:
    if omitted.aborted_records:
        say(f"{label}: left out {counted(omitted.aborted_records, 'record')} of aborted transactions")
    if omitted.open_from is not None:
        say(
            f"{label}: left out {counted(omitted.unstable_records, 'record')} from offset {omitted.open_from} on: a "
            f"transaction of producer id {omitted.open_producer} is open there, and readers with read_committed wait "
            "for its end, too"
        )
    if omitted.torn_bytes:
        say(
            f"{label}: left out the last {size(omitted.torn_bytes)} of {newest}, from position {omitted.torn_at} on: "
            "they are no whole batch; a broker that runs, or was killed, leaves such an end"
        )


def import_pulsar_ledgers(settings: Settings, topic: TopicName, paths: list[str]) -> None:
    """Append offloaded ledgers of Pulsar to a topic, all or none. `paths`: their files or folders."""
    from api.formats.input_files import open_paths
    from api.formats.pulsar_ledgers import find_ledgers
    from storage.log.bulk_append import DEFAULT_LEDGER_BYTES, SourceLedger

    with open_paths(paths, settings.s3_endpoint or None) as files:
        ledgers = find_ledgers(files)
        started = time.perf_counter()
        with (
            open_for_writing(settings) as environment,
            AppendTarget(environment, topic) as target,
            target.hold_writer(lambda opened: bulk_writer(opened, DEFAULT_LEDGER_BYTES)) as (writer, lease),
        ):
            sources = [SourceLedger(ledger.ledger_id, ledger.entries()) for ledger in ledgers]
            appended = writer.append_ledgers_under(lease, sources)
            _report_import(ledgers[0].index.managed_ledger or paths[0], appended, time.perf_counter() - started)
            pairs = zip(ledgers, appended.ledgers, strict=True)
            _report_changed_ledger_ids([(ledger.ledger_id, stored.ledger_id) for ledger, stored in pairs])


def _report_changed_ledger_ids(ids: list[tuple[int, int]]) -> None:
    """Report the ledgers that got another id. `ids`: the id of each ledger in Pulsar, and its id here."""
    changed = [f"{source} is {stored} here" for source, stored in ids if source != stored]
    if changed:
        more = f", and {len(changed) - SHOWN_LEDGERS} more" if len(changed) > SHOWN_LEDGERS else ""
        say(
            f"{counted(len(changed), 'ledger')} could not keep the id, which this database has passed: "
            f"{', '.join(changed[:SHOWN_LEDGERS])}{more}"
        )
