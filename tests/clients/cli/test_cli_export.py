"""`compactor export`: what an import makes of it, what is new since the last one, and its refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pyarrow.parquet as pq
import pytest

from api.cli.local.export_command import FormatName
from api.cli.local.opening import open_topic
from api.components import open_environment
from api.formats.export_folder import ExportFolder, ExportManifest
from api.formats.export_writers import ExportFormat
from api.settings.settings import Settings
from storage.errors import Conflict
from storage.ledger.rows import RowType
from storage.model import TopicName
from storage.objects.interface import StoreLocation
from storage.objects.local import LocalStore
from storage.objects.registry import open_store
from tests import chunked
from tests.clients.cli.conftest import BASE64, content, write_lines
from tests.program import Program
from tests.servers.fixtures_s3 import MotoServer, use_credentials

MESSAGES = [
    {"key": "a", "value": "1", "event_time": 5, "publish_time": 9, "properties": {"p": "q", "": "ü"}},
    {"key": None, "value": "no key", "publish_time": 0},
    {"key": "", "value": "empty key", "event_time": 0, "publish_time": -(2**63)},
    {"key": "a", "value": None, "publish_time": 2**40},
    {"key": "b", "value": "", "publish_time": 3},
    {"key": None, "value": None, "publish_time": 3},
    {"key": "line\nend \0", "value": '"quoted", \\ 🎉\r\n', "publish_time": 4},
]
FORMATS = ["parquet", "jsonl", "csv"]


def test_the_formats_of_the_option_are_those_of_the_writers() -> None:
    assert get_args(FormatName) == tuple(ExportFormat)


@pytest.fixture(autouse=True)
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compactions run without Spark."""
    monkeypatch.setenv("COMPACTOR_COMPACTION_ENGINE", "in-process")


