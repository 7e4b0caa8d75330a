"""The generated protobuf classes of the protocol are those of the .proto file."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from api.pulsar import pulsar_api_pb2

REPOSITORY = Path(__file__).parents[4]
PROTO = "api/pulsar/pulsar_api.proto"


def test_the_module_is_made_of_the_file(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{REPOSITORY}", f"--python_out={tmp_path}", PROTO]
    subprocess.run(command, check=True, cwd=REPOSITORY)
    literal = re.search(r"AddSerializedFile\((b'.*')\)", (tmp_path / "api/pulsar/pulsar_api_pb2.py").read_text())
    assert literal
    assert eval(literal[1]) == pulsar_api_pb2.DESCRIPTOR.serialized_pb
