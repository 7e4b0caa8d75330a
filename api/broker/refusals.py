"""Refusals of operations, as errors: each door words them in its own protocol."""

from __future__ import annotations

from storage.errors import Conflict, InvalidInput


class ConsumerBusy(Conflict):
    """A subscription has consumers that another one may not join, or must not be taken from."""


class ConsumerNotAssigned(InvalidInput):
    """A key-shared consumer asks for a mode or for hash ranges that the other consumers do not leave it."""
