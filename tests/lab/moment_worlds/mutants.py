"""Wrong rules about moments; the worlds must find each of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest.mock import patch

from sqe_chain.features import timing
from sqe_chain.features.event_times import watermarks_of
from sqe_chain.features.timing import take_by_time
from sqe_chain.protocol import decide


def _beyond(env: Any, idle: Any, last: Any, decision: Any, look: Any, _free: Any) -> Any:
    return take_by_time(env, idle, last, decision, look, look.bounds)


def _tight(*given: Any) -> dict[str, int]:
    return {output: promised_ms + 1 for output, promised_ms in watermarks_of(*given).items()}


MUTANTS: Final[Mapping[str, tuple[str, object, str, object]]] = {
    "beyond": ("a flow that publishes again reads further than it had read", decide, "take_by_time", _beyond),
    "tight": ("an output promises a millisecond more than it keeps", timing, "watermarks_of", _tight),
}
"""Name -> what it breaks; the object, the name of its attribute, and what is there instead."""


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """Put a wrong rule into the package; empty: none."""
    with ExitStack() as stack:
        if name:
            _, owner, attribute, wrong = MUTANTS[name]
            stack.enter_context(patch.object(owner, attribute, wrong))
        yield
