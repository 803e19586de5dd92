"""The engine that spreads the tasks of a batch over worker processes of this service, on this machine.

`engine` decides what is to be done, `team` starts the processes and calls them. `worker` is the program of such a process,
and `tasks` what it does. A worker reads from Kafka, publishes, and writes states itself, and keeps until then what it has
computed; it returns reports only. Units that other workers have to fold it writes into its outbox, a file in memory that
all of them can read.
"""

from __future__ import annotations

from sqe_chain.engines.workers.engine import WorkersEngine
from sqe_chain.engines.workers.team import Team

__all__ = ["Team", "WorkersEngine"]
