"""A Java process with Pulsar's clients on its class path, spoken to through Py4J (which Spark brings): no compiler.

`PulsarAdmin` runs the commands of `pulsar-admin`, one after the other, in one process: a process for each would cost
two seconds. Its exit code is what the program would have ended with.
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
_UNVERIFIED = ("-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote")
"""The jars are those of the locks; to verify their bytecode takes a seventh of the CPU of a client that starts."""
OPTIONS = ("-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *_UNVERIFIED)


@dataclass(frozen=True)
class Answer:
    """The result of a call of pulsar-admin."""

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
    """`pulsar-admin`, at one service, in one Java process.

    One tool runs every command, as in Pulsar's shell: a tool for each would build all commands and a client again. The
    arguments, the output and the exit code are those of `main`, which does no more than read the configuration.
    """

    def __init__(self, gateway: JavaGateway, config: Path) -> None:
        self._gateway, self._java = gateway, gateway.jvm.java
        properties = self._java.util.Properties()
        properties.load(self._java.io.StringReader(config.read_text(encoding="utf-8")))
        self._tool = getattr(gateway.jvm, ADMIN_TOOL)(properties)
        tool = self._java.lang.Class.forName(ADMIN_TOOL)
        commander, strings = tool.getDeclaredField("commander"), self._strings().getClass()
        self._run = tool.getDeclaredMethod("run", self._array("Class", strings))
        for member in (commander, self._run):
            member.setAccessible(True)
        self._commander = commander.get(self._tool)

    def __call__(self, *arguments: str) -> Answer:
        out, err = self._java.io.ByteArrayOutputStream(), self._java.io.ByteArrayOutputStream()
        # Streams for this call alone: `broker-stats` closes System.out.
        self._java.lang.System.setOut(self._java.io.PrintStream(out, True))
        self._java.lang.System.setErr(self._java.io.PrintStream(err, True))
        self._commander.setOut(self._java.io.PrintWriter(out, True))
        self._commander.setErr(self._java.io.PrintWriter(err, True))
        succeeded = self._run.invoke(self._tool, self._array("Object", self._strings(*arguments)))
        return Answer(0 if succeeded else 1, out.toString(), err.toString())

    def _strings(self, *values: str) -> Any:
        return self._array("String", *values)

    def _array(self, kind: str, *values: Any) -> Any:
        """Return an array of a class of java.lang."""
        array = self._gateway.new_array(getattr(self._java.lang, kind), len(values))
        for position, value in enumerate(values):
            array[position] = value
        return array


def _py4j_jar() -> str:
    import pyspark

    candidates = [*Path(pyspark.__file__).parent.glob("jars/py4j-*.jar")]
    assert candidates, "pyspark brings no jar of Py4J"
    return str(candidates[0])
