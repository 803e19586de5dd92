"""The totals of each line, by Spark, from the files of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import sqe_chain.engines.spark as engine
from services.expected import FIELDS
from services.rows import KEYS

_LOGGING = Path(engine.__file__).with_name("log4j2.properties")
"""As quiet as services are."""
Sums = tuple[int, ...]
"""Events, fastened, failed, torque_mnm, as `services.expected.FIELDS`; then how many different fastenings."""


def sums_of_lines(files: Sequence[str], scratch: str) -> Mapping[str, Sums]:
    """Line -> its sums.

    Args:
        files: Parquet files of the table.
        scratch: directory for temporary files.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - starts slowly, and not every run asks it
    from pyspark.sql import functions as sql  # noqa: PLC0415

    spark = (
        SparkSession.builder.master("local[2]")
        .appName("demo-ingest")
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.local.dir", scratch)
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", scratch)
        .getOrCreate()
    )
    try:
        totals = [sql.sum(name) for name in FIELDS[1:]]
        found = (
            spark.read.parquet(*files)
            .groupBy("line")
            .agg(sql.count(sql.lit(1)), *totals, sql.count_distinct(*(sql.col(name) for name in KEYS)))
            .collect()
        )
    finally:
        spark.stop()
    return {row[0]: tuple(int(one) for one in row[1:]) for row in found}
