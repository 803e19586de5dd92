"""The engine that runs the tasks of a batch on Spark: the product.

Spark is driven by the batch, by the DataFrame API alone: one job reads and computes (`tasks`), what later
jobs need is cached, in few large rows (`rows`), or comes back with the report when it is small. `engine`
says which jobs there are, `session` what Spark has to be set to, `shipping` how the user's code gets to
workers that share no directory with the driver.
"""

from __future__ import annotations

from sqe_chain.engines.spark.engine import SparkEngine, Tuning
from sqe_chain.engines.spark.session import close_session, open_session

__all__ = ["SparkEngine", "Tuning", "close_session", "open_session"]
