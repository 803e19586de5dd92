"""Which systems a comparison runs: those that were asked for, as far as this machine can have them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Protocol, TypeVar

import typer

from benchmarks.peers.installing import Missing
from sqe_chain.ext.dev.jars import Report


class Installable(Protocol):
    """A system of a comparison."""

    name: str

    def install(self, report: Report) -> None:
        """Get what it needs; raises `Missing` where that is not possible."""


Chosen = TypeVar("Chosen")
System = TypeVar("System", bound=Installable)


def chosen(text: str, known: Mapping[str, Chosen], option: str) -> list[Chosen]:
    """What an option names; all if it names nothing."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in known]:
        raise typer.BadParameter(
            f"unknown: {', '.join(unknown)}; choose from {', '.join(known)}", param_hint=option
        )
    return [known[name] for name in names] or list(known.values())


def installed(
    systems: Iterable[System], skipped: MutableMapping[str, str], report: Report
) -> Iterator[System]:
    """Those that can take part; of the others, `skipped` gets the reason."""
    for system in systems:
        try:
            system.install(report)
        except Missing as error:
            skipped[system.name] = str(error)
        else:
            yield system
