"""The engines by name. A module of its own, because settings are read before engines are imported."""

IN_PROCESS = "in-process"
"""No Spark, one task at a time. Also a value of the setting spark-master, from before the setting compaction.engine."""
SPARK = "spark"
AUTO = "auto"
"""Small jobs in process, large ones on Spark."""
