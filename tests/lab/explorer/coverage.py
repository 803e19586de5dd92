"""Which faults were really reached: at each call of each step of each kind of process, alone and one after the other.

It goes through all states of a configuration in which one run is alive at a time. At each call it notes the possible faults. The
run is killed before or after it, its answer is lost, or it does not arrive. As every way through the states is there, so is
every pair of faults, the second in whatever follows the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from tests.lab.explorer.configurations import Configuration
from tests.lab.explorer.states import BITS, FREE, NAMES, States

KILLED_BEFORE, KILLED_AFTER, LOST, AWAY = FAULTS = (
    "killed before",
    "killed after",
    "answer lost",
    "no answer",
)
Fault = tuple[str, str, str, str]
"""Kind of process, step, call, and what happens there."""
_CLAIM = "committed, home, plan, headers, locations, set_home, write"
_LEAVE = "home, set_home"
_AT_REST = {"claim": _CLAIM, "recover": "committed, commit, set_locations", "between": _LEAVE}
_READ = "read header-before, read rows, read header-after"
REACHED: Final[dict[str, dict[str, dict[str, str]]]] = {
    "service-alone": {
        "service": {
            "claim": _CLAIM,
            "recover": "committed, set_locations",
            "process": _READ,
            "seal": "set_home",
            "publish": "publish",
            "persist": "write",
            "commit": "commit",
            "between": _LEAVE,
        }
    },
    "rebuild-alone": {
        "service": _AT_REST,
        "rebuild": {
            "claim": _CLAIM,
            "recover": "committed, commit",
            "process": _READ,
            "seal": "set_home",
            "persist": "write",
            "between": "committed, home, plan, headers, locations, scan, set_home, set_locations, write",
        },
        "resume": {
            "claim": "committed, home, plan, headers, locations, set_home",
            "between": "committed, home, plan, locations, set_home",
        },
    },
    "move-alone": {
        "service": _AT_REST,
        "export": {"between": "home, plan, headers, locations, scan, set_home, save"},
        "import": {
            "between": "committed, load, home, headers, locations, scan, write, set_home, set_locations"
        },
        "moved service": _AT_REST,
    },
}
"""Configuration -> process -> step -> the calls at which the first fault may be. What is really reached is compared with it.

A ``--resume`` that finds an attempt does more, but only after a fault; and so does recovery. The table of pairs counts that.
"""

_ENDED = "the run has ended by itself then"
NEVER: Final = {
    **{
        (kind, "between"): {("set_home", KILLED_AFTER): _ENDED}
        for kind in ("service", "moved service", "resume")
    },
    ("export", "between"): {("save", KILLED_AFTER): _ENDED},
}
"""Process and step -> call and fault that are never reached there, with the reason."""

_MASK: Final = (1 << BITS) - 1


@dataclass(slots=True)
class Coverage:
    """Counts what can happen where.

    Args:
        configuration: one run is alive at a time.
        faults: the limit on their number in one way.

    Attributes:
        states: distinct states.
        reached: fault -> in how many states it happens as the first one.
        pairs: first fault -> the second ones that follow it somewhere.
    """

    configuration: Configuration
    faults: int = 2
    states: int = 0
    reached: Counter[Fault] = field(default_factory=Counter)
    pairs: dict[Fault, set[Fault]] = field(default_factory=dict)

    def run(self) -> None:
        """Go through all states.

        Raises:
            Violation: an invariant does not hold.
        """
        one = replace(self.configuration, crashes=self.faults, silences=self.faults, alive=1, takeovers=0)
        states, names = States(one), dict[Fault, int]()
        first = states.first()
        firsts = {first: 0}  # state -> the first faults on the ways to it, as bits
        seconds: dict[int, list[Fault]] = {}  # state after one fault -> what may happen there
        work = [first]
        while work:
            state = work.pop()
            bits, used = firsts[state], self._used(states, state)
            known = state in seconds
            for fault, to in self._steps(states, state, used):
                reaching = bits
                if fault is not None and used == 0:
                    reaching = 1 << names.setdefault(fault, len(names))
                    self.reached[fault] += 1
                elif fault is not None and used == 1 and not known:
                    seconds.setdefault(state, []).append(fault)
                found = firsts.get(to)
                if found is None or found | reaching != found:
                    firsts[to] = (found or 0) | reaching
                    work.append(to)
            if used == 1:
                seconds.setdefault(state, [])
        self.states = len(firsts)
        ordered = list(names)
        for state, found_here in seconds.items():
            for number in _ones(firsts[state]):
                self.pairs.setdefault(ordered[number], set()).update(found_here)

    def _used(self, states: States, state: int) -> int:
        now = states.processes(state & _MASK)
        return 2 * self.faults - now.crashes - now.silences

    def _steps(self, states: States, state: int, used: int) -> Iterator[tuple[Fault | None, int]]:
        """What can happen in a state, and the state after it."""
        node = states.processes(state & _MASK).nodes[0]
        moves = {move.name.removeprefix(NAMES[0]): move for move in states.moves(state)}
        if node == FREE:
            if not moves or states.processes(state & _MASK).done:
                states.check_rest(state >> BITS, state & _MASK)
            yield from ((None, move.make()) for move in moves.values())
            return
        point, after = states.runs.label(node), moves[""].make()
        yield None, after
        if used == self.faults:
            return
        yield (*point, KILLED_BEFORE), moves["!"].make()
        if states.processes(after & _MASK).nodes[0] != FREE:
            kill = next(move for move in states.moves(after) if move.name.endswith("!"))
            yield (*point, KILLED_AFTER), kill.make()
        yield (*point, LOST), moves["?"].make()
        yield (*point, AWAY), moves["-"].make()

    def counts(self) -> dict[str, int]:
        """Points, faults and pairs of faults that were reached."""
        return {
            "points": len({fault[:3] for fault in self.reached}),
            "faults": len(self.reached),
            "pairs": sum(map(len, self.pairs.values())),
        }

    def table(self) -> str:
        """The faults that were reached: in how many states, and how many other faults follow each."""
        lines = [f"{'process':14} {'step':8} {'call':28} {' '.join(f'{name:>16}' for name in FAULTS)}"]
        for point in sorted({fault[:3] for fault in self.reached}):
            counts = [
                f"{self.reached[*point, name]:,} / {len(self.pairs.get((*point, name), ())):,}"
                for name in FAULTS
            ]
            lines.append(
                f"{point[0]:14} {point[1]:8} {point[2]:28} {' '.join(f'{count:>16}' for count in counts)}"
            )
        return "\n".join(lines)


def unexpected(coverage: Coverage) -> list[str]:
    """Faults that were reached and are not in `REACHED`, or the other way round, but for those with a reason in `NEVER`."""
    wanted = {
        (kind, step, call, fault)
        for kind, steps in REACHED[coverage.configuration.name].items()
        for step, calls in steps.items()
        for call in calls.split(", ")
        for fault in FAULTS
    }
    here = {(kind, step, call.partition(": ")[2], fault) for kind, step, call, fault in coverage.reached}
    never = {fault for fault in wanted if (*fault[2:],) in NEVER.get((fault[0], fault[1]), {})}
    texts = [f"{fault} is reached, and `REACHED` does not know it" for fault in sorted(here - wanted)]
    texts += [
        f"{fault} is never reached, and `NEVER` has no reason" for fault in sorted(wanted - here - never)
    ]
    return texts + [f"{fault} is reached, and `NEVER` says why not" for fault in sorted(here & never)]


def _ones(bits: int) -> Iterator[int]:
    while bits:
        yield (bits & -bits).bit_length() - 1
        bits &= bits - 1
