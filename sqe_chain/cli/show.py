"""`sqe-chain show`: shows a flow as a tree, or writes it as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from sqe_chain.cli.console import OUT, reported
from sqe_chain.cli.files import check_new, write_whole
from sqe_chain.cli.loading import load_flow
from sqe_chain.cli.options import FlowArgument, TracebackOption


def show(
    target: FlowArgument,
    *,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="Write the flow as a picture to a new file.")
    ] = None,
    traceback: TracebackOption = False,
) -> None:
    """Show a flow: its sources, operators, stages and outputs. Does not connect or run anything."""
    with reported(traceback=traceback):
        flow = load_flow(target)
        if svg is None:
            OUT.print(Text(flow.to_text()), soft_wrap=True)
            return
        check_new(svg)
        with write_whole(svg) as partial:
            partial.write_text(flow.to_svg(), encoding="utf-8")
