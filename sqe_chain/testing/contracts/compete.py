"""One competitor of the races for a store: in a thread, or as a separate process.

As a program: ``compete.py URL FLOW NAME ROUNDS``; it prints "ready", waits for a line, competes, and
prints how many claims and how many increments it won.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from sqe_chain.adapters import open_store
from sqe_chain.ports import Header, Home

if TYPE_CHECKING:
    from sqe_chain.ports import StateStore


def compete(store: StateStore, flow: str, name: str, rounds: int) -> tuple[int, int]:
    """In each round, try to be the first to claim a new flow, and add one to a shared counter."""
    claims = increments = 0
    for number in range(rounds):
        claim = Home(1, name, "", -1, "")
        claims += store.set_home(f"{flow}-{number}", None, claim) == claim

        header, states, again = store.read(flow, "race", 0, [b"counter"])
        if header != again:
            continue  # another competitor wrote in between: the state may belong to either header
        mine = replace(header or Header(1, "", 0, ""), run_id=name, number=header.number + 1 if header else 1)
        counted = str(int(states[0] or b"0") + 1).encode()
        increments += store.write(flow, "race", 0, header, mine, [(b"counter", counted)]) == mine
    return claims, increments


def main() -> None:
    """Compete with the arguments of the command line."""
    url, flow, name, rounds = sys.argv[1:]
    store = open_store(url)
    store.check()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    claims, increments = compete(store, flow, name, int(rounds))
    sys.stdout.write(f"{claims} {increments}\n")


if __name__ == "__main__":
    main()
