"""What all commands of the example services share: their parser, and how they end when something does not answer."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from sqe_chain.errors import ChainError

Arguments = ParamSpec("Arguments")


def parser_of(module: str, doc: str | None) -> argparse.ArgumentParser:
    """A parser that shows the first line of a module's docstring."""
    return argparse.ArgumentParser(prog=f"python -m {module}", description=(doc or "").partition("\n")[0])


def add_truth(parser: argparse.ArgumentParser) -> None:
    """Declare the options for the reports that were produced."""
    parser.add_argument("--seed", type=int, default=7, help="seed of the simulator")
    parser.add_argument("--messages", type=int, required=True, help="reports that were produced")


def with_exit_status(main: Callable[Arguments, int]) -> Callable[Arguments, int]:
    """An entry point that ends with one line and the exit status of an error, instead of a traceback."""

    @wraps(main)
    def run(*arguments: Arguments.args, **named: Arguments.kwargs) -> int:
        try:
            return main(*arguments, **named)
        except ChainError as error:
            sys.stderr.write(f"{error}\n")
            return error.exit_status

    return run
