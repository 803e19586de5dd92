"""`python -m sqe_chain.ext.dev fetch [KIND...]`: download what the servers need, all of them by default."""

from __future__ import annotations

import sys

from sqe_chain.errors import ChainError
from sqe_chain.ext.dev.packages import KINDS, fetch


def _show(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    """Run the command; returns the exit status."""
    command, *kinds = arguments or [""]
    if command != "fetch" or set(kinds) - set(KINDS):
        sys.stderr.write(f"usage: python -m sqe_chain.ext.dev fetch [{'|'.join(KINDS)}]...\n")
        return 2
    try:
        fetch(_show, kinds or KINDS)
    except ChainError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