def manifest(file: str) -> Any:
    return json.loads(Path(file).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", FORMATS)
def test_an_export_imported_again_is_the_same_topic(program: Program, folder: Path, name: str) -> None:
    write_lines(folder / "in.jsonl", *MESSAGES)
    program("import", "t", "in.jsonl").done()
    exported = program("export", "t", "--to", "out", "--format", name).done()
    assert exported.raw_stdout == b""
    assert exported.stderr.startswith(f"out/t-00000001.{name}: 7 messages, 2 of them deletions, ")
    program("import", "u", f"out/t-00000001.{name}", "--empty-values", "delete").done()
    assert content(program("read", "u").done().messages) == MESSAGES
    written = manifest("out/t-00000001.json")
    size = (folder / "out" / f"t-00000001.{name}").stat().st_size
    expected = {"number": 1, "topic": "persistent://public/default/t", "read_compacted": False, "format": name}
    expected |= {"file": f"t-00000001.{name}", "bytes": size, "messages": 7, "deletions": 2}
    assert written == written | expected | {"since": None, "position": f"7@{written['incarnation']}"}
    assert {file.name for file in (folder / "out").iterdir()} == {".tmp", "t-00000001.json", f"t-00000001.{name}"}


@pytest.mark.parametrize("name", FORMATS)
def test_bytes_are_carried_in_base64(program: Program, folder: Path, name: str) -> None:
    write_lines(folder / "in.jsonl", {"key": "/w==", "value": "AP8="})
    program("import", "t", "in.jsonl", *BASE64).done()
    refused = program("export", "t", "--to", "out", "--format", name)
    refused.refused(2, "a key is not UTF-8 text", "--key-encoding base64")
    assert not list((folder / "out").glob("t-*")), "a half export leaves nothing"
    program("export", "t", "--to", "out", "--format", name, *BASE64).done()
    encodings = () if name == "parquet" else BASE64
    program("import", "u", f"out/t-00000001.{name}", *encodings).done()
    assert [(m["key"], m["value"]) for m in program("read", "u", *BASE64).messages] == [("/w==", "AP8=")]


def test_what_was_appended_since_the_last_export(program: Program, folder: Path) -> None:
    """The files of a compacted topic over two compactions, in order, are its state, deletions among them."""

    def append(*pairs: tuple[str, str | None]) -> None:
        lines = "".join(json.dumps({"key": key, "value": value}) + "\n" for key, value in pairs)
        program("produce", "t", "-", stdin=lines.encode()).done()

    export = ("export", "t", "--to", "out", "--read-compacted", "--format", "jsonl")
    append(("a", "1"), ("b", "1"), ("c", "1"), ("a", "2"))
    program("compact-topic", "--topic", "t").done()
    append(("d", "1"))
    program(*export).done()
    assert program(*export, "--since", "last").done().stderr == "out: nothing was appended since the last export\n"
    append(("b", None), ("a", "3"), ("e", "1"), ("e", "2"))
    program("compact-topic", "--topic", "t").done()
    append(("c", None))
    program(*export, "--since", "last").done()
    files = [Path(f"out/t-0000000{number}.jsonl").read_text().splitlines() for number in (1, 2)]
    first, second = ([(m["key"], m["value"]) for m in map(json.loads, lines)] for lines in files)
    assert first == [("b", "1"), ("c", "1"), ("a", "2"), ("d", "1")]
    assert second == [("b", None), ("a", "3"), ("e", "1"), ("e", "2"), ("c", None)]
    assert manifest("out/t-00000002.json")["deletions"] == 2
    program("import", "u", "out/t-00000001.jsonl", "out/t-00000002.jsonl").done()
    program("compact-topic", "--topic", "u").done()
    state = {m["key"]: m["value"] for m in program("read", "u", "--read-compacted").messages if m["value"] is not None}
    assert state == {"a": "3", "d": "1", "e": "2"}
    append(("a", None))
    program("compact-topic", "--topic", "t").done()
    program("topics", "trim", "t", "--before", "11", "--yes").done()  # with the only copy of the last deletion
    stale = program(*export, "--since", "last").refused(4, "export the whole topic into another folder")
    assert "lacks deletions" in stale
    assert not Path("out/t-00000003.json").exists()


def test_a_position_begins_an_export_elsewhere(program: Program, folder: Path) -> None:
    write_lines(folder / "in.jsonl", *MESSAGES)
    program("import", "t", "in.jsonl").done()
    program("export", "t", "--to", "out", "--since", "5").done()
    assert pq.read_table("out/t-00000001.parquet").column("offset").to_pylist() == [5, 6]
    program("export", "t", "--to", "out", "--since", "last").done()
    assert not Path("out/t-00000002.json").exists()
    program("export", "t", "--to", "out", "--since", "nowhere").refused(2, "'nowhere' is not a start of a read")
    program("export", "t", "--to", "out", "--since", "5").refused(2, "a position begins a folder", "--since last")
    position = manifest("out/t-00000001.json")["position"]
    program("export", "t", "--to", "other", "--since", position).done()
    assert not Path("other").exists(), "nothing was appended since"
    with open_environment(Settings.load()) as environment:
        row = chunked.message(None, b"\xff", slot=int(RowType.WHOLE_ENTRY))
        chunked.append(environment, open_topic(environment, TopicName.parse("t")), [row])  # type: ignore[arg-type]
    refused = program("export", "t", "--to", "out", "--since", "last")
    refused.refused(2, "offset 7 of persistent://public/default/t is no message", "--since 8")
    program("topics", "delete", "t", "--yes").done()
    program("import", "t", "in.jsonl").done()
    program("export", "t", "--to", "other", "--since", position).refused(2, "before it was deleted")


def test_an_empty_topic_is_a_file_without_messages(program: Program, folder: Path) -> None:
    program("topics", "create", "t").done()
    program("export", "t", "--to", "out").done()
    assert pq.read_table("out/t-00000001.parquet").num_rows == 0
    program("produce", "t", "-", stdin=b'{"key":"a","value":"1"}').done()
    program("export", "t", "--to", "out", "--since", "last").done()
    assert pq.read_table("out/t-00000002.parquet").column("value").to_pylist() == ["1"]


def test_refusals(program: Program, folder: Path) -> None:
    line = b'{"key":"a","value":"1"}'
    program("import", "t", "-", stdin=line).done()
    (folder / "file").touch()
    program("export", "t", "--to", "file").refused(2, "file is a file, not a folder")
    program("export", "t", "--to", "http://host/x").refused(2, "is no folder to export to", "s3://bucket/prefix")
    program("export", "t", "--to", "s3://").refused(2, "names no bucket")
    program("export", "t", "--to", "out", "--since", "last").refused(2, "out has no export of", "without --since")
    program("export", "t", "--to", "out", "--format", "csv").done()
    program("export", "t", "--to", "out", "--format", "csv").refused(2, "up to number 1", "add --since last")
    program("export", "t", "--to", "out", "--since", "last").refused(2, "have --format csv", "choose the same")
    again = ("export", "t", "--to", "out", "--format", "csv", "--since", "last")
    program(*again, "--read-compacted").refused(2, "have no --read-compacted")
    program("topics", "delete", "t", "--yes").done()
    program("import", "t", "-", stdin=line).done()
    program(*again).refused(2, "as it was before it was deleted", "name another folder")
    Path("out/t-00000001.json").write_text("{}")
    program(*again).refused(2, "t-00000001.json in out is no manifest")


def test_trimmed_messages_are_no_gap_in_an_increment(program: Program, folder: Path) -> None:
    for value in "12":
        program("import", "t", "-", stdin=f'{{"key":"a","value":"{value}"}}'.encode()).done()
        if value == "1":
            program("export", "t", "--to", "out").done()
    program("import", "t", "-", stdin=b'{"key":"a","value":"3"}').done()
    program("topics", "trim", "t", "--before", "2", "--yes").done()
    program("export", "t", "--to", "out", "--since", "last").refused(2, "export the whole topic into another folder")


def test_an_export_that_was_killed_before_its_manifest_is_no_export(program: Program, folder: Path) -> None:
    program("import", "t", "-", stdin=b'{"key":"a","value":"1"}').done()
    program("export", "t", "--to", "out").done()
    Path("out/t-00000001.json").unlink()
    for name in ("parquet", "csv"):
        refused = program("export", "t", "--to", "out", "--format", name)
        refused.refused(4, "t-00000001.parquet exists in out without a manifest")
    Path("out/t-00000001.parquet").unlink()
    program("export", "t", "--to", "out").done()


def test_the_second_of_two_exports_at_once_is_refused(tmp_path: Path) -> None:
    exports = ExportFolder(LocalStore(tmp_path), "t", "out")
    with exports.create_file("t-00000001.csv") as first:
        first.write(b"1")
    with (
        pytest.raises(Conflict, match=r"t-00000001\.csv exists in out"),
        exports.create_file("t-00000001.csv") as second,
    ):
        second.write(b"2")
    assert (tmp_path / "t-00000001.csv").read_bytes() == b"1"


def test_of_two_exports_in_different_formats_the_second_deletes_its_file(tmp_path: Path) -> None:
    exports = ExportFolder(LocalStore(tmp_path), "t", "out")
    common = {"topic": "t", "incarnation": "0", "read_compacted": False, "key_encoding": "utf8", "columns": []}
    common |= {"value_encoding": "utf8", "bytes": 1, "messages": 0, "deletions": 0, "since": None, "position": "0"}
    exports.check_number_is_free(1)
    for name in ("csv", "jsonl"):
        with exports.create_file(f"t-00000001.{name}") as file:
            file.write(b"1")
    manifests = [ExportManifest(number=1, format=n, file=f"t-00000001.{n}", **common) for n in ("csv", "jsonl")]  # type: ignore[arg-type]
    exports.publish_manifest(manifests[0])
    with pytest.raises(Conflict, match="another export into out was first"):
        exports.publish_manifest(manifests[1])
    assert {file.name for file in tmp_path.glob("t-*")} == {"t-00000001.csv", "t-00000001.json"}


def test_names_of_topics_that_no_file_may_have(program: Program) -> None:
    program("import", ".hidden%:?", "-", stdin=b'{"key":"a","value":"1"}').done()
    program("export", ".hidden%:?", "--to", "out").done()
    program("export", ".hidden%:?", "--to", "out", "--since", "last").done()
    assert {file.stem for file in Path("out").iterdir()} == {".tmp", "%2Ehidden%25%3A%3F-00000001"}


def test_a_chunked_message_that_is_not_complete_is_in_the_next_export(program: Program, folder: Path) -> None:
    """Also if an abandoned message began before it."""
    program("topics", "create", "t").done()
    abandoned = chunked.whole("v", b"k", b"1", b"2", publish_time=0)[0]
    first, second, third = chunked.whole("u", b"k", b"1", b"2", b"3")

    def append(*rows: chunked.Row) -> None:
        with open_environment(Settings.load()) as environment:
            chunked.append(environment, open_topic(environment, TopicName.parse("t")), rows)  # type: ignore[arg-type]

    exported = []
    for rows in ([abandoned, chunked.message(b"a", b"x"), first], [second, chunked.message(b"b", b"y")], [third]):
        append(*rows)
        since = ("--since", "last") if exported else ()
        program("export", "t", "--to", "out", *since).done()
        table = pq.read_table(f"out/t-0000000{len(exported) + 1}.parquet")
        exported.append(list(zip(*(table.column(name).to_pylist() for name in ("key", "value")), strict=True)))
    assert exported == [[("a", "x")], [("b", "y")], [("k", "123")]]


def test_exports_in_s3(program: Program, moto_server: MotoServer, monkeypatch: pytest.MonkeyPatch) -> None:
    use_credentials(monkeypatch, moto_server)
    monkeypatch.setenv("COMPACTOR_S3_ENDPOINT", moto_server.endpoint)
    bucket = moto_server.make_bucket()
    for value in "12":
        program("import", "t", "-", stdin=f'{{"key":"a","value":"{value}"}}'.encode()).done()
        since = ("--since", "last") if value == "2" else ()
        program("export", "t", "--to", f"s3://{bucket}/exports/", "--format", "csv", *since).done()
    store = open_store(StoreLocation(f"s3://{bucket}/exports", moto_server.endpoint))
    names = [f"t-0000000{number}.{suffix}" for number in (1, 2) for suffix in ("csv", "json")]
    assert [stored.name for stored in store.list()] == names
    assert b'"a","2"' in store.get("t-00000002.csv")
    store.close()
