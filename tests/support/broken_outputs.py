"""A defect put in on purpose: the outputs of one input are gathered apart."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from sqe_chain.flow.context import Origin
from sqe_chain.task.inputs import Inputs
from sqe_chain.task.target import Target


def each_unit_is_taken_for_an_input_of_its_own(patch: pytest.MonkeyPatch) -> None:
    """Each of its units gets the position that is the input's."""

    def of(cls: type[Inputs], origins: Iterable[Origin]) -> tuple[list[int], Inputs]:
        found = list(origins)
        return list(range(len(found))), cls(found)

    patch.setattr(Inputs, "of", classmethod(of))
    patch.setattr(Target, "take", lambda *_: None)
