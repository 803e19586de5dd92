"""`python -m sqe_chain.ext.dev fetch [KIND...]`: download what the servers need, by default all but Apicurio.

`python -m sqe_chain.ext.dev warm`: let Kafka and Spark start in half the time: archive the Java classes that they load. It takes a
minute, once.
"""

from __future__ import annotations

import importlib.util
import sys

from sqe_chain.errors import ChainError
from sqe_chain.ext.dev import kafka
from sqe_chain.ext.dev.packages import KINDS, USUAL, fetch


def _show(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _warm() -> None:
    fetch(_show, ("kafka",))
    archives = [(kafka.class_archive(), kafka.archive_classes)]
    if importlib.util.find_spec("pyspark"):
        from sqe_chain.engines.spark import session  # noqa: PLC0415 - only here, because it loads Spark

        archives.append((session.class_archive(), session.archive_classes))
    for archive, make in archives:
        _show(f"{archive.name}: {archive.path if archive.path.exists() else make()}")


def main(arguments: list[str]) -> int:
    """Run the command; returns the exit status."""
    command, *kinds = arguments or [""]
    if arguments != ["warm"] and (command != "fetch" or set(kinds) - set(KINDS)):
        sys.stderr.write(f"usage: python -m sqe_chain.ext.dev warm | fetch [{'|'.join(KINDS)}]...\n")
        return 2
    try:
        if command == "warm":
            _warm()
        else:
            fetch(_show, kinds or USUAL)
    except ChainError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
