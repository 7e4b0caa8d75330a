"""How tests start Java: with the quick compiler alone and one thread of garbage collection.

A Spark of a test lives for some seconds, of which the second compiler takes half: 8 s of CPU a start instead of 16.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

LIGHT_JAVA: Mapping[str, str] = MappingProxyType(
    {
        "SPARK_LAUNCHER_OPTS": _OPTIONS,
        "SPARK_SUBMIT_OPTS": f"{_OPTIONS} -Dspark.executor.extraJavaOptions=-XX:TieredStopAtLevel=1",
        "SPARK_DAEMON_JAVA_OPTS": _OPTIONS,
    }
)
"""For the environment: of Spark's launcher, of drivers and their executors, of masters and workers."""
