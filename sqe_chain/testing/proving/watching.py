"""A flow whose user functions are watched: each call is compared with every other call of the same arguments.

A function is deterministic if it gives the same for the same arguments, changes nothing but the state that it folds into, and
remembers nothing. So the first call with some arguments is made twice: the second time with copies of them, a year later by the
clock. The watch remembers the result, and compares it in every later run: after other records, after crashes, and in another
process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from sqe_chain.errors import PoisonError, Unavailable
from sqe_chain.flow.batches import MapBatchesNode
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.context import Clock, Context
from sqe_chain.flow.functions import DeclaredFunction, UserFunction
from sqe_chain.flow.nodes import Node, StageNode
from sqe_chain.testing.proving.contents import Content, content_of, shown
from sqe_chain.testing.proving.surroundings import surroundings

_Sign = Literal[
    "called twice", "called again", "changed its argument", "depends on other rows", "other process"
]
"""How a function was found out."""

_LATER_S: Final = 400 * 86_400 + 26_003
"""How much later it is when a function is called for the second time, in seconds: another year, month, day, hour and minute."""
_FOLDS: Final = frozenset({"fold", "on_timer", "merge"})
"""Functions that change their first argument, the state."""
_OWNERS: Final = frozenset({"map", "flat_map", "fold", "on_timer", "combine", "decoder"})
"""Functions that have the value which they take alone; all others look at one that goes on to others."""
_PLACES: Final = ("decoder", "function", "key", "fold", "on_timer", "merge")
"""Fields of nodes and kinds of stages that hold a function of the user as it is."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A call that shows that a function is not deterministic.

    Attributes:
        number: of the function, in the order of the flow.
        sign: how it shows.
        arguments: copies of the arguments; empty where they cannot be copied.
        given: the arguments as a text.
        first: what the function gave, or the argument as it was, as a text.
        second: what it gave for the same arguments, or the argument as it is now.
        changed: what else the function can see, and has changed since, or is something else in the other process.
    """

    number: int
    sign: _Sign
    arguments: tuple[Any, ...]
    given: str
    first: str
    second: str
    changed: tuple[str, ...] = ()


class Call(NamedTuple):
    """A call of a function.

    Attributes:
        gave: what it gave.
        text: the same as a text.
        given: the arguments as a text.
        arguments: copies of them; empty where they cannot be copied.
        around: what else the function could see then, as hashes; see `surroundings`.
    """

    gave: Content
    text: str
    given: str
    arguments: tuple[Any, ...] = ()
    around: Mapping[str, int] = MappingProxyType({})


class Watched:
    """A function of the user that is watched. Called as the function itself is.

    Args:
        function: the function.
        number: in the order of the flow.
        node: where it was declared.
        role: which function of the node it is, as the declaration names it.
        shared: whether others may see the value that it takes, so that it must not change it.
        watch: who watches.
    """

    def __init__(
        self, function: UserFunction, number: int, node: Node, role: str, watch: Watch, *, shared: bool
    ) -> None:
        self.function = function
        self.number = number
        self.node = node
        self.role = role
        self.shared = shared
        self._watch = watch

    def __call__(self, *arguments: Any) -> Any:  # noqa: ANN401 - of the user
        """Call the function, and look at what it does."""
        return self._watch.call(self, arguments)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever it has
        return getattr(self.function, name)

    def __deepcopy__(self, memo: object) -> Watched:
        return self

    @property
    def name(self) -> str:
        """Its name in its module."""
        return str(getattr(self.function, "__qualname__", type(self.function).__qualname__))

    @property
    def states(self) -> int:
        """How many of its arguments are states, which it may change."""
        return int(self.role in _FOLDS)


class _WatchedContext(Context):
    """A context that notes what is done with it, and does it in the real one, too, if there is one."""

    __slots__ = ("_later", "_real", "done")

    def __init__(self, context: Context, *, real: bool) -> None:
        super().__init__(context._origin, context.key, context.now_ms)  # noqa: SLF001 - its own base
        self._real = context if real else None
        self.done: list[Content] = []

    def _do(self, name: str, *arguments: Any) -> None:  # noqa: ANN401 - those of the method
        self.done.append((name, *arguments))
        if self._real is not None:
            getattr(self._real, name)(*arguments)

    def delete_state(self) -> None:
        self.state_deleted = True
        self._do("delete_state")

    def set_timer(self, at_ms: int, name: str = "", clock: Clock = "event") -> None:
        self._do("set_timer", at_ms, name, clock)

    def delete_timer(self, name: str = "", clock: Clock = "event") -> None:
        self._do("delete_timer", name, clock)


@dataclass(slots=True)
class Watch:
    """What watched functions were given, and what they gave.

    Attributes:
        functions: the functions that are watched, by number.
        calls: (number of a function, arguments) -> the first call.
        observations: of each function the first one that shows that it is not deterministic.
        not_copied: functions with arguments that cannot be copied, so that they cannot be called twice.
        made: calls so far.
        twice: whether a call is made twice at first sight.
        unreachable: numbers of calls, as `made` counts them, that cannot reach what they need -> what hears of it.
    """

    functions: list[Watched] = field(default_factory=list)
    calls: dict[tuple[int, Content], Call] = field(default_factory=dict)
    observations: dict[int, Observation] = field(default_factory=dict)
    not_copied: set[int] = field(default_factory=set)
    made: int = 0
    twice: bool = True
    unreachable: dict[int, Callable[[str], object]] = field(default_factory=dict)

    def forget(self) -> None:
        """Forget all calls."""
        self.calls.clear()
        self.observations.clear()

    def call(self, watched: Watched, arguments: tuple[Any, ...]) -> Any:  # noqa: ANN401 - of the user
        """Call a function, and compare what it gives with what it gave for the same arguments."""
        self.made += 1
        heard = self.unreachable.pop(self.made, None)
        if heard is not None:
            heard(f"{watched.role} {watched.name} cannot reach what it needs, and raises Unavailable")
            raise Unavailable("prove lets a function reach nothing at this call")
        given = tuple(content_of(argument) for argument in arguments)
        place = watched.number, given
        known = self.calls.get(place)
        copies = (
            self._copies(watched, arguments)
            if known is None or watched.number not in self.observations
            else None
        )
        around = _around(watched) if known is None else {}
        own = _with_contexts(arguments, real=True)
        result, error, gave = _outcome(watched, own)
        text = _shown_outcome(result, error)
        said = ", ".join(shown(argument) for argument in arguments)

        def observe(sign: _Sign, first: str, second: str, changed: tuple[str, ...] = ()) -> None:
            observation = Observation(watched.number, sign, copies or (), said, first, second, changed)
            self.observations.setdefault(watched.number, observation)

        for index in range(watched.states, len(arguments)):
            if (
                watched.shared
                and not isinstance(own[index], Context)
                and content_of(own[index]) != given[index]
            ):
                before = shown(copies[index]) if copies else "another value"
                observe("changed its argument", before, shown(own[index]))
        if known is None:
            self.calls[place] = Call(gave, text, said, copies or (), around)
            if self.twice and copies is not None:
                self._again(watched, copies, gave, text, observe)
        elif known.gave != gave:
            now = _around(watched)
            changed = tuple(name for name, content in now.items() if known.around.get(name) != content)
            observe("called again", known.text, text, changed)
        if error is not None:
            raise error
        return result

    def _again(
        self,
        watched: Watched,
        copies: tuple[Any, ...],
        gave: Content,
        text: str,
        observe: Callable[[_Sign, str, str], None],
    ) -> None:
        """Call a function again, as if it were later, and whole batches row by row as well."""
        if gave[0] == ("raised", PoisonError.__qualname__):
            return  # perhaps the real context has refused something
        with _travel_a_year():
            result, error, again = _outcome(watched, _with_contexts(_copied(copies), real=False))
        if again != gave:
            observe("called twice", text, _shown_outcome(result, error))
        elif isinstance(watched.node, MapBatchesNode) and error is None:
            alone = _row_by_row(watched, watched.node, copies[0])
            if alone is not None and content_of(alone) != content_of(result.to_pylist()):
                observe("depends on other rows", shown(result.to_pylist()), shown(alone))

    def _copies(self, watched: Watched, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        try:
            return _copied(arguments)
        except Exception:  # noqa: BLE001 - whatever a user's class raises
            self.not_copied.add(watched.number)
            return None


def watch_flow(flow: CompiledFlow, watch: Watch) -> CompiledFlow:
    """The flow with all its user functions watched."""

    def watched(node: Node) -> Node:
        changes: dict[str, Any] = _replaced(node, node, watch)
        if isinstance(node, StageNode):
            kind: Any = node.stage_kind
            inner = _replaced(kind, node, watch) if is_dataclass(kind) else {}
            changes["stage_kind"] = replace(kind, **inner) if inner else kind
        return replace(node, **changes)

    return _with_nodes(flow, watched)


def move_tables_to(flow: CompiledFlow, directory: Path) -> CompiledFlow:
    """The flow with its tables in a directory, wherever it declares them."""

    def elsewhere(node: Node) -> Node:
        if not isinstance(node, StageNode) or not hasattr(node.stage_kind, "address"):
            return node
        kind: Any = node.stage_kind
        return replace(node, stage_kind=replace(kind, address=str(directory / node.name)))

    return _with_nodes(flow, elsewhere)


def _with_nodes(flow: CompiledFlow, changed: Callable[[Node], Node]) -> CompiledFlow:
    """A copy of the flow with other nodes."""
    return replace(flow, nodes=tuple(changed(node) for node in flow.nodes))


def _replaced(holder: Any, node: Node, watch: Watch) -> dict[str, Any]:  # noqa: ANN401 - a node or a kind of stage
    """The fields of a node or a kind of stage that hold functions, with these watched."""
    changes: dict[str, Any] = {}
    for place in fields(holder):
        held = getattr(holder, place.name)
        declared = isinstance(held, DeclaredFunction)
        function = held.function if declared else held
        if not (declared or (place.name in _PLACES and callable(held))) or not _of_user(function):
            continue
        role = node.word if place.name == "function" else place.name
        watched = Watched(function, len(watch.functions), node, role, watch, shared=role not in _OWNERS)
        watch.functions.append(watched)
        changes[place.name] = replace(held, function=watched) if declared else watched
    return changes


def _of_user(function: object) -> bool:
    """Whether a function is the user's own; what this package makes of names of fields is not."""
    module = getattr(function, "__module__", None) or type(function).__module__
    return module not in {"operator", "_operator"} and not module.startswith("sqe_chain.")


