"""The door for Spark: topics as a data source (docs/spark.md)."""

from api.spark.data_source import register

__all__ = ["register"]
