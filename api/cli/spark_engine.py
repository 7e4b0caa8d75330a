"""Spark for a command: started when it is needed, told of on a terminal, stopped at the end."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from api.cli.talk import say
from api.settings import Settings

if TYPE_CHECKING:
    from compactor.spark import SparkEngine


@contextmanager
def spark_engine(settings: Settings) -> Iterator[SparkEngine]:
    """An engine on a session of its own. Raises Misconfigured, Unavailable."""
    from compactor.spark import SparkEngine, SparkSettings, open_session

    if sys.stderr.isatty():
        say("starting Spark …")
    log_file = settings.make_data_directory() / "spark.log"
    session = open_session(SparkSettings(log_file, settings.spark_master), say)
    try:
        yield SparkEngine(session)
    finally:
        # Stopping a Java that has died fails, too, and would hide why.
        with suppress(Exception):
            session.stop()
