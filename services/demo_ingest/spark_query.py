"""The totals of each line, by Spark, from tables of both kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import sqe_chain.engines.spark as engine
from services.expected import FIELDS
from services.rows import COLUMNS, KEYS
from sqe_chain.errors import ConfigurationError
from sqe_chain.ext.tables import open_table

_LOGGING = Path(engine.__file__).with_name("log4j2.properties")
"""As quiet as services are."""
Sums = tuple[int, ...]
"""Events, fastened, failed, torque_mnm, as `services.expected.FIELDS`; then how many different fastenings."""


def sums_of_lines(addresses: Sequence[str], scratch: str) -> dict[str, Mapping[str, Sums]]:
    """Address of a table -> line -> its sums."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - starts slowly, and not every run asks it

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
        return {address: _sums(_frame(spark, address)) for address in addresses}
    finally:
        spark.stop()


def _frame(spark: Any, address: str) -> Any:  # noqa: ANN401 - a Spark session and its frame
    """The files of a table, or where it has none, its rows as Arrow."""
    table = open_table(address)
    try:
        files = table.files()
    except ConfigurationError:
        return spark.createDataFrame(table.read(columns=COLUMNS))
    return spark.read.parquet(*files)


def _sums(frame: Any) -> Mapping[str, Sums]:  # noqa: ANN401 - of Spark
    from pyspark.sql import functions as sql  # noqa: PLC0415 - see above

    totals = [sql.sum(name) for name in FIELDS[1:]]
    different = sql.count_distinct(*(sql.col(name) for name in KEYS))
    found = frame.groupBy("line").agg(sql.count(sql.lit(1)), *totals, different).collect()
    return {row[0]: tuple(int(one) for one in row[1:]) for row in found}
