"""Which kinds of stages there are: those of this package, those of installed ones, and your own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Final

from sqe_chain.errors import ConfigurationError, FlowError
from sqe_chain.flow.declaration import check_name
from sqe_chain.flow.stage_kind import StageKind

ENTRY_POINTS: Final = "sqe_chain.stages"
"""Group of entry points: name of a kind -> its class."""
BUILT_IN: Final[Mapping[str, str]] = {
    "aggregate": "sqe_chain.stages.aggregate:AggregateKind",
    "windows": "sqe_chain.stages.window_kind:WindowsKind",
    "replays": "sqe_chain.stages.filter_kinds:ReplaysKind",
    "roots": "sqe_chain.stages.filter_kinds:RootsKind",
    "sequences": "sqe_chain.stages.filter_kinds:SequencesKind",
    "deduplicate": "sqe_chain.stages.filter_kinds:DeduplicateKind",
    "distinct": "sqe_chain.stages.filter_kinds:DistinctKind",
}
"""The same for kinds of this package. Streams ask for them by name, like for all others: flows know no kind."""


def kind_named(name: str) -> Callable[..., StageKind]:
    """The class of a kind, of this package or of another one that is installed.

    Raises:
        ConfigurationError: there is none; names those that there are.
    """
    found = _known(name)
    if found is None:
        known = ", ".join(sorted({*BUILT_IN, *_installed()}))
        raise ConfigurationError(f"there is no kind of stage {name!r}; known are: {known}")
    return found


def kind_of(kind: object, settings: Mapping[str, Any], where: str) -> StageKind:
    """The kind that a user gave: itself, or the name of one and its settings.

    Args:
        kind: a `StageKind`, or a name.
        settings: for a name: arguments of its class.
        where: place in the user's file.

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
            f"{where}: {', '.join(settings)}: settings go with the name of a kind; this one is made already"
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
    kind: StageKind, where: str, *, buckets: int, view: str | None, key: object, dead_letters: bool
) -> None:
    """Check whether a kind can do what is asked of its stage, and its settings.

    Args:
        kind: the kind.
        where: place in the user's file.
        buckets: of the stage.
        view: of the stage.
        key: of the stage.
        dead_letters: whether the flow publishes dead letters.

    Raises:
        FlowError: it cannot.
    """
    if not kind.states_by_key and (buckets != 1 or view is not None):
        raise FlowError(
            f"{where}: buckets and views are for states by key, and {kind.method} keeps rows of its own"
        )
    if (kind.spread == "id") != (kind.identity is not None):
        raise FlowError(
            f"{where}: kind {kind.name!r}: ids decide (spread) if and only if it says which (identity)"
        )
    if key is not None and kind.identity is not None:
        raise FlowError(f"{where}: {kind.method} goes by ids, so it takes no key")
    kind.check(where, dead_letters=dead_letters)


def _known(name: str) -> type[StageKind] | None:
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        kind: type[StageKind] = getattr(import_module(module), attribute)
        return kind
    return _installed().get(name)


@cache
def _installed() -> dict[str, type[StageKind]]:
    return {point.name: point.load() for point in entry_points(group=ENTRY_POINTS)}
