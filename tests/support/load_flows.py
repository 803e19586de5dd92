"""The flows that tests load as processes: totals of the files in LOAD_FOLDER, which kill themselves at the point of LOAD_SIGNAL."""

from __future__ import annotations

import os
from pathlib import Path

from sqe_chain import Flow
from tests.support.file_flows import Fastening, Total, add
from tests.support.signal_at_event import install_signal

NAME = os.environ.get("LOAD_NAME", "load")
FOLDER = Path(os.environ.get("LOAD_FOLDER", "."))

totals = Flow(NAME, state_partitions=2)
(
    totals.files("csv", Fastening, FOLDER / "*.csv")
    .merge(totals.files("parquet", Fastening, FOLDER / "*.parquet"))
    .merge(totals.files("lines", Fastening, FOLDER / "*.jsonl.gz"))
    .aggregate("per-robot", key=lambda one: one.robot, state=Total, fold=add)
)

if signal := os.environ.get("LOAD_SIGNAL"):
    install_signal(signal)
