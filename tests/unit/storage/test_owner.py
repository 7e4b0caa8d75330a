"""Who owns something: one text, made and taken apart in one place; processes told apart, dead ones known."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from storage import owner
from storage.owner import Owner, is_dead, owner_name, same_process

PROC = Path("/proc/self/stat").exists()


def test_a_text_is_an_owner_and_back() -> None:
    one = Owner.current()
    assert Owner.parse(str(one)) == one
    assert owner_name() != owner_name()
    assert same_process(owner_name(), owner_name())


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
    one = Owner("container", 1, "aa", "0a0a0a0a", "1f")
    assert one.same_process(replace(one, nonce="bb"))
    assert not one.same_process(replace(one, machine="0b0b0b0b"))
    assert not one.same_process(replace(one, start="2f"))
    assert not one.same_process(replace(one, machine="", start=""))


def test_without_proc_processes_are_told_apart_and_none_is_known_to_be_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "_stat", lambda pid: None)
    owner._process.cache_clear()
    try:
        one = Owner.current()
        owner._process.cache_clear()
        assert not Owner.current().same_process(one)
        assert not replace(one, pid=999_999_999).is_dead
    finally:
        owner._process.cache_clear()


@pytest.mark.skipif(not PROC, reason="the system does not tell when a process started")
def test_a_dead_process_of_this_machine_is_known() -> None:
    """One subprocess: a process that ended, first as a zombie. Costs a fork."""
    alive = Owner.current()
    assert not alive.is_dead
    assert replace(alive, start="0").is_dead, "its pid was given to another process since"
    assert not replace(alive, start="0", machine="0a0a0a0a").is_dead, "of another machine nothing is known"
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    found = owner._stat(child.pid)
    assert found is not None
    other = replace(alive, pid=child.pid, start=found[1])
    assert not other.is_dead
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert other.is_dead, "a zombie runs no more"
    child.communicate()
    assert other.is_dead
