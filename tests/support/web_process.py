"""A page beside a flow in memory, in a process of its own: `python -m tests.support.web_process SLOW_SECONDS`.

The first line of its output is the page's port. From then on the flow makes a batch every 20 ms, and prints its number.
"""

from __future__ import annotations

import sys
import time

from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.ext.web import application, server
from sqe_chain.ext.web.command import serve
from sqe_chain.ext.web.history import History
from sqe_chain.protocol.with_plans import StagedService
from sqe_chain.testing import Rehearsal
from tests.support.environments import environment_of
from tests.unit.ext.web.test_pages import totals


def main(slow_s: float) -> None:
    server.SLOW_S = slow_s  # type: ignore[misc]
    application.POLL_S, application.WATCHER_S = 0.05, 0.0  # type: ignore[misc]  # as often as it can
    service, history = Rehearsal(totals(), partitions={"numbers": 2}), History()
    env = environment_of(service)
    env.observer = history
    run = StagedService(env)
    run.start()
    with serve(
        service.log, service.stores, {"totals": service.flow}, "127.0.0.1", 0, history=history
    ) as port:
        sys.stdout.write(f"{port}\n")
        sys.stdout.flush()
        number = 0
        while True:
            number += 1
            service.feed("numbers", Int64Value(value=number), partition=number % 2, timestamp_ms=number)
            run.batch()
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()
            time.sleep(0.02)


if __name__ == "__main__":
    main(float(sys.argv[1]))
