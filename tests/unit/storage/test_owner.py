"""Owners: their text and its parser, processes with equal names, and dead processes."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from storage.owner import Owner, is_dead, new_owner_name, same_process

PROC = Path("/proc/self/stat").exists()


def test_a_text_is_an_owner_and_back() -> None:
    owner = Owner.current()
    assert Owner.parse(str(owner)) == owner
    assert new_owner_name() != new_owner_name()
    assert same_process(new_owner_name(), new_owner_name())


def test_texts_of_older_versions_still_parse() -> None:
    assert Owner.parse("vm:7:9d8e7f60") == Owner("vm", 7, "9d8e7f60")
    assert str(Owner("vm", 7, "9d8e7f60")) == "vm:7:9d8e7f60"
    assert same_process("vm:7:aa", "vm:7:bb")
    assert not same_process("vm:7:aa", "vm:71:bb")
    assert Owner.parse("import") is None
    assert not same_process("import", "import")
    assert not is_dead("vm:7:aa")
    assert not is_dead("import")


def test_containers_with_one_host_name_and_pid_are_two_processes() -> None:
    owner = Owner("container", 1, "aa", "0a0a0a0a", "1f")
    assert owner.same_process(replace(owner, nonce="bb"))
    assert not owner.same_process(replace(owner, machine="0b0b0b0b"))
    assert not owner.same_process(replace(owner, start="2f"))
    assert not owner.same_process(replace(owner, machine="", start=""))


def test_without_proc_processes_are_distinguished_and_none_is_known_to_be_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system reports nothing about these process ids, which are larger than any that it assigns."""

    def current(pid: int) -> Owner:
        monkeypatch.setattr(os, "getpid", lambda: pid)
        return Owner.current()

    first, second = current(999_999_997), current(999_999_998)
    assert not replace(first, pid=second.pid).same_process(second)
    assert not replace(first, pid=999_999_999).is_dead


def start_of(pid: int) -> str:
    """Return the start of a process as /proc states it, in the form that a text has."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return f"{int(fields[19]):x}"


@pytest.mark.skipif(not PROC, reason="the system does not tell when a process started")
def test_a_dead_process_of_this_machine_is_known() -> None:
    """One subprocess: a process that ended, first as a zombie. Costs a fork."""
    alive = Owner.current()
    assert not alive.is_dead
    assert alive.start == start_of(alive.pid)
    assert replace(alive, start="0").is_dead, "its pid was given to another process since"
    assert not replace(alive, start="0", machine="0a0a0a0a").is_dead, "of another machine nothing is known"
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    other = replace(alive, pid=child.pid, start=start_of(child.pid))
    assert not other.is_dead
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert other.is_dead, "a zombie runs no more"
    child.communicate()
    assert other.is_dead
