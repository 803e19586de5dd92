"""Registry of the kinds of stages: those of this package, those of installed packages, and your own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

from sqe_chain.errors import ConfigurationError, FlowError
from sqe_chain.flow.declaration import check_name
from sqe_chain.flow.stage_kind import StageKind
from sqe_chain.wings import installed, load

ENTRY_POINTS: Final = "sqe_chain.stages"
"""Group of entry points: name of a kind -> its class."""
BUILT_IN: Final[Mapping[str, str]] = {
    "aggregate": "sqe_chain.stages.aggregate:AggregateKind",
    "windows": "sqe_chain.stages.windowed:WindowsKind",
    "replays": "sqe_chain.stages.replays:ReplaysKind",
    "roots": "sqe_chain.stages.root_replays:RootsKind",
    "sequences": "sqe_chain.stages.sequences:SequencesKind",
    "deduplicate": "sqe_chain.stages.deduplicate:DeduplicateKind",
    "distinct": "sqe_chain.stages.distinct:DistinctKind",
    "table-join": "sqe_chain.stages.table_join:TableJoinKind",
    "changes": "sqe_chain.stages.changes:ChangesKind",
    "timers": "sqe_chain.stages.timers:TimersKind",
    "stream-join": "sqe_chain.stages.joining:StreamJoinKind",
}
"""The same for kinds of this package. Streams look them up by name, so that flows do not depend on any kind."""


def kind_named(name: str) -> Callable[..., StageKind]:
    """The class of a kind, of this package or of another one that is installed.

    Raises:
        ConfigurationError: there is none; the text lists the known ones.
    """
    kind = _known(name)
    if kind is None:
        known = ", ".join(sorted({*BUILT_IN, *installed(ENTRY_POINTS)}))
        raise ConfigurationError(f"there is no kind of stage {name!r}; known are: {known}")
    return kind


_NO_SETTINGS: Final = (
    "gives_outputs",
    "identity",
    "needs_key",
    "needs_root",
    "order",
    "sides",
    "spread",
    "states_by_key",
)
"""Traits that a kind does not have as settings too: nobody would read them beside the others."""


def kind_of(kind: object, settings: Mapping[str, Any], where: str) -> StageKind:
    """The kind that a user gave: a `StageKind`, or a name with arguments of its class.

    Raises:
        FlowError: it is neither, its class takes no such settings, or another kind has its name.
    """
    if isinstance(kind, str):
        try:
            return kind_named(kind)(**settings)
        except (ConfigurationError, TypeError) as error:
            raise FlowError(f"{where}: {error}") from error
    if not isinstance(kind, StageKind):
        raise FlowError(f"{where}: kind={kind!r}; a StageKind, or the name of one")
    if settings:
        raise FlowError(
            f"{where}: {', '.join(settings)}: settings are for a kind given by name; pass them to {type(kind).__qualname__}() instead"
        )
    check_name("stage kind's", kind.name, where)
    known = _known(kind.name)
    if known is not None and type(kind) is not known:
        raise FlowError(
            f"{where}: there is a kind of stage {kind.name!r} already, {known.__module__}.{known.__qualname__}; give "
            f"{type(kind).__qualname__} another name"
        )
    return kind


def check_fit(
    kind: StageKind,
    where: str,
    *,
    buckets: int,
    view: str | None,
    key: object,
    dead_letters: bool,
    inputs: int = 1,
) -> None:
    """Check a kind against the declaration of its stage, and its settings; `inputs`: the number of its streams. Raises FlowError."""
    traits = kind.traits
    method = traits.method or kind.name
    if alone := [name for name in _NO_SETTINGS if hasattr(kind, name)]:
        raise FlowError(
            f"{where}: kind {kind.name!r} has the attribute {alone[0]!r}. Expected it among its traits. Give the class traits = "
            f"StageTraits({alone[0]}=...)"
        )
    if not traits.states_by_key and buckets != 1:
        raise FlowError(f"{where}: buckets are for states by key, and {method} has none; leave them out")
    if view is not None and not (traits.states_by_key or traits.has_views):
        raise FlowError(f"{where}: a view shows states, and {method} has none to show; leave it out")
    if (traits.spread == "id") != (traits.identity is not None):
        raise FlowError(f"{where}: kind {kind.name!r}: spread must be 'id' if and only if identity is set")
    if inputs != traits.inputs:
        raise FlowError(f"{where}: {method} takes {traits.inputs} streams, not {inputs}")
    if key is not None and traits.identity is not None:
        raise FlowError(f"{where}: {method} uses ids instead of keys. Remove key=")
    kind.check(where, dead_letters=dead_letters)


def _known(name: str) -> type[StageKind] | None:
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        kind: type[StageKind] = getattr(import_module(module), attribute)
        return kind
    return load(ENTRY_POINTS, name) if name in installed(ENTRY_POINTS) else None
