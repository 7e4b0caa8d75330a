"""Output to a terminal, without control characters, and output to a pipe, with all bytes."""

from __future__ import annotations

import io
import json
import sys

import pytest

from api.cli.admin.run_watch import progress_line
from api.cli.kit import stderr, tables
from api.cli.kit.terminal import LiveLine, json_lines_stdout, print_json, print_line
from api.cli.local.engine import PhaseLine

HOSTILE = "a\x1b]0;x\x07b\x9b31mc\u202ed\u2066e\u200ff\x85g\u2028h\U000e0001i é漢"


class Output(io.TextIOWrapper):
    """A standard stream."""

    def __init__(self, terminal: bool) -> None:
        self.bytes = io.BytesIO()
        self.terminal = terminal
        super().__init__(self.bytes, encoding="utf-8", write_through=True)

    def isatty(self) -> bool:
        return self.terminal

    @property
    def text(self) -> str:
        return self.bytes.getvalue().decode()


def streams(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> tuple[Output, Output]:
    out, err = Output(terminal), Output(terminal)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    return out, err


def is_harmless(text: str) -> bool:
    return all(character.isprintable() or character == "\n" for character in text)


@pytest.mark.parametrize("cut", [1, 7, 100])
def test_json_lines_on_a_terminal_mean_the_same_and_steer_nothing(monkeypatch: pytest.MonkeyPatch, cut: int) -> None:
    out, _ = streams(monkeypatch, terminal=True)
    lines = [json.dumps({"value": HOSTILE}, ensure_ascii=False), json.dumps({"key": "k"})]
    data = "".join(f"{line}\n" for line in lines).encode()
    stdout = json_lines_stdout()
    for first in range(0, len(data), cut):  # a character may be cut in two
        assert stdout.write(data[first : first + cut]) == len(data[first : first + cut])
    stdout.flush()
    print_json(lines[0])
    assert is_harmless(out.text)
    assert [json.loads(line) for line in out.text.splitlines()] == [
        {"value": HOSTILE},
        {"key": "k"},
        {"value": HOSTILE},
    ]
    assert "é漢" in out.text


def test_what_is_no_text_reaches_no_terminal_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    out, _ = streams(monkeypatch, terminal=True)
    json_lines_stdout().write(b"ARROW\xff\x9b\x00\x1b[31m")
    assert is_harmless(out.text)


def test_a_pipe_gets_the_bytes_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    out, _ = streams(monkeypatch, terminal=False)
    json_lines_stdout().write(HOSTILE.encode())
    print_line(HOSTILE)
    print_json(HOSTILE)
    assert out.text == HOSTILE + f"{HOSTILE}\n" * 2


def test_names_tables_and_errors_steer_no_terminal_and_tell_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = streams(monkeypatch, terminal=True)
    print_line(f"Topic {HOSTILE} created\nand more")
    assert is_harmless(out.text)
    assert out.text.count("\n") == 2
    stderr.say(f"compactor: {HOSTILE}: postgresql://me:hunter2@db/c: try again")
    assert is_harmless(err.text)
    assert "me:***@db" in err.text
    plain_out, _ = streams(monkeypatch, terminal=False)
    tables.print_table(("topic",), [(HOSTILE,)])
    assert is_harmless(plain_out.text)


def test_names_in_lines_of_progress_steer_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    _, err = streams(monkeypatch, terminal=True)
    LiveLine(err).show(progress_line({"run": 7, "topic": HOSTILE, "phase": None}))
    PhaseLine(err).begin_phase(HOSTILE, 1, 1)
    assert is_harmless(err.text.replace("\r\x1b[K", ""))
    assert err.text.count("é漢") == 2
