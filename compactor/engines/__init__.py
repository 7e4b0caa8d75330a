"""Engines that execute the tasks of runs: Spark, or this process. Only spark.py imports pyspark."""
