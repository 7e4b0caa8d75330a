"""Owners of rows: each is a process on a machine, at one piece of work.

A row (lease, attempt, run, pin, service) holds an owner's text; only this module builds and parses it:

    <host>:<pid>:<machine>-<start>:<nonce>      vm7:4242:5f3a9c1e-1a2b3c:9d8e7f60
    <host>:<pid>:<nonce>                        of older versions

Host and pid are for operators. They do not identify a process: containers share a host name and all run as pid 1, and a
pid is reused. `machine` is a hash of the boot and the pid namespace, `start` the time at which the process started
there (in hex, clock ticks since the boot). So a process can determine that an owner on its own machine is dead. If the
system does not report them (no Linux), both are random: processes differ, and none is known to be dead.

Invariants: a live process never counts as dead; a process whose state is unknown counts as alive.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

_TEXT = re.compile(
    r"(?P<host>.+):(?P<pid>\d{1,9})(?::(?P<machine>[0-9a-f]{8})-(?P<start>[0-9a-f]{1,16}))?:(?P<nonce>[^:]*)", re.ASCII
)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_START_AT = 19
"""The field of /proc/<pid>/stat, counted from the state."""
_DEAD_STATES = ("Z", "X")
"""The states of a zombie, and of a process that is being removed: its parent has not read its exit status yet."""


@dataclass(frozen=True)
class Owner:
    """A process at one piece of work. `machine` and `start` are empty in texts of older versions."""

    host: str
    pid: int
    nonce: str
    machine: str = ""
    start: str = ""

    @classmethod
    def current(cls) -> Owner:
        """Return an owner for this process, with a new nonce for a new piece of work."""
        machine, start = _machine_and_start(os.getpid())
        return cls(socket.gethostname(), os.getpid(), secrets.token_hex(4), machine, start)

    @classmethod
    def parse(cls, text: str) -> Owner | None:
        """Return the owner that a text of a row names; None for a text of another form."""
        match = _TEXT.fullmatch(text)
        if match is None:
            return None
        return cls(match["host"], int(match["pid"]), match["nonce"], match["machine"] or "", match["start"] or "")

    def __str__(self) -> str:
        process = f":{self.machine}-{self.start}" if self.machine else ""
        return f"{self.host}:{self.pid}{process}:{self.nonce}"

    def same_process(self, other: Owner) -> bool:
        """Return whether both owners are pieces of work of the same process."""
        return (self.host, self.pid, self.machine, self.start) == (other.host, other.pid, other.machine, other.start)

    @property
    def is_on_this_machine(self) -> bool:
        """True if the process runs, or ran, on this machine since its boot."""
        return bool(self.machine) and self.machine == _machine_and_start(os.getpid())[0]

    @property
    def is_dead(self) -> bool:
        """True if the process is known to have ended: it ran on this machine and does not exist any more."""
        if not self.is_on_this_machine:
            return False
        try:
            os.kill(self.pid, 0)  # /proc may hide the processes of other users
        except ProcessLookupError:
            return True
        except OSError:
            pass
        status = _state_and_start(self.pid)
        return status is not None and (status[0] in _DEAD_STATES or status[1] != self.start)


def new_owner_name() -> str:
    """Return the text of a new owner: unique, for a new piece of work of this process, with its host and pid."""
    return str(Owner.current())


def same_process(text: str, other: str) -> bool:
    """Return whether two owners, by their texts, are of the same process; False if a text has another form."""
    first, second = Owner.parse(text), Owner.parse(other)
    return first is not None and second is not None and first.same_process(second)


def is_dead(text: str) -> bool:
    """Return whether an owner, by its text, is known to be a process that has ended (`Owner.is_dead`)."""
    owner = Owner.parse(text)
    return owner is not None and owner.is_dead


def is_alive_here(text: str) -> bool:
    """Return whether an owner, by its text, is known to be a live process of this machine."""
    owner = Owner.parse(text)
    return owner is not None and owner.is_on_this_machine and not owner.is_dead


@cache
def _machine_and_start(pid: int) -> tuple[str, str]:
    """Return the hash of this machine and the start time of this process, in hex; random if unknown.

    Cached by pid, since a fork is another process.
    """
    status = _state_and_start(pid)
    try:
        boot = _BOOT_ID.read_text().strip() + os.readlink("/proc/self/ns/pid")
    except OSError:
        boot = ""
    if status is None or not boot:
        return secrets.token_hex(4), secrets.token_hex(4)
    return sha256(boot.encode()).hexdigest()[:8], status[1]


def _state_and_start(pid: int) -> tuple[str, str] | None:
    """Return the state letter and the start time (hex) of a process; None if the system does not report them."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
        fields = text[text.rindex(b")") + 2 :].split()  # a command's name may hold spaces and brackets
        return fields[0].decode("ascii"), f"{int(fields[_START_AT]):x}"
    except (OSError, ValueError, IndexError):
        return None
