"""What every test may use: how hypothesis runs, and a local object store.

Hypothesis has no deadline: a test must not assert a time, not even through its tools.
"""

from __future__ import annotations

import pytest
from hypothesis import settings

from storage.objects.interface import ObjectStore
from storage.objects.registry import open_store

settings.register_profile("compactor", deadline=None, print_blob=True)
settings.load_profile("compactor")


@pytest.fixture(scope="session")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> ObjectStore:
    """A local store that tests share, so that hypothesis can use it: give each object a name of its own."""
    return open_store(tmp_path_factory.mktemp("objects").as_uri())
