"""What schedules have really reached: features of worlds, kinds of facts, steps and faults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Final, get_args, get_type_hints

from tests.lab.reference import facts
from tests.lab.reference.world import World
from tests.lab.simulator import malformed
from tests.lab.simulator.schedule import Step

WHOLE: Final = 20_000
"""From this number of schedules on, each of `EXPECTED` has to be reached."""

_WHEN: Final = ("before", "after")
FAULTS: Final = (
    *("kill", "takeover", "zombie", "ended", "others meanwhile", "rewind", "offsets forgotten"),
    *(f"crash {when} a {what}" for when in _WHEN for what in ("call", "write")),
    *(f"no answer {when} the effect" for when in _WHEN),
    *(f"crash between {what}" for what in ("states", "outputs", "steps of the table")),
    *(f"crash {when} a {what} of the table" for when in _WHEN for what in ("call", "write")),
    *(f"no answer {when} the effect of the table" for when in _WHEN),
    *("others meanwhile, at the table", "no answer before the effect of the store"),
    *("compaction", "vacuum", "table went back", "TableInconsistent, handled"),
    *("leader election", "transaction", "clock jumped", "topic grown", "topic recreated"),
    *("RecreatedTopic, handled", "rubbish", "malformed", "file: rename", "file: copy"),
    *("store went back", "state partition went back", "StoreInconsistent, handled"),
    *("rebuild", "rebuild --resume", "rebuild, overtaken", "rebuild, refused", "export and import"),
    *(
        "failed release",
        "failed discard",
        "failed again",
        "discarded",
        "markers lost",
        "MarkersLost, handled",
    ),
    *("log cut off", "TruncatedInput, handled", "record lost", "GapError, handled", "record lost, excused"),
    *("republisher changed", "ChangedRepublisher, handled", "counted roots came back"),
    *("standby, the other run killed", "standby, the other run gave its claim back"),
    *("code with more stages", "code with more sources", "other functions", "PlanMismatch, handled"),
)
"""What happens in some schedule, by the names in `Simulation.fired`."""
STEPS: Final = (
    *("run", "kill", "start", "wake", "trouble", "settle", "rewind", "copy", "roll back", "table back"),
    *("compact", "vacuum", "rebuild", "move", "change", "feed", "file", "rubbish", "open", "abort"),
    *("elect", "forget", "grow", "recreate", "jump", "standby", "cut", "lose", "change mind", "come back"),
    "decide",
    "markers",
)
"""The steps of schedules."""
KINDS: Final = {
    value: name.lower()
    for name, value in vars(facts).items()
    if name.isupper()
    and isinstance(value, str)
    and len(value) == 1
    and name not in {"CHANGED", "NOT_A_NUMBER"}
}
"""Kind of a fact -> its name."""
_NUMBERS: Final = {
    "hops": (0, 1, 2),
    "partitions": (1, 2, 3),
    "state_partitions": (1, 2, 3),
    "stages": (1, 2),
    "buckets": (1, 2),
    "block": (1, 2, 3, 1_000),
    "rows": (1, 2, 5_000),
    "records": (3, 5, 400_000),
    "keep_plans": (2, 3, 20),
}


def _features() -> Iterator[str]:
    """All values that fields of worlds may have."""
    for name, of in get_type_hints(World).items():
        choices = (False, True) if of is bool else _NUMBERS.get(name) or get_args(of)
        yield from (_feature(name, value) for value in choices)


def _feature(name: str, value: object) -> str:
    return f"world: {name}={value}"


EXPECTED: Final = (
    *_features(),
    *(f"fact: {name}" for name in KINDS.values()),
    *(f"malformed: {kind}" for kind in malformed.KINDS),
    *(f"step: {name}" for name in STEPS),
    *(f"fault: {name}" for name in FAULTS),
)
"""What schedules reach."""


def features_of(world: World) -> Iterator[str]:
    """The names of what a world has."""
    return (_feature(one.name, getattr(world, one.name)) for one in fields(world))


def reached_by(step: Step) -> Iterator[str]:
    """The names of what a step does, by its name and arguments."""
    yield f"step: {step[0]}"
    if step[0] == "feed":
        yield from (f"fact: {KINDS[fact.split(' ')[3]]}" for _, fact in step[2])
    if step[0] == "rubbish":
        yield f"malformed: {step[3]}"


def missing(reached: Mapping[str, int]) -> list[str]:
    """What no schedule has reached."""
    return [name for name in EXPECTED if not reached.get(name)]
