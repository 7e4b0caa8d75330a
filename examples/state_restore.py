"""A program whose state is a topic: the newest value of each key, in memory, restored when the program starts.

    python examples/state_restore.py http://127.0.0.1:8080 users state.json

The first start reads the compacted topic: one message a key, not the history. The file keeps the values and the place
in the topic, so a later start reads only what came since. If messages that the program has not read were compacted and
trimmed meanwhile, it may have missed a deletion: the service says so (StateMayBeStale), and the state is read again.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

import compactor.client
from compactor.client import ClientError, Message, StateMayBeStale, Topic


@dataclass
class State:
    """The newest value of each key. `position`: the start of the next read; None: nothing was read."""

    values: dict[str, str] = field(default_factory=dict)
    position: str | None = None

    def apply(self, message: Message) -> None:
        """Change the state by a message. To apply it again, after an interrupted read, changes nothing more."""
        if message.key is None:
            return
        key = message.key.decode()
        if message.is_tombstone or message.value is None:
            self.values.pop(key, None)
        else:
            self.values[key] = message.value.decode()


def load(file: Path) -> State:
    """Return the state of a file; without it, an empty one."""
    return State(**json.loads(file.read_text(encoding="utf-8"))) if file.exists() else State()


def save(state: State, file: Path) -> None:
    """Replace the file, whole or not at all."""
    written = file.with_suffix(".new")
    written.write_text(json.dumps(asdict(state)), encoding="utf-8")
    written.replace(file)


def catch_up(topic: Topic, state: State) -> State:
    """Return the state after all messages that the topic has now."""
    read = topic.read(compacted=True, start=state.position or "earliest")
    try:
        for message in read:
            state.apply(message)
    except StateMayBeStale:
        return catch_up(topic, State())
    state.position = read.next
    return state


def main() -> None:
    """Restore the state of a topic, print it, and keep it for the next start."""
    if len(sys.argv) != 4:
        sys.exit("usage: python examples/state_restore.py URL TOPIC FILE")
    url, name, file = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    try:
        with compactor.client.connect(url) as client:
            state = catch_up(client.topic(name), load(file))
    except (ClientError, ValueError) as error:  # no service, no topic, no permission; or no address
        sys.exit(f"{name} was not read: {error}")
    save(state, file)
    print(json.dumps(state.values, indent=2))


if __name__ == "__main__":
    main()
