"""What every test may use: how hypothesis runs, a local object store, a Spark.

Hypothesis has no deadline: a test must not assert a time, not even through its tools.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from compactor.engine import Engine
from storage.objects.interface import ObjectStore
from storage.objects.registry import open_store

settings.register_profile("compactor", deadline=None, print_blob=True)
settings.load_profile("compactor")


@pytest.fixture(scope="session")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> ObjectStore:
    """A local store that tests share, so that hypothesis can use it: give each object a name of its own."""
    return open_store(tmp_path_factory.mktemp("objects").as_uri())


@pytest.fixture(scope="session")
def spark_credentials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file where Spark's workers look for S3 credentials: their environment is fixed when Spark starts."""
    file = tmp_path_factory.mktemp("aws") / "credentials"
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
        yield file


@pytest.fixture(scope="session")
def spark_engine(tmp_path_factory: pytest.TempPathFactory, spark_credentials: Path) -> Iterator[Engine]:
    """Spark on two cores of this machine, shared by all tests."""
    from compactor.spark import SparkEngine, SparkSettings, open_session

    log_file = tmp_path_factory.mktemp("spark") / "spark.log"
    session = open_session(SparkSettings(log_file, "local[2]", "1g"))
    yield SparkEngine(session)
    session.stop()
