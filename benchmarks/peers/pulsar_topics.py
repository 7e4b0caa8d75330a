"""Topics of a server with Pulsar's protocol and admin REST: the real broker, or a service of this project.

The time of a compaction is from the trigger (REST) to the first answer SUCCESS, polled every 20 ms.
"""

from __future__ import annotations

import http.client
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.data import KEY_BYTES, Shape
from benchmarks.peers.artifacts import Artifacts
from benchmarks.peers.contender import Compaction, Deadline, Messages, PeerFailed
from benchmarks.peers.records import Survivors, survivors_of_file

BATCH_BYTES = 128 << 10
"""Batch size of the producer, with at most 1,000 messages: Pulsar's own defaults."""

POLL_SECONDS = 0.02
_HTTP_SECONDS = 60
_TOPICS = "/admin/v2/persistent/public/default"


@dataclass(frozen=True)
class PulsarTopics:
    """The topics of one server. `check` raises PeerFailed if the server has ended or a deadline is over.

    `token`: the token of a superuser, if the server requires one.
    """

    name: str
    artifacts: Artifacts
    url: str
    web_url: str
    folder: Path
    limit: float
    check: Callable[[Deadline], None]
    compression: bool = False
    token: str = ""

    def load(self, messages: Messages, topic: str) -> float:
        """Send the messages by the Java client. Return the seconds of sending."""
        codec = "LZ4" if self.compression else "NONE"
        sizes = str(KEY_BYTES), str(messages.shape.payload_bytes)
        arguments = str(messages.records), *sizes, codec, str(BATCH_BYTES)
        return self.artifacts.send(self.url, _full_name(topic), *arguments, limit=self.limit)

    def compact(self, topic: str) -> Compaction:
        """Trigger a compaction and wait for its end."""
        deadline = Deadline(self.limit, f"{self.name}: compacting {topic}")
        started = time.perf_counter()
        status, body = self.request("PUT", f"{_TOPICS}/{topic}/compaction")
        if status != 204:
            raise PeerFailed(f"{self.name}: the trigger was answered with {status}: {body[:300]!r}")
        while (answer := self._compaction(topic))["status"] != "SUCCESS":
            if answer["status"] == "ERROR":
                raise PeerFailed(f"{self.name}: compacting {topic} ended in ERROR: {answer.get('lastError')}")
            self.check(deadline)
            time.sleep(POLL_SECONDS)
        return Compaction(time.perf_counter() - started)

    def survivors(self, topic: str, shape: Shape) -> Survivors:
        """Return the messages of a compacted reader."""
        file = self.folder / "survivors"
        arguments = str(file), str(KEY_BYTES), str(shape.payload_bytes)
        self.artifacts.run_client("read", self.url, _full_name(topic), *arguments, limit=self.limit)
        try:
            return survivors_of_file(file, shape.payload_bytes)
        finally:
            file.unlink()

    def delete(self, topic: str) -> None:
        """Delete the topic, in whatever state."""
        self.request("DELETE", f"{_TOPICS}/{topic}?force=true")

    def request(self, method: str, path: str) -> tuple[int, bytes]:
        """Return status and body of an answer of the admin REST. Raises PeerFailed."""
        connection = http.client.HTTPConnection(urlsplit(self.web_url).netloc, timeout=_HTTP_SECONDS)
        try:
            connection.request(method, path, headers={"Authorization": f"Bearer {self.token}"} if self.token else {})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except OSError as error:
            raise PeerFailed(f"{self.name}: {method} {path} was not answered ({error})") from error
        finally:
            connection.close()

    def _compaction(self, topic: str) -> dict[str, str]:
        status, body = self.request("GET", f"{_TOPICS}/{topic}/compaction")
        if status != 200:
            raise PeerFailed(f"{self.name}: the compaction's status was answered with {status}: {body[:300]!r}")
        answer: dict[str, str] = json.loads(body)
        return answer


class TopicsContender(ABC):
    """The steps of a contender that PulsarTopics carries out."""

    @property
    @abstractmethod
    def topics(self) -> PulsarTopics:
        """The topics of the started server."""

    def load(self, messages: Messages, topic: str) -> float:
        return self.topics.load(messages, topic)

    def compact(self, topic: str) -> Compaction:
        return self.topics.compact(topic)

    def survivors(self, topic: str, shape: Shape) -> Survivors:
        return self.topics.survivors(topic, shape)

    def forget(self, topic: str) -> None:
        self.topics.delete(topic)


def _full_name(topic: str) -> str:
    return f"persistent://public/default/{topic}"
