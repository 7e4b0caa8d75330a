"""A Java process with Pulsar's clients on its class path, spoken to through Py4J (which Spark brings): no compiler.

`pulsar_admin` runs `pulsar-admin` as its script does, main class, arguments and all, but many times in one process:
a process for each would cost two seconds. Its exit code is what it would have ended with.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway

from compactor.engines.java import find_java_home

ADMIN_TOOL = "org.apache.pulsar.admin.cli.PulsarAdminTool"
OPTIONS = ("-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_TEST_MODE = "Exit code is "
"""How a line begins that is printed only because the process does not end."""


@dataclass(frozen=True)
class Answer:
    """What a call of pulsar-admin left behind."""

    exit_code: int
    stdout: str
    stderr: str

    def done(self) -> Answer:
        """Asserts success."""
        assert self.exit_code == 0, self.stderr or self.stdout
        return self

    @property
    def lines(self) -> list[str]:
        return self.stdout.splitlines()


def java() -> str:
    """The machine's Java, or the one that pip brought."""
    return str(find_java_home(os.environ).runtime / "bin" / "java")


@contextmanager
def jvm(class_path: str) -> Iterator[JavaGateway]:
    """A Java process with this class path; it ends with the block, and with this process."""
    command = [java(), *OPTIONS, "-cp", os.pathsep.join([_py4j_jar(), class_path]), "py4j.GatewayServer"]
    with TemporaryFile() as answer:
        process = subprocess.Popen(
            [*command, "--die-on-broken-pipe", "--enable-auth", "0"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=answer,
            text=True,
        )
        assert process.stdout is not None
        with process:
            port, token = (process.stdout.readline().strip() for _ in range(2))
            # Without finalizers: those would speak to a Java that has ended, whenever Python collects garbage.
            parameters = GatewayParameters(
                port=int(port or 0),
                auth_token=token,
                auto_convert=True,
                auto_field=True,
                enable_memory_management=False,
            )
            gateway = JavaGateway(gateway_parameters=parameters)
            try:
                assert port, "Java does not start"
                yield gateway
            finally:
                gateway.close()
                alive = process.poll() is None
                process.kill()
                answer.seek(0)
                assert alive, f"Java ended with {process.returncode}: {answer.read().decode(errors='replace')}"


class PulsarAdmin:
    """`pulsar-admin`, at one service."""

    def __init__(self, gateway: JavaGateway, config: Path) -> None:
        self._java = gateway.jvm
        self._gateway = gateway
        self._config = config
        tool = self._java.java.lang.Class.forName(ADMIN_TOOL)
        self._exit_code = tool.getDeclaredField("lastExitCode")
        may_exit = tool.getDeclaredField("allowSystemExit")
        for field in (self._exit_code, may_exit):
            field.setAccessible(True)
        may_exit.setBoolean(None, False)

    def __call__(self, *arguments: str) -> Answer:
        system = self._java.java.lang.System
        out, err = self._java.java.io.ByteArrayOutputStream(), self._java.java.io.ByteArrayOutputStream()
        before = system.out, system.err
        system.setOut(self._java.java.io.PrintStream(out, True))
        system.setErr(self._java.java.io.PrintStream(err, True))
        try:
            # Its client stays open until Java ends, some 3 MB a call: closing each would cost seconds.
            getattr(self._java, ADMIN_TOOL).execute(self._strings(str(self._config), *arguments))
        finally:
            system.setOut(before[0])
            system.setErr(before[1])
        message = "".join(line for line in out.toString().splitlines(keepends=True) if not line.startswith(_TEST_MODE))
        return Answer(self._exit_code.getInt(None), message.lstrip("\n"), err.toString())

    def _strings(self, *values: str) -> Any:
        array = self._gateway.new_array(self._java.java.lang.String, len(values))
        for position, value in enumerate(values):
            array[position] = value
        return array


def _py4j_jar() -> str:
    import pyspark

    candidates = [*Path(pyspark.__file__).parent.glob("jars/py4j-*.jar")]
    assert candidates, "pyspark brings no jar of Py4J"
    return str(candidates[0])
