"""Sealers that are forked instead of spawned, in services that tests start: the imports of one take 1 s of CPU.

`BackgroundSealer` spawns its process. Inside `forking_sealers` the spawned command is executed by a fork of the process
of service_forks.py, which has its imports: with its descriptors, its environment and its pipes. How it is spawned is
proven by the tests of `compactor produce` and by the services that are not forked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import context, resource_tracker, util
from multiprocessing.popen_spawn_posix import Popen
from multiprocessing.process import BaseProcess
from typing import Any, TypeAlias
from unittest import mock

from tests.servers.service_forks import ForkedProcess

Fork: TypeAlias = Callable[[Sequence[str], Sequence[int]], ForkedProcess]
"""Executes a command of Python in a fork, with these descriptors under their numbers."""


class _ForkedPopen(Popen):
    """The start and the end of a process that is forked by another one, which tells its exit code."""

    def __init__(self, process: BaseProcess, fork: Fork) -> None:
        self._fork = fork
        self._forked: ForkedProcess | None = None
        super().__init__(process)

    def _launch(self, process: BaseProcess) -> None:
        resource_tracker.ensure_running()
        with mock.patch.object(util, "spawnv_passfds", self._start):
            super()._launch(process)  # type: ignore[misc]

    def _start(self, python: bytes, command: Sequence[str], descriptors: Sequence[int]) -> int:
        self._forked = self._fork([os.fsdecode(word) for word in command], descriptors)
        return self._forked.pid

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        assert self._forked is not None
        self.returncode = self._forked.poll() if flag == os.WNOHANG else self._forked.wait()
        return self.returncode


@contextmanager
def forking_sealers(fork: Callable[[], Fork]) -> Iterator[None]:
    """Inside, the sealers of this process are forked. `fork` is called with the first one."""
    spawn = context.SpawnProcess._Popen  # type: ignore[attr-defined]

    def start(process: BaseProcess) -> Any:
        return _ForkedPopen(process, fork()) if process.name == "sealer" else spawn(process)

    with mock.patch.object(context.SpawnProcess, "_Popen", staticmethod(start)):
        yield
