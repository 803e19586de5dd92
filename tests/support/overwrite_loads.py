"""The flow that tests load as a process into a table: the files of LOAD_FOLDER, killed at the point of LOAD_SIGNAL."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.overwrite_flows import load_flow
from tests.support.signal_at_event import install_signal

flow = load_flow(Path(os.environ.get("LOAD_FOLDER", ".")), os.environ.get("LOAD_TABLE", "tables"))

if signal := os.environ.get("LOAD_SIGNAL"):
    install_signal(signal)
