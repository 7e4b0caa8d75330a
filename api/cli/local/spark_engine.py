"""The engine of a command: Spark, started when it is needed, announced on a terminal, stopped at the end.

Or none, if the settings say `in-process`: they serve `compactor serve` as well, and mean the same here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from api.cli.kit.stderr import say
from api.settings.settings import Settings

if TYPE_CHECKING:
    from compactor.engines.engine import Engine


@contextmanager
def spark_engine(settings: Settings) -> Iterator[Engine]:
    """An engine on a session of its own, or in this process. Raises Misconfigured, Unavailable."""
    from compactor.engines.engine import IN_PROCESS, InProcess

    if settings.spark_master == IN_PROCESS:
        yield InProcess()
        return
    from compactor.engines.spark import SparkEngine, SparkSettings, open_session

    if sys.stderr.isatty():
        say("starting Spark …")
    log_file = settings.make_data_directory() / "spark.log"
    engine = SparkEngine(open_session(SparkSettings(log_file, settings.spark_master), say))
    try:
        yield engine
    finally:
        engine.close()
