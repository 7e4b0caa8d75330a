"""Rates of messages and bytes, as topic stats and metrics show them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Rate:
    """Counters of messages and bytes, and their growth per second between the last two calls of `tick`."""

    messages: int = 0
    bytes: int = 0
    per_second: float = 0.0
    bytes_per_second: float = 0.0
    _messages_before: int = 0
    _bytes_before: int = 0

    def add(self, messages: int, size: int = 0) -> None:
        """Add messages and their bytes to the counters."""
        self.messages += messages
        self.bytes += size

    def tick(self, seconds: float) -> None:
        """Compute the rates per second from the growth of the counters since the last call, `seconds` ago."""
        self.per_second = (self.messages - self._messages_before) / seconds
        self.bytes_per_second = (self.bytes - self._bytes_before) / seconds
        self._messages_before, self._bytes_before = self.messages, self.bytes
