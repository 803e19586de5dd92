"""A stage of declared aggregates, from what the user has written: its key, its states, its fold."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from sqe_chain.codecs import Codec
from sqe_chain.errors import FlowError
from sqe_chain.flow.declaration import state_codec
from sqe_chain.flow.declared_aggregates import Aggregation, check_aggregations
from sqe_chain.flow.fields import key_of_field
from sqe_chain.flow.functions import DeclaredFunction, UserFunction
from sqe_chain.flow.generated_fold import fold_of, merge_states, states_of
from sqe_chain.flow.shapes import check_callable


class DeclaredStage(NamedTuple):
    """What the kinds of stages take.

    Attributes:
        key: the key's function; None: that of the stream.
        states: codec of the states.
        fold: the generated one.
        merge: what joins the states of two sessions.
    """

    key: UserFunction | None
    states: Codec[Any]
    fold: DeclaredFunction
    merge: UserFunction


def declared_stage(
    name: str,
    method: str,
    where: str,
    *,
    key: UserFunction | str | None,
    python_type: type | None,
    aggregations: Mapping[str, object],
    refused: Mapping[str, object],
    settings: Mapping[str, object],
) -> DeclaredStage:
    """Make the parts of a stage.

    Args:
        name: of the stage.
        method: that was called.
        where: file and line of the declaration.
        key: a function, a field, or None.
        python_type: of the values; None: it is not known.
        aggregations: name -> aggregate, unchecked.
        refused: arguments that do not go together with aggregates; each must be None.
        settings: the other arguments: an aggregate among them was meant to be called so.

    Raises:
        FlowError: an aggregate or the key cannot be of such values, or arguments do not go together.
    """
    for argument, given in {**refused, **settings}.items():
        if isinstance(given, Aggregation):
            raise FlowError(
                f"{where}: {argument}= is an argument of {method}(): give the aggregate {given} another name"
            )
    checked = check_aggregations(aggregations, method, where)
    for argument, given in refused.items():
        if given is not None:
            raise FlowError(
                f"{where}: {argument}= is for a stage with state= and fold=; with declared aggregates "
                f"({', '.join(checked)}) leave it out"
            )
    try:
        found = key_of_field(python_type, key) if isinstance(key, str) else key
        python_state = states_of(checked, python_type)
        fold = fold_of(name, checked, python_type)
    except FlowError as error:
        raise FlowError(f"{where}: {error}") from error
    if found is not None:
        check_callable("key", found, where)
    codec = state_codec(name, python_state, None, where)
    return DeclaredStage(found, codec, DeclaredFunction(fold), partial(merge_states, python_state.parts))


def checked_key(key: Any, where: str) -> UserFunction | None:  # noqa: ANN401 - it is checked here
    """The key of a stage with a fold of its own.

    Raises:
        FlowError: it is neither a function nor None.
    """
    if key is not None:
        check_callable("key", key, where)
    found: UserFunction | None = key
    return found
