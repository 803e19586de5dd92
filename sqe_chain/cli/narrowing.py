"""What the commands for records that failed share: which records are meant, and how a table shows them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Annotated

import typer

from sqe_chain.cli.option_table import Option
from sqe_chain.errors import ConfigurationError
from sqe_chain.operations.patterns import listed_key


@dataclass(frozen=True, kw_only=True)
class Narrowing:
    """Which records are meant, by patterns."""

    error: Annotated[str | None, Option("Only with this error; * and ? stand for other text.", "PATTERN")] = (
        None
    )
    key: Annotated[
        str | None, Option("Only with this key, as list shows it; * and ? stand for other text.", "PATTERN")
    ] = None
    no_key: Annotated[bool, Option("Only records without a key.")] = False


def key_cell(key: bytes | None) -> str:
    """A key in a table; nothing for a record without one."""
    return "" if key is None else listed_key(key)


def counts_by_error(counts: Counter[str]) -> str:
    """How many records have which error, the most frequent first."""
    return ", ".join(f"{count} {error}" for error, count in counts.most_common()) or "none"


def confirm_discard(flow: str, which: str, *, yes: bool) -> None:
    """Ask for the name of the flow before its records are discarded, unless that is confirmed already.

    Raises:
        ConfigurationError: the answer is another name.
    """
    if not yes and typer.prompt(f"Type {flow} to discard {which} of that flow", err=True) != flow:
        raise ConfigurationError("that is another name. Nothing was discarded")
