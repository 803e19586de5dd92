"""`sqe-chain show`: shows a flow as a tree, as the code that runs it, or writes it as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rich.syntax import Syntax
from rich.text import Text

from sqe_chain.cli.console import OUT
from sqe_chain.cli.files import check_new, write_whole
from sqe_chain.cli.loading import load_flow
from sqe_chain.cli.option_table import Option
from sqe_chain.cli.options import FlowArgument, command
from sqe_chain.flow.picture import as_svg, as_text
from sqe_chain.task.operator_text import texts


@command
def show(
    target: FlowArgument,
    *,
    svg: Annotated[Path | None, Option("Write the flow as a picture to a new file.", "FILE")] = None,
    compiled: Annotated[
        bool, Option("Show the code between sources, stages and outputs, as it runs.")
    ] = False,
) -> None:
    """Show a flow: its sources, operators, stages and outputs. Does not connect or run anything."""
    flow = load_flow(target)
    if compiled:
        for text in texts(flow):
            OUT.print(Text(f"# {text.title}", style="bold"))
            OUT.print(Syntax(text.source, "python", background_color="default"), soft_wrap=True)
    elif svg is None:
        OUT.print(Text(as_text(flow)), soft_wrap=True)
    if svg is not None:
        check_new(svg)
        with write_whole(svg) as partial:
            partial.write_text(as_svg(flow), encoding="utf-8")
