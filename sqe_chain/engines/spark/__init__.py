"""The engine that runs the tasks of a batch on Spark.

Each batch is a few Spark jobs, made with the DataFrame API only. One job reads and computes (`tasks`).
What later jobs need is cached in few large rows (`rows`), or returned with the report if it is small. `engine`
starts the jobs, `session` has Spark's settings, `shipping` brings the user's code to workers that share no
directory with the driver.
"""

from __future__ import annotations

from sqe_chain.engines.spark.engine import SparkEngine, Tuning
from sqe_chain.engines.spark.session import check_spark, close_session, open_session

__all__ = ["SparkEngine", "Tuning", "check_spark", "close_session", "open_session"]
