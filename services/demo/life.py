"""What a service has done since its start, from its JSON log lines. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogLine:
    """One event of a service.

    Attributes:
        event: ``claimed``, ``recovered``, ``sealed``, ``published``, ``persisted``, ``committed`` …
        redone: numbers of the plans that a recovery finished.
        inputs: messages of a batch, or read again by a recovery.
        replays: messages of it that were replays and ignored.
        outputs: messages published; 0 when a redo found them all published.
        rows: states persisted; 0 when a redo found them all persisted.
        exit_status: exit status, when an error has ended the service; None for any other event.
    """

    event: str
    plan: int | None = None
    redone: tuple[int, ...] = ()
    inputs: int = 0
    replays: int = 0
    outputs: int = 0
    rows: int = 0
    exit_status: int | None = None


def parse_line(text: str) -> LogLine | None:
    """The event in a line of output; None for any other line (the JVM writes there, too)."""
    if not text.startswith("{"):
        return None
    try:
        fields = json.loads(text)
    except ValueError:
        return None
    event = fields.get("event")
    if not isinstance(event, str):
        return None
    plan = fields.get("plan")
    return LogLine(
        event=event,
        plan=plan if isinstance(plan, int) else None,
        redone=tuple(fields.get("redone") or ()),
        inputs=fields.get("inputs") or 0,
        replays=fields.get("replays") or 0,
        outputs=fields.get("outputs") or 0,
        rows=fields.get("rows") or 0,
        exit_status=fields.get("exit_status"),
    )


@dataclass(slots=True)
class Life:
    """A service from its start to its death.

    Attributes:
        proved_s: when it first published or persisted something; None before. Killing a service that has
            done neither would prove nothing.
        open_plan: number of the plan that is sealed and not yet committed.
        sealed_s: when that was.
        redone: plans of the previous life that it finished; None until it has recovered.
        inputs: messages in them, and in what the life before had left unfinished.
        replays: replays among those of its batches.
        levels: how many times it persists in a batch, once for each level of stages.
        persisted: how many times it has done so since the last seal.
        persist_s: how long the last plan took from seal to the last persist.
        outputs: messages published for what is committed.
        open_outputs: messages published since the last commit, according to its log lines.
    """

    service: str
    number: int
    state: str = "starting"
    proved_s: float | None = None
    open_plan: int | None = None
    sealed_s: float = 0.0
    redone: tuple[int, ...] | None = None
    batches: int = 0
    inputs: int = 0
    replays: int = 0
    levels: int = 1
    persisted: int = 0
    persist_s: float | None = None
    outputs: int = 0
    open_outputs: int = 0

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"{self.service} #{self.number}"

    @property
    def persists(self) -> bool:
        """Whether a plan is sealed, and not all of it is persisted: the next life has to finish it."""
        return self.open_plan is not None and self.persisted < self.levels

    def prove(self, now_s: float) -> None:
        """Record that it has published or persisted something."""
        if self.proved_s is None:
            self.proved_s = now_s

    def apply(self, line: LogLine, now_s: float) -> None:
        """Record an event."""
        self.state = line.event
        if line.event == "recovered":
            self.redone = line.redone
            self._commit(line)
        elif line.event == "sealed":
            self.open_plan = line.plan
            self.sealed_s = now_s
            self.persisted = 0
        elif line.event in ("published", "persisted"):
            if line.outputs or line.rows:
                self.prove(now_s)
            self.open_outputs += line.outputs
            if line.event == "persisted" and self.open_plan is not None:
                self.persisted += 1
                self.persist_s = now_s - self.sealed_s
        elif line.event == "committed":
            self.batches += 1
            self.replays += line.replays
            self.open_plan = None
            self._commit(line)

    def _commit(self, line: LogLine) -> None:
        """Record that all that was published so far is committed."""
        self.inputs += line.inputs
        self.outputs += self.open_outputs
        self.open_outputs = 0
