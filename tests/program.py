"""Running one of the two programs in this process, as a user would type it, and what it left behind."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest


@dataclass(frozen=True)
class Ran:
    """The result of a command. `program`: the beginning of its lines on stderr."""

    program: str
    exit_code: int
    raw_stdout: bytes
    stderr: str

    @property
    def stdout(self) -> str:
        return self.raw_stdout.decode()

    @property
    def lines(self) -> list[str]:
        return self.stdout.splitlines()

    @property
    def json(self) -> Any:
        return json.loads(self.raw_stdout)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """stdout as JSON Lines."""
        return [json.loads(line) for line in self.lines]

    def refused(self, exit_code: int, *says: str) -> str:
        """Asserts that this is a refusal as it must be: that code, nothing on stdout, and one line with `says`."""
        assert self.exit_code == exit_code, self.stderr
        assert self.raw_stdout == b""
        assert "Traceback" not in self.stderr
        lines = self.stderr.splitlines()
        assert len(lines) == 1, lines
        assert lines[0].startswith(f"{self.program}: ")
        assert not lines[0].startswith(f"{self.program}: unexpected"), "a user can do nothing about an unexpected error"
        for text in says:
            assert text in lines[0]
        return lines[0]

    def done(self) -> Self:
        """Asserts that the command did what it should."""
        assert self.exit_code == 0, self.stderr
        return self


@dataclass(frozen=True)
class Program:
    """Runs a command: `program("topics", "list", stdin=b"")`. `folder` takes what it reads from stdin."""

    name: str
    main: Callable[[], object]
    folder: Path
    monkeypatch: pytest.MonkeyPatch

    def __call__(self, *arguments: str, stdin: bytes = b"") -> Ran:
        file = self.folder / "stdin"
        file.write_bytes(stdin)
        # Both are kept here: a wrapper without a reference closes its file.
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
        with file.open() as text, self.monkeypatch.context() as process:
            process.setattr(sys, "argv", [self.name, *arguments])
            process.setattr(sys, "stdin", text)
            process.setattr(sys, "stdout", out)
            process.setattr(sys, "stderr", err)
            with pytest.raises(SystemExit) as ended:
                self.main()
            out.flush()
        code = ended.value.code
        stdout, stderr = (stream.buffer for stream in (out, err))
        assert isinstance(stdout, io.BytesIO)
        assert isinstance(stderr, io.BytesIO)
        return Ran(self.name, code if isinstance(code, int) else 0, stdout.getvalue(), stderr.getvalue().decode())

    def json(self, *arguments: str) -> Any:
        """The document that a command prints with `--output json`, when it did what it should."""
        return self(*arguments, "--output", "json").done().json


def loaded(program: str, arguments: Sequence[str], modules: Sequence[str]) -> list[str]:
    """Those of `modules` that a process of the program has imported at its end. `program`: the module of its `main`."""
    probe = (
        f"import sys; from {program} import main; sys.argv = ['program', *sys.argv[1:]]\n"
        "try: main()\n"
        f"finally: print(*sorted({set(modules)} & set(sys.modules)), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", probe, *arguments], capture_output=True, text=True, check=False)
    return result.stderr.splitlines()[-1].split()
