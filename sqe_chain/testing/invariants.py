"""What must hold after every write, by name; the simulator, the explorer and `prove` check it."""

from __future__ import annotations

INVARIANTS = {
    "sum": "at rest every state is the fold of all facts, each once",
    "prefix": "at every moment every state is the fold of a prefix of each lane",
    "monotone": "epochs, plans, headers and cursors never go back",
    "order": "outputs come before states, downstream states before upstream ones",
    "commit": "a group's offset is not beyond the last plan that all headers have reached",
    "one writer": "after a claim no older run changes anything",
    "redo": "a lane and position names one content, wherever it is published, and is written once a batch",
    "whole": "collections are applied as a whole or not at all",
    "once": "every input is counted, or skipped by a plan, once; with one dead-letter record",
    "plans": "plans are sealed once, name what they hold, and follow each other",
    "rest": "when faults stop, lag goes to zero and nothing is left to finish",
    "sound": "a service stops only for what it is documented to stop for",
}
"""Name -> its statement."""


class Violation(Exception):
    """An invariant does not hold."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {INVARIANTS[name]}. Found: {text}")
        self.name = name
        self.text = text

    def __reduce__(self) -> tuple[type[Violation], tuple[str, str]]:
        """Make it picklable: worker processes send it."""
        return Violation, (self.name, self.text)
