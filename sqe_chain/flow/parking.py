"""Which flows may park inputs that fail: those in which an input that comes later changes nothing but its own keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqe_chain.errors import FlowError

if TYPE_CHECKING:
    from sqe_chain.flow.compiled import CompiledFlow


def check_parking(flow: CompiledFlow) -> None:
    """Check that inputs of a flow can wait, and count exactly once afterwards, if its policy is `park`.

    Args:
        flow: the flow.

    Raises:
        FlowError: they cannot; the text names the reason.
    """
    if flow.poison != "park":
        return
    if not flow.stages:
        raise FlowError(
            f"flow {flow.name!r}: poison='park' keeps inputs in the store beside stages. Expected a stage. Declare an aggregate, or "
            "poison='dead_letter'"
        )
    for source in flow.sources:
        if source.files is not None:
            raise FlowError(
                f"{source.declared_at}: flow {flow.name!r} reads files, whose rows have no keys. Expected topics alone with "
                "poison='park'. Declare poison='stop' or 'skip'"
            )
    for stage in flow.stages:
        traits = stage.traits
        if not (traits.states_by_key and traits.reversible) or traits.order != "units" or traits.ticks:
            raise FlowError(
                f"{stage.declared_at}: stage {stage.name!r} ({traits.called}) does not take an input after later ones. Expected "
                "aggregates without event time, timers and windows in a flow with poison='park'. Declare poison='dead_letter', or "
                "put this stage into another flow"
            )
    for output in flow.outputs:
        if output.process_id is not None:
            raise FlowError(
                f"{output.declared_at}: readers of SQE's record keys ignore an offset after later ones. Expected outputs with "
                "envelopes in a flow with poison='park'. Declare poison='stop', or write for SQE in another flow"
            )
