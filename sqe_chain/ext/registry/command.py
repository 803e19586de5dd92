"""`sqe-chain schemas`: what a flow publishes by a schema registry, whether that takes it, and its registration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import typer

from sqe_chain.cli.console import OUT, print_json, print_table
from sqe_chain.cli.loading import load_flow
from sqe_chain.cli.options import FlowArgument, JsonOption, command
from sqe_chain.errors import ConfigurationError
from sqe_chain.ext.registry.address import parse_registry
from sqe_chain.ext.registry.codec import RegistryCodec
from sqe_chain.ext.registry.schemas import UnknownSchema
from sqe_chain.flow.compiled import CompiledFlow

COLUMNS: Final = ("topic", "subject", "kind", "id", "problem")


@dataclass(frozen=True, kw_only=True)
class _RegistryOptions:
    """Where the registry is."""

    registry: str | None = None


_ActionArgument = Annotated[
    Literal["show", "check", "register"],
    typer.Argument(metavar="show|check|register", help="What to do with them."),
]


@command
def schemas(
    action: _ActionArgument, target: FlowArgument, *, where: _RegistryOptions, json: JsonOption = False
) -> None:
    """Show, check or register the schemas that a flow's outputs have in a schema registry.

    `show` prints the subject and the schema of each output, and its id. `check` asks whether each subject would take its schema as the
    next version, and registers nothing. `register` registers each schema, unless its subject has it. Then the service itself needs only to
    read.

    The exit status is 1 if a schema is not registered, or would be refused.
    """
    flow = load_flow(target)
    if where.registry is not None:
        flow = flow.asking(parse_registry(where.registry))
    rows = [_row(action, topic, codec) for topic, codec in _written(flow)]
    if json:
        for row in rows:
            print_json(row)
    else:
        shown = ([row[name] if row[name] is not None else "" for name in COLUMNS] for row in rows)
        print_table(COLUMNS, shown)
    if action == "show" and not json:
        for row in rows:
            OUT.print(f"{row['subject']}: {row['schema']}", markup=False, soft_wrap=True)
    if any(row["problem"] for row in rows):
        raise typer.Exit(1)


def _row(action: str, topic: str, codec: RegistryCodec[Any]) -> dict[str, Any]:
    schema, number, problem = codec.written_schema(), None, ""
    try:
        number = (codec.register() if action == "register" else codec.registered()).number
    except UnknownSchema:
        problem = codec.why_incompatible() if action == "check" else "not registered"
    return {
        "topic": topic,
        "subject": codec.subject(),
        "kind": schema.kind,
        "id": number,
        "problem": problem,
        "schema": schema.text,
    }


def _written(flow: CompiledFlow) -> list[tuple[str, RegistryCodec[Any]]]:
    """Topic and codec of each output with a schema.

    Raises:
        ConfigurationError: there is none.
    """
    written = [
        (node.topic, flow.output_codec[node.index, node.encoding.python_type])
        for node in flow.outputs
        if isinstance(node.encoding, RegistryCodec)
    ]
    if not written:
        raise ConfigurationError(
            f"flow {flow.name!r} publishes nothing with a schema of a registry. Expected an output such as to(..., codec=Avro(Order)). "
            "Declare one"
        )
    return [(topic, codec) for topic, codec in written if isinstance(codec, RegistryCodec)]
