"""Topics as Spark's tables and streams, and rows sent to one."""

from typing import Any

from tandemmq.spark import register


def copy(spark: Any) -> int:
    register(spark)
    cluster = {"namesrv": "127.0.0.1:9876"}
    orders = spark.read.format("tandemmq").options(**cluster, topics="Orders").load()
    orders.select("body", "key").write.format("tandemmq").options(**cluster, topic="Copies").save()
    return int(orders.count())
