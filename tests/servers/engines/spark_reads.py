"""Reads Iceberg tables by Spark, in an environment of its own; started by tests/servers/table_engines.py.

Arguments: the jar of Iceberg's runtime. Standard input: a JSON list of URIs of metadata files. Standard output, after
what Spark prints: a JSON list of the rows of each table, read in vectors and row by row, bytes as hexadecimal digits.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession


def main() -> None:
    builder = SparkSession.builder.master("local[1]").config("spark.jars", sys.argv[1])
    for name, value in {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    answers = []
    for uri in json.load(sys.stdin):
        ways = []
        for vectorized in ("true", "false"):
            table = session.read.format("iceberg").option("vectorization-enabled", vectorized).load(uri)
            columns = ("offset", "hex(key)", "hex(payload)", "publish_time", "event_time")
            rows = table.selectExpr(*columns).orderBy("offset").collect()
            ways.append([[value.lower() if isinstance(value, str) else value for value in row] for row in rows])
        answers.append(ways)
    print(json.dumps(answers))


main()
