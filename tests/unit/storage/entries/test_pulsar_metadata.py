"""The generated protobuf classes are those of the .proto file, and keep fields that they do not know."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from storage.entries import pulsar_metadata_pb2
from storage.entries.pulsar_metadata_pb2 import MessageMetadata

REPOSITORY = Path(__file__).parents[4]
PROTO = "storage/entries/pulsar_metadata.proto"


@pytest.fixture(scope="module")
def made_anew(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("protoc")
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{REPOSITORY}", f"--python_out={folder}"]
    subprocess.run([*command, f"--pyi_out={folder}", PROTO], check=True, cwd=REPOSITORY)
    return folder / "storage" / "entries"


def test_the_module_is_made_of_the_file(made_anew: Path) -> None:
    text = (made_anew / "pulsar_metadata_pb2.py").read_text()
    literal = re.search(r"AddSerializedFile\((b'.*')\)", text)
    assert literal
    assert eval(literal[1]) == pulsar_metadata_pb2.DESCRIPTOR.serialized_pb


def test_the_stub_is_made_of_the_file(made_anew: Path) -> None:
    committed = (REPOSITORY / "storage" / "entries" / "pulsar_metadata_pb2.pyi").read_text()
    assert without_format(committed) == without_format((made_anew / "pulsar_metadata_pb2.pyi").read_text())


def without_format(text: str) -> str:
    return re.sub(r",(?=[)\]])", "", re.sub(r"\s+", "", text))


def test_unknown_fields_survive() -> None:
    known = MessageMetadata(producer_name="p", sequence_id=1, publish_time=2).SerializeToString()
    unknown = b"\xa2\x1f\x03abc"  # field 500
    described = MessageMetadata.FromString(known + unknown)
    described.ClearField("producer_name")
    assert described.SerializePartialToString().endswith(unknown)
    assert not described.HasField("producer_name")


def test_a_compression_that_is_not_known_is_seen() -> None:
    assert MessageMetadata.FromString(b"\x40\x09").compression == 9
