"""Topics as Spark's tables and streams: the format `tandemmq`. docs/howto/spark.md shows it.

    from tandemmq.spark import register

    register(spark)
    orders = spark.read.format("tandemmq").option("namesrv", "127.0.0.1:9876").option("topics", "Orders").load()

options, positions, planning, pruning, shapes, outgoing and topics decide; cluster, pulling, logs and sending reach
servers; source is what Spark sees of it, and the only one that knows pyspark.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["register"]


def register(spark: Any) -> None:
    """Make the format `tandemmq` known to a session. Raises ImportError that names what to install.

    Example: register(SparkSession.builder.getOrCreate())
    """
    try:
        source = importlib.import_module("tandemmq.spark.source")
    except ModuleNotFoundError as problem:
        if (problem.name or "").split(".")[0] in ("pyspark", "pyarrow", "numpy", "xxhash"):
            raise ImportError(
                f"{problem.name} is missing: pip install 'tandemmq[spark]' (Spark also needs Java 17 or later)"
            ) from problem
        raise
    spark.dataSource.register(source.TandemSource)
