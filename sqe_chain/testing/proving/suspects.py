"""Finds out why a function is not deterministic: calls it again, and looks at what it calls and leaves behind."""

from __future__ import annotations

import decimal
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, Literal

from sqe_chain.testing.proving.surroundings import place_of, short, surroundings
from sqe_chain.testing.proving.watching import Observation, Watched

Reason = Literal[
    "clock",
    "random",
    "identity",
    "order",
    "global",
    "state of its own",
    "changed argument",
    "other rows",
    "world outside",
]
"""Why a function is not deterministic."""

_ADVICE: Final[Mapping[Reason, str]] = {
    "clock": "take context.timestamp_ms, the time of the event, or context.now_ms, the batch's clock",
    "random": "derive it from the event: context.event_id is the same in every replay",
    "identity": "addresses and hashes are others in each process: take a field of the value",
    "order": "sets have another order in each process: sort them before their order matters",
    "global": "set it where its module is imported, or give it to the function where the flow is declared",
    "state of its own": "keep what it must remember in the state of an aggregate",
    "changed argument": "others see the same value: change a copy",
    "other rows": "a row of the result may depend on its own row alone, because batches end elsewhere when they are redone",
    "world outside": "bring it into the flow as a topic, or look it up before the message enters",
}
_SUSPECTS: Final[Mapping[tuple[str, str], Reason]] = {
    **dict.fromkeys((("time", name) for name in ("time", "time_ns", "monotonic", "perf_counter")), "clock"),
    **dict.fromkeys((("time", name) for name in ("monotonic_ns", "perf_counter_ns")), "clock"),
    **dict.fromkeys((("time", name) for name in ("localtime", "gmtime", "ctime", "strftime")), "clock"),
    **dict.fromkeys((("datetime", name) for name in ("now", "utcnow", "today")), "clock"),
    **dict.fromkeys((("Random", name) for name in ("random", "getrandbits")), "random"),
    **dict.fromkeys((("posix", name) for name in ("urandom", "getrandom")), "random"),
    ("_uuid", "generate_time_safe"): "random",
    ("builtins", "id"): "identity",
    ("builtins", "hash"): "identity",
    **dict.fromkeys((("posix", name) for name in ("getpid", "stat", "listdir", "scandir")), "world outside"),
    **dict.fromkeys((("io", "open"), ("_io", "open"), ("_socket", "getaddrinfo")), "world outside"),
}
_STRENGTH: Final = ("clock", "random", "identity", "state of its own", "world outside")
_LIBRARIES: Final = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


@dataclass(frozen=True, slots=True)
class Finding:
    """A function that is not deterministic.

    Attributes:
        function: its name.
        where: file and line: of the call that is to blame, or else of the function.
        reason: why; "world outside" if nothing else was found.
        declared: what it is for in the flow, and where it was declared.
        text: all of it in words.
    """

    function: str
    where: str
    reason: Reason
    declared: str
    text: str


def explain(watched: Watched, seen: Observation) -> Finding:
    """Find out why a function is not deterministic."""
    reason, where, what = _reason(watched, seen)
    declared = watched.node.called
    if watched.role != watched.node.word and not declared.startswith(watched.role):
        declared = f"{watched.role} of {declared}"
    file, _, line = watched.node.declared_at.rpartition(":")
    at = f"{short(file)}:{line}"
    text = (
        f"{watched.name} ({place_of(watched.function) or at}; {declared}, declared at {at}) "
        f"{what}.\n  {_shows(seen)}\n  Instead: {_ADVICE[reason]}."
    )
    return Finding(watched.name, where, reason, f"{declared}, declared at {at}", text)


def _shows(seen: Observation) -> str:
    match seen.sign:
        case "changed its argument":
            return f"Before the call: {seen.first}\n  After it:        {seen.second}"
        case "depends on other rows":
            return f"For {seen.given} it gave {seen.first}\n  and row by row {seen.second}"
        case "called twice":
            when = "called twice with the same, the second time a year later"
        case "other process":
            when = "called with the same in two processes"
        case _:
            when = "called again with the same in another run"
    return f"For {seen.given}, {when}, it gave\n    {seen.first}\n    {seen.second}"


def _reason(watched: Watched, seen: Observation) -> tuple[Reason, str, str]:
    """Why, where, and in words."""
    own = place_of(watched.function) or watched.node.declared_at
    if seen.sign == "changed its argument":
        return "changed argument", own, "changes the value that it is given"
    if seen.sign == "depends on other rows":
        return "other rows", own, "gives something else for a row if other rows are beside it"
    # One that sets the context of decimals has done so already: only in another one a call shows it.
    with decimal.localcontext(prec=decimal.getcontext().prec + 1):
        calls, changed = _called_again(watched.function, seen.arguments) if seen.arguments else ([], [])
    if seen.sign == "other process" and seen.changed:
        return "global", own, f"names a global that this program has set: {', '.join(seen.changed)}"
    changed = changed or [*seen.changed]
    reasons = {reason: (where, f"calls {name} at {where}") for reason, name, where in reversed(calls)}
    if changed:
        reasons["state of its own"] = own, f"remembers something: {', '.join(changed)} has changed"
    for reason in _STRENGTH:
        if reason in reasons:
            return reason, *reasons[reason]
    if seen.sign == "other process":
        return "order", own, "gives something else in another process: the order of a set, or a hash"
    return "world outside", own, "is not deterministic: it depends on something beside its arguments"


def _called_again(
    function: Any,  # noqa: ANN401 - of the user
    arguments: Sequence[Any],
) -> tuple[list[tuple[Reason, str, str]], list[str]]:
    """Call a function, and return what it calls that is not deterministic, and the names of what it has changed."""
    calls: list[tuple[Reason, str, str]] = []

    def look(frame: FrameType, event: str, called: Any) -> None:  # noqa: ANN401 - see sys.setprofile
        if event != "c_call":
            return
        name = getattr(called, "__name__", "")
        for owner in _owners(called):
            reason = _SUSPECTS.get((owner, name))
            if reason is not None:
                calls.append(
                    (reason, f"{owner}.{name}()" if owner != "builtins" else f"{name}()", _line(frame))
                )
                return

    before = surroundings(function)
    known = sys.getprofile()
    sys.setprofile(look)
    try:
        for _ in function(*arguments) or ():
            pass
    except Exception:  # noqa: BLE001, S110 - it need not succeed
        pass
    finally:
        sys.setprofile(known)
    after = surroundings(function)
    return calls, [name for name, content in after.items() if before.get(name) != content]


def _owners(called: Any) -> Iterator[str]:  # noqa: ANN401 - a function written in C
    yield getattr(called, "__module__", "") or ""
    held = getattr(called, "__self__", None)
    for cls in (held if isinstance(held, type) else type(held)).__mro__:
        yield {"date": "datetime"}.get(cls.__name__, cls.__name__)


def _line(frame: FrameType | None) -> str:
    """File and line of the user's code that is at work: not of a library that it calls."""
    first = frame
    while frame is not None and frame.f_code.co_filename.startswith((*_LIBRARIES, "<")):
        frame = frame.f_back
    frame = frame or first
    return f"{short(frame.f_code.co_filename)}:{frame.f_lineno}" if frame is not None else ""
