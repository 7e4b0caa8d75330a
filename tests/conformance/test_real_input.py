"""Real input with an exact oracle: 33,098 changes of a large repository, on both kinds of store and database.

../shared/data/bookkeeper.changes.jsonl.gz imported in 1, 7 and 40 ledgers; the compacted view must equal
bookkeeper.tree.tsv.gz, and raw must give everything back in order, also with a compaction half-way. CI tries each
number of ledgers and each deployment with one of these, `make soak` with all.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from api.formats.inputs import InputOptions
from api.formats.jsonl import read_import_jsonl
from compactor.engines.engine import Engine
from storage.clock import SystemClock
from storage.log.directory import LogDirectory
from storage.metadata.store import MetadataStore
from storage.model import Message
from storage.objects.interface import ObjectStore, StoreLocation
from storage.objects.registry import open_store
from storage.topic import Topic
from tests.real_input import CHANGES, RealInput, real_input
from tests.servers.fixtures_postgres import postgres_server
from tests.servers.fixtures_s3 import use_credentials, versitygw
from tests.workbench import Workbench, compacted_only, view

__all__ = ["postgres_server", "versitygw"]

MESSAGES = 33_098
LOGICAL_BYTES = 5_234_894


@pytest.fixture(scope="module", name="real_input")
def changes_and_tree() -> RealInput:
    source = real_input()
    assert len(source.changes) == MESSAGES
    return source


def embedded(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[str, ObjectStore]:
    return f"sqlite:///{tmp_path / 'metadata.db'}", open_store((tmp_path / "objects").as_uri())


def servers(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[str, ObjectStore]:
    s3 = request.getfixturevalue("versitygw")
    postgres = request.getfixturevalue("postgres_server")
    use_credentials(request.getfixturevalue("monkeypatch"), s3)
    credentials = f"[default]\naws_access_key_id = {s3.access_key}\naws_secret_access_key = {s3.secret_key}\n"
    request.getfixturevalue("spark_credentials").write_text(credentials)
    store = open_store(StoreLocation(f"s3://{s3.make_bucket()}/real-input", s3.endpoint))
    return postgres.new_database(), store


EMBEDDED = pytest.param(embedded, id="local+sqlite")
SERVERS = pytest.param(servers, id="s3+postgresql", marks=pytest.mark.soak)


def by_ledgers(*, in_soak: int) -> pytest.MarkDecorator:
    """Each number of ledgers on one of the deployments: a run's result does not depend on both together.

    The number `in_soak` is tried by `make soak` alone; CI tries it in the other test.
    """
    cases = {"local+sqlite-1": (embedded, 1), "local+sqlite-7": (embedded, 7), "s3+postgresql-40": (servers, 40)}
    return pytest.mark.parametrize(
        ("bench", "ledgers"),
        [
            pytest.param(opener, ledgers, id=name, marks=_tier(opener, ledgers == in_soak))
            for name, (opener, ledgers) in cases.items()
        ],
        indirect=["bench"],
    )


def _tier(opener: object, in_soak: bool) -> list[pytest.MarkDecorator]:
    return [pytest.mark.soak] if in_soak else [pytest.mark.slow] if opener is servers else []


@pytest.fixture(params=[EMBEDDED, SERVERS])
def bench(request: pytest.FixtureRequest, tmp_path: Path, spark_engine: Engine) -> Iterator[Workbench]:
    url, store = request.param(tmp_path, request)
    clock = SystemClock()
    metadata = MetadataStore(url, clock)
    metadata.upgrade()
    yield Workbench(metadata, store, clock, LogDirectory(tmp_path / "log"), spark_engine)
    metadata.close()
    store.close()


def import_in(bench: Workbench, topic: Topic, tables: list[pa.Table], ledgers: int) -> None:
    """Import so that exactly that many ledgers are made."""
    size = sum(map(logical_bytes, tables))
    # a ledger may end short of its size by less than a message; find the size that gives the number
    for ledger_bytes in range(-(-size // ledgers), size + 1, max(1, size // 50_000)):
        if count_ledgers(tables, ledger_bytes) == ledgers:
            bench.append(topic, tables, ledger_bytes)
            return
    raise AssertionError(f"no ledger size gives {ledgers} ledgers")


def logical_bytes(table: pa.Table) -> int:
    from storage.ledger.rows import logical_sizes

    return int(logical_sizes(table).sum())


def count_ledgers(tables: list[pa.Table], ledger_bytes: int) -> int:
    from storage.log.bulk_append import cut_into_ledgers

    return sum(1 for _ in cut_into_ledgers(tables, ledger_bytes))


def input_tables() -> list[pa.Table]:
    return list(read_import_jsonl(str(CHANGES), InputOptions()))


def as_change(message: Message) -> dict[str, object]:
    assert message.key is not None
    return {
        "key": message.key.decode(),
        "value": None if message.payload is None else message.payload.decode(),
        "event_time": message.event_time,
        "properties": dict(message.properties),
    }


@by_ledgers(in_soak=40)
def test_the_compacted_view_is_the_tree(bench: Workbench, real_input: RealInput, ledgers: int) -> None:
    topic = bench.topic(f"bookkeeper-{ledgers}")
    import_in(bench, topic, input_tables(), ledgers)
    assert len(topic.snapshot().ledgers) == ledgers

    run = bench.compact(topic).run

    assert run is not None
    assert run.statistics["messages_in"] == MESSAGES
    compacted = compacted_only(topic)
    assert {message.key: message.payload for message in compacted} == real_input.tree
    assert len(compacted) == len(real_input.tree)
    assert list(map(as_change, topic.messages())) == real_input.changes


@by_ledgers(in_soak=1)
def test_half_compacted_then_the_other_half(bench: Workbench, real_input: RealInput, ledgers: int) -> None:
    whole = pa.concat_tables(input_tables())
    half = len(whole) // 2
    topic = bench.topic(f"halves-{ledgers}")
    import_in(bench, topic, [whole.slice(0, half)], ledgers)
    bench.compact(topic)
    first_horizon = topic.snapshot().horizon
    import_in(bench, topic, [whole.slice(half)], ledgers)

    assert view(list(topic.messages(read_compacted=True))) == real_input.tree
    bench.compact(topic)

    compacted = compacted_only(topic)
    assert {message.key: message.payload for message in compacted} == real_input.tree
    assert len(compacted) == len(real_input.tree)
    assert list(map(as_change, topic.messages())) == real_input.changes
    snapshot = topic.snapshot()
    assert first_horizon is not None
    assert snapshot.horizon is not None
    assert first_horizon < snapshot.horizon
    assert snapshot.compacted is not None
    assert snapshot.compacted.generation == 2


def test_a_second_import_of_half_the_data_changes_the_view_as_a_fold_does(
    bench: Workbench, real_input: RealInput
) -> None:
    """All, a compaction, the older half once more, a compaction: the last write wins, whatever it says."""
    tables = input_tables()
    again = pa.concat_tables(tables).slice(0, MESSAGES // 2)
    topic = bench.topic("again")
    import_in(bench, topic, tables, 7)
    bench.compact(topic)
    import_in(bench, topic, [again], 7)
    bench.compact(topic)

    expected = dict(real_input.tree)
    for change in real_input.changes[: MESSAGES // 2]:
        key = str(change["key"]).encode()
        if change["value"] is None:
            expected.pop(key, None)
        else:
            expected[key] = str(change["value"]).encode()
    assert {message.key: message.payload for message in compacted_only(topic)} == expected
    raw = list(map(as_change, topic.messages()))
    assert raw == real_input.changes + real_input.changes[: MESSAGES // 2]