def _travel_a_year() -> AbstractContextManager[object]:
    """A year later, by every clock of Python for the time of day; nothing changes without time-machine."""
    try:
        import time_machine  # noqa: PLC0415 - an extra
    except ImportError:
        return nullcontext()
    travel: AbstractContextManager[object] = time_machine.travel(time.time() + _LATER_S, tick=True)
    return travel


def _around(watched: Watched) -> dict[str, int]:
    return {name: hash(content) for name, content in surroundings(watched.function).items()}


def _with_contexts(arguments: Sequence[Any], *, real: bool) -> tuple[Any, ...]:
    return tuple(
        _WatchedContext(argument, real=real) if isinstance(argument, Context) else argument
        for argument in arguments
    )


def _copied(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Copies of arguments; batches of Arrow and contexts do not change."""
    return tuple(
        argument if isinstance(argument, Context) or hasattr(argument, "to_pydict") else deepcopy(argument)
        for argument in arguments
    )


def _outcome(watched: Watched, arguments: tuple[Any, ...]) -> tuple[Any, Exception | None, Content]:
    """What a call gives: its result, its error, and the content of whatever it has done."""
    result, error = None, None
    try:
        result = watched.function(*arguments)
        if isinstance(result, Iterator):
            result = list(result)
    except Exception as raised:  # noqa: BLE001 - user code may raise anything
        error = raised
    gave = ("raised", type(error).__qualname__) if error else content_of(result)
    states = tuple(content_of(state) for state in arguments[: watched.states])
    done = tuple(tuple(context.done) for context in arguments if isinstance(context, _WatchedContext))
    return result, error, (gave, states, done)


def _shown_outcome(result: object, error: Exception | None) -> str:
    return shown(result) if error is None else f"{type(error).__qualname__}: {shown(str(error))}"


def _row_by_row(watched: Watched, node: MapBatchesNode, batch: Any) -> list[dict[str, Any]] | None:  # noqa: ANN401 - of Arrow
    """What a function over batches gives for each row alone; None if it fails for one of them."""
    rows: list[dict[str, Any]] = []
    try:
        for index in range(batch.num_rows):
            for row in watched.function(batch.slice(index, 1)).to_pylist():
                if node.row_column:
                    row[node.row_column] += index
                rows.append(row)
    except Exception:  # noqa: BLE001 - user code may raise anything
        return None
    return rows
