"""Ports that no other test is given.

`sqe_chain.ext.dev.server.free_port` finds a port that is free now; until a server listens there, a test in another
process may be given the same one. Here each process of a test run has ports of its own, below all ports that
`free_port` gives.
"""

import itertools
import os

from sqe_chain.ext.dev.server import port_is_free

_FIRST = 5_000
_PORTS_EACH = 250
_PROCESSES = 20  # up to where `free_port` begins

# pytest-xdist names its processes gw0, gw1, ...; tests that run alone have no such name.
_process = (1 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw-1")[2:])) % _PROCESSES
_ports = itertools.cycle(range(_FIRST + _process * _PORTS_EACH, _FIRST + (_process + 1) * _PORTS_EACH))


def own_port() -> int:
    """A free port that only this process of the test run is given, and not again soon."""
    for port in itertools.islice(_ports, _PORTS_EACH):
        if port_is_free(port):
            return port
    raise AssertionError("all ports of this test process are taken")
