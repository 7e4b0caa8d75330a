"""A JVM whose start is abandoned: no caller waits for it, and nothing remains. A script stands for Spark's."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from compactor.engines.jvm import Jvm, StartFailed

WAITS = "#!/bin/sh\nexec cat\n"
"""Never says how it is reached; ends with its stdin."""
ANSWERS = r"""#!/bin/sh
echo "$@" > "$0.arguments"
printf '\000\000\037\220\000\000\000\006secret' > "$_PYSPARK_DRIVER_CONN_INFO_PATH.new"
mv "$_PYSPARK_DRIVER_CONN_INFO_PATH.new" "$_PYSPARK_DRIVER_CONN_INFO_PATH"
exec cat
"""


def script(folder: Path, text: str) -> Path:
    file = folder / "spark-submit"
    file.write_text(text)
    file.chmod(0o755)
    return file


def launched(jvm: Jvm, submit: Path) -> tuple[int, str]:
    with Path(f"{submit}.log").open("ab") as log:
        return jvm.launch(submit, [("spark.a", "b c")], log)


def process_of(jvm: Jvm) -> subprocess.Popen[bytes]:
    """Its process, once it has one."""
    while jvm.process is None:
        pass
    return jvm.process


def test_it_says_how_it_is_reached_and_ends_with_all_that_it_started(tmp_path: Path) -> None:
    jvm = Jvm()
    submit = script(tmp_path, ANSWERS)
    assert launched(jvm, submit) == (8080, "secret")
    assert Path(f"{submit}.arguments").read_text() == "--conf spark.a=b c pyspark-shell\n"
    process = process_of(jvm)
    assert (process.poll(), os.getpgid(process.pid)) == (None, process.pid)
    jvm.kill()
    jvm.kill()
    assert process.poll() == -signal.SIGKILL


def test_who_waits_for_it_hears_that_it_was_given_up_and_none_starts_afterwards(tmp_path: Path) -> None:
    jvm = Jvm()
    submit = script(tmp_path, WAITS)
    ender = threading.Thread(target=lambda: (process_of(jvm), jvm.kill()))
    ender.start()
    with pytest.raises(StartFailed, match="exit code -9"):
        launched(jvm, submit)
    ender.join()
    with pytest.raises(StartFailed, match="the start was cancelled"):
        launched(jvm, submit)


def test_one_that_fails_is_told_with_its_exit_code(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match="exit code 3"):
        launched(Jvm(), script(tmp_path, "#!/bin/sh\nexit 3\n"))


def test_a_signal_while_it_starts_ends_it_at_once(tmp_path: Path) -> None:
    """SIGUSR1 stands for Ctrl-C, which is ignored where tests run in the background."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    jvm = Jvm()
    sender = threading.Thread(target=lambda: (process_of(jvm), os.kill(os.getpid(), signal.SIGUSR1)))
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        sender.start()
        with pytest.raises(KeyboardInterrupt):
            launched(jvm, script(tmp_path, WAITS))
    finally:
        signal.signal(signal.SIGUSR1, before)
        sender.join()
    assert process_of(jvm).poll() == -signal.SIGKILL
