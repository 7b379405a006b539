"""A Spark driver of its own: topic to Parquet until a file says stop; then what the sink and the topic hold, as JSON.

python streaming_driver.py NAMESRV TOPIC DIRECTORY
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from tandemmq.audit import sparkling
from tandemmq.spark import register


def main(namesrv: str, topic: str, directory: Path) -> None:
    spark = sparkling.session("local[2]")
    register(spark)
    options = {"namesrv": namesrv, "topics": topic, "retryTimeoutMs": "120000"}
    rows = (
        spark.readStream.format("tandemmq")
        .options(**options, startingOffsets="earliest", maxOffsetsPerTrigger="2000")
        .load()
    )
    writing = (
        rows.writeStream.format("parquet")
        .option("path", str(directory / "sink"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(processingTime="200 milliseconds")
    )
    query = writing.start()
    while not (directory / "stop").exists():
        if (problem := query.exception()) is not None:
            # Spark gives the stream's Python 10 s to start, whatever its settings: a busy machine needs longer
            if "failed to connect back" not in str(problem):
                raise SystemExit(str(problem))
            query = writing.start()
        time.sleep(0.1)
    query.processAllAvailable()
    query.stop()
    places = ["queue_id", "queue_offset", "unique_id"]
    stored = spark.read.parquet(str(directory / "sink")).select(*places).collect()
    held = spark.read.format("tandemmq").options(**options).load().select(*places).collect()
    found = {"sink": [list(row) for row in stored], "topic": [list(row) for row in held]}
    print(json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
