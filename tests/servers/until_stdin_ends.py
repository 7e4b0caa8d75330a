"""Runs a command in a process group of its own until it ends, or until stdin does: then the whole group is ended.

The process that started this holds the other end of stdin, so that nothing remains when it is killed. The command's
process id goes to stdout.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading

PATIENCE_SECONDS = 10


def main(command: list[str]) -> int:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    print(process.pid, flush=True)

    def end() -> None:
        sys.stdin.buffer.read()
        signal_group(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE_SECONDS)
        signal_group(process.pid, signal.SIGKILL)

    threading.Thread(target=end, daemon=True).start()
    status = process.wait()
    signal_group(process.pid, signal.SIGKILL)
    return status


def signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))  # the thread may still read stdin
