"""What a service has told so far: the numbers for the panel. Pure; time comes in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf

from sqe_chain.protocol.interfaces import CLAIM, COMMIT, PERSIST, PROCESS, PUBLISH, RECOVER, SEAL, When

RATE_WINDOW_S = 10.0
"""The input rate is the mean over this time."""

SLOW_S = 15.0
"""A step that waits for servers and takes longer is worth a word, before any of their time limits ends it."""

_WAITING_STEPS = frozenset({SEAL, PUBLISH, PERSIST, COMMIT})

_DOING = {
    CLAIM: "claiming",
    RECOVER: "recovering",
    PROCESS: "processing",
    SEAL: "sealing",
    PUBLISH: "publishing",
    PERSIST: "persisting",
    COMMIT: "committing",
}


@dataclass(slots=True)
class Statistics:
    """Implements `protocol.interfaces.Observer`.

    Attributes:
        now_s: gives seconds since 1970.
        doing: what the service does, in a word.
        notice: the last thing worth a look; empty when all is well.
        epoch: of the claim; 0 without one.
        plan: number of the last plan; -1 without one.
        open_plan: number of a plan sealed and not yet committed; None when there is none.
        inputs: messages read.
        replays: of these, replays ignored.
        excluded: of these, left out by the poison policy.
        outputs: messages published.
        rows: states written.
        batches: batches committed.
        batch_ms: how long the last batch took, in milliseconds.
        lag: offsets that were there when the last batch began, and not in it.
        persisted_s: when states were last written, seconds since 1970; 0 never.
    """

    now_s: Callable[[], float]
    doing: str = "starting"
    notice: str = ""
    epoch: int = 0
    plan: int = -1
    open_plan: int | None = None
    inputs: int = 0
    replays: int = 0
    excluded: int = 0
    outputs: int = 0
    rows: int = 0
    batches: int = 0
    batch_ms: int = 0
    lag: int = 0
    persisted_s: float = 0.0
    _recent: deque[tuple[float, int]] = field(default_factory=deque)
    _began_s: float = 0.0
    _slow_from_s: float = inf

    def step(self, number: int, when: When) -> None:
        """Note what the service does."""
        if when == "before":
            self.doing = _DOING[number]
        waits = when == "before" and number in _WAITING_STEPS
        self._slow_from_s = self.now_s() + SLOW_S if waits else inf

    def grown_slow(self) -> str:
        """What a step does that has become slow since this was last asked; empty for none."""
        if self.now_s() < self._slow_from_s:
            return ""
        self._slow_from_s = inf
        return self.doing

    def event(self, name: str, fields: Mapping[str, object]) -> None:
        """Count."""
        if name == "claimed":
            self.epoch = _whole(fields, "epoch")
        elif name == "recovered":
            self.plan = _whole(fields, "plan", self.plan)
            self._began_s = self.now_s()
        elif name == "sealed":
            self.plan = self.open_plan = _whole(fields, "plan")
        elif name == "persisted":
            self.rows += _whole(fields, "rows")
            self.persisted_s = self.now_s()
        elif name == "committed":
            self._committed(fields)
        elif name == "caught_up":
            self.doing, self.lag, self.notice = "waiting for input", 0, ""
        elif name == "waiting":
            self.doing = f"waiting to {fields.get('what')}"
            self.notice = str(fields.get("reason", ""))
        elif name == "standby":
            self.doing = "standby: another run holds the flow"
        elif name == "notice":
            self.notice = str(fields.get("text", ""))

    def rate(self) -> float:
        """Inputs per second, the mean of the last seconds."""
        now_s = self.now_s()
        while self._recent and self._recent[0][0] < now_s - RATE_WINDOW_S:
            self._recent.popleft()
        seconds = min(RATE_WINDOW_S, max(1.0, now_s - self._began_s))
        return sum(inputs for _, inputs in self._recent) / seconds

    def _committed(self, fields: Mapping[str, object]) -> None:
        inputs = _whole(fields, "inputs")
        self.doing, self.notice, self.open_plan = "waiting for the next batch", "", None
        self.batches += 1
        self.inputs += inputs
        self.replays += _whole(fields, "replays")
        self.excluded += _whole(fields, "excluded")
        self.outputs += _whole(fields, "outputs")
        self.lag = _whole(fields, "lag")
        self.batch_ms = _whole(fields, "batch_ms")
        self._recent.append((self.now_s(), inputs))


def _whole(fields: Mapping[str, object], name: str, default: int = 0) -> int:
    found = fields.get(name, default)
    return found if isinstance(found, int) else default
