"""The states and the fold of a stage: those that the user gives, or those that declared aggregates make."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from sqe_chain.codecs import Codec
from sqe_chain.errors import FlowError
from sqe_chain.flow.declaration import declared_fold, refused_at, state_codec
from sqe_chain.flow.declared_aggregates import Aggregation, check_aggregations, check_plain
from sqe_chain.flow.functions import DeclaredFunction, UserFunction
from sqe_chain.flow.generated_fold import fold_of, merge_states, states_of
from sqe_chain.flow.shapes import Gives


class Folding(NamedTuple):
    """What a kind of stage takes.

    Attributes:
        states: codec of the states.
        fold: the user's function, or the generated one.
        own: further functions of the states, by the names of their arguments: those that were given, or are generated.
    """

    states: Codec[Any]
    fold: DeclaredFunction
    own: Mapping[str, DeclaredFunction]


class FoldingStage(NamedTuple):
    """The stage whose fold is declared, by a method of `Stream`; `gives`: what a fold may return; `value_type`: None if it is not known."""

    name: str
    method: str
    where: str
    gives: Gives
    value_type: type | None

    def folding(
        self,
        aggregates: Mapping[str, object],
        state: object,
        fold: object,
        codec: Codec[Any] | str | None,
        *,
        own: Mapping[str, UserFunction | None],
        settings: Mapping[str, object],
    ) -> Folding:
        """Check and make the parts.

        Args:
            aggregates: name -> declared aggregate, unchecked.
            state: type of the states; None, as `fold`: aggregates are declared.
            fold: the user's function.
            codec: of the states.
            own: name -> further functions of the state, which declared aggregates do not take.
            settings: the other arguments: an aggregate among them was meant to be an aggregate of that name.

        Raises:
            FlowError: an aggregate cannot be of such values, or arguments do not go together.
        """
        if state is not None or fold is not None:
            check_plain(aggregates, self.method, self.where)
            states = state_codec(self.name, state, codec, self.where)
            given = {what: function for what, function in own.items() if function is not None}
            folds = {
                what: declared_fold(what, function, states, self.where, self.gives)
                for what, function in {"fold": fold, **given}.items()
            }
            return Folding(states, folds.pop("fold"), folds)
        checked = self._checked(aggregates, {"codec": codec, **own}, settings)
        with refused_at(self.where):
            state_type = states_of(checked, self.value_type)
            made = DeclaredFunction(fold_of(self.name, checked, self.value_type))
        states = state_codec(self.name, state_type, None, self.where)
        merge = DeclaredFunction(partial(merge_states, state_type.parts))
        return Folding(states, made, {"merge": merge})

    def _checked(
        self, aggregates: Mapping[str, object], refused: Mapping[str, object], settings: Mapping[str, object]
    ) -> dict[str, Aggregation]:
        for argument, given in {**refused, **settings}.items():
            if isinstance(given, Aggregation):
                raise FlowError(
                    f"{self.where}: {argument}= is an argument of {self.method}(): give the aggregate {given} another name"
                )
        checked = check_aggregations(aggregates, self.method, self.where)
        for argument, given in refused.items():
            if given is not None:
                raise FlowError(
                    f"{self.where}: {argument}= is for a stage with state= and fold=; with declared aggregates "
                    f"({', '.join(checked)}) leave it out"
                )
        return checked
