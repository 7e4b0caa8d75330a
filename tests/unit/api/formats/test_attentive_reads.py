"""A read that waits for a line reacts to a signal such as Ctrl-C, also to one that came right before the wait."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import api.formats.csv_rows
from api.formats.csv_rows import read_csv_rows
from api.formats.inputs import InputOptions
from api.formats.jsonl import InputMessage, read_json_lines
from api.formats.text_encoding import TextEncoding


class Heard(Exception):
    """The signal's handler was called."""


@pytest.fixture
def heard() -> Iterator[signal.Signals]:
    """A signal whose handler raises Heard, whatever becomes of Ctrl-C where tests run."""

    def hear(*_: object) -> None:
        raise Heard

    before = signal.signal(signal.SIGUSR1, hear)
    yield signal.SIGUSR1
    signal.signal(signal.SIGUSR1, before)


def signal_a_sleeper(main: int, begun: threading.Event, number: signal.Signals) -> None:
    """Once the main thread waits in the system: a signal that cuts no wait of its short, as if it came just before."""
    begun.wait()
    while Path(f"/proc/self/task/{main}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] != "S":
        pass
    signal.pthread_kill(threading.get_ident(), number)


@pytest.mark.timeout(60)  # unheard, it would be waited for without end
def test_a_signal_that_cut_no_read_short_is_heard_before_the_next_line(
    monkeypatch: pytest.MonkeyPatch, heard: signal.Signals
) -> None:
    begun = threading.Event()
    reads, writes = os.pipe()
    with os.fdopen(reads) as stdin, os.fdopen(writes, "w") as producer:
        monkeypatch.setattr(sys, "stdin", stdin)
        producer.write('{"key": "k", "value": "v"}\n')
        producer.flush()
        rows = read_json_lines("-", TextEncoding.UTF8, TextEncoding.UTF8)
        assert next(rows).key == b"k"
        other = threading.Thread(target=signal_a_sleeper, args=(threading.get_native_id(), begun, heard))
        other.start()

        def next_row() -> InputMessage:
            begun.set()
            return next(rows)

        with pytest.raises(Heard):
            next_row()
        other.join()


@pytest.mark.timeout(60)
def test_a_signal_ends_the_wait_for_more_rows_of_csv(monkeypatch: pytest.MonkeyPatch, heard: signal.Signals) -> None:
    """Arrow's thread waits for the pipe meanwhile, and ends, too."""
    monkeypatch.setattr(api.formats.csv_rows, "BLOCK_BYTES", 16)
    begun = threading.Event()
    reads, writes = os.pipe()
    with os.fdopen(reads) as stdin, os.fdopen(writes, "w") as producer:
        monkeypatch.setattr(sys, "stdin", stdin)
        producer.write("id,v\n" + "1,2\n" * 8)
        producer.flush()
        tables = read_csv_rows("-", InputOptions(key_field="id"))
        other = threading.Thread(target=signal_a_sleeper, args=(threading.get_native_id(), begun, heard))
        other.start()

        def all_rows() -> list[pa.Table]:
            begun.set()
            return list(tables)

        with pytest.raises(Heard):
            all_rows()
        other.join()
        for thread in threading.enumerate():
            if thread.name.startswith("csv"):  # not joined, if the signal came while it started
                thread.join()
