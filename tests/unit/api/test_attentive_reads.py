"""Who waits for a line hears Ctrl-C, also one that came right before he began to wait."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from api.formats.encoding import TextEncoding
from api.formats.jsonl import read_rows


def interrupt_a_sleeper(main: int) -> None:
    """Once the main thread waits in the system: a SIGINT that cuts no wait of its short, as if it came just before."""
    while Path(f"/proc/self/task/{main}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] != "S":
        pass
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)


def test_an_interrupt_that_cut_no_read_short_is_heard_before_the_next_line(monkeypatch: pytest.MonkeyPatch) -> None:
    reads, writes = os.pipe()
    with os.fdopen(reads) as stdin, os.fdopen(writes, "w") as producer:
        monkeypatch.setattr(sys, "stdin", stdin)
        producer.write('{"key": "k", "value": "v"}\n')
        producer.flush()
        rows = read_rows("-", TextEncoding.UTF8, TextEncoding.UTF8)
        assert next(rows).key == b"k"
        other = threading.Thread(target=interrupt_a_sleeper, args=(threading.get_native_id(),))
        other.start()
        with pytest.raises(KeyboardInterrupt):
            next(rows)
        other.join()
