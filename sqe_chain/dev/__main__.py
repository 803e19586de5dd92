"""`python -m sqe_chain.dev fetch`: download everything that the servers need."""

from __future__ import annotations

import sys

from sqe_chain.dev.packages import fetch
from sqe_chain.errors import ChainError


def _show(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    """Run the command; returns the exit status."""
    if arguments != ["fetch"]:
        sys.stderr.write("usage: python -m sqe_chain.dev fetch\n")
        return 2
    try:
        fetch(_show)
    except ChainError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
