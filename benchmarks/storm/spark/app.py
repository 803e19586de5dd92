"""The consumer on Spark Structured Streaming, states in its checkpoint: this file imports nothing of the project.

python app.py BOOTSTRAP SOURCE TARGET CHECKPOINT JARS
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, count, from_json, struct, to_json
from pyspark.sql.functions import sum as sum_

bootstrap, source, target, checkpoint, jars = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.jars", jars)
    .config("spark.sql.shuffle.partitions", "4")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.memory", "1g")
    .config(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    .config("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
items = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("subscribe", source)
    .option("startingOffsets", "earliest")
    .load()
    .select(from_json(col("value").cast("string"), "robot STRING, amount BIGINT").alias("item"))
)
totals = items.groupBy("item.robot").agg(count("*").alias("events"), sum_("item.amount").alias("sum"))
(
    totals.select(col("robot").alias("key"), to_json(struct("events", "sum")).alias("value"))
    .writeStream.format("kafka")
    .outputMode("update")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("topic", target)
    .option("checkpointLocation", checkpoint)
    .trigger(processingTime="1 second")
    .start()
    .awaitTermination()
)
