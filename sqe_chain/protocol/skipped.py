"""Inputs that a flow without stages has skipped, when it reads them again: they stay skipped, whatever the code of now makes of them.

Its readers have read past them. The dead-letter topic has their lanes and positions. Their numbers show whether
retention has taken any. With `poison="skip"` the newest of their offsets are in the group's commits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sqe_chain.errors import DeadLettersLost
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.events import Notice
from sqe_chain.plans.failed_logs import failed_logs
from sqe_chain.ports import TopicPartition
from sqe_chain.task.dead_letters import DeadLetter, Identity

KEPT: Final = 64
"""Offsets of skipped inputs that a commit keeps of each partition with `poison="skip"`."""


@dataclass(frozen=True, slots=True)
class SkippedInputs:
    """Inputs that a flow has skipped, as its dead-letter topic knows them.

    Attributes:
        by_partition: input partition, as topic id and number -> dead-letter records of its inputs.
        identities: lanes and positions of all of them.
        lost: whether retention has deleted anything of the topic.
    """

    by_partition: Mapping[tuple[bytes, int], Sequence[DeadLetter]] = field(default_factory=dict)
    identities: frozenset[Identity] = frozenset()
    lost: bool = False

    def missing_from(self, topic_id: bytes, partition: int, offset: int, count: int, *, raw: bool) -> int:
        """How many inputs at or after an offset may have been skipped whose records are gone.

        Args:
            topic_id: of the input.
            partition: of the input.
            offset: where it is read again.
            count: inputs that were skipped there in all.
            raw: its records have no envelopes, so none of them comes again at another offset.
        """
        kept = self.by_partition.get((topic_id, partition), ())
        numbers = {record.number for record in kept}
        gone = [number for number in range(count) if number not in numbers]
        if not gone or not self.lost:  # what was never written is no loss: the run was killed before it
            return 0
        later = [record.offset for record in kept if record.number is not None and record.number > gone[-1]]
        return 0 if raw and later and min(later) <= offset else len(gone)


def read_skipped(env: Environment) -> SkippedInputs:
    """All that the dead-letter topic knows of the flow, whatever its policy is now; it is read from its beginning."""
    logs = failed_logs(env)
    by_partition: dict[tuple[bytes, int], list[DeadLetter]] = {}
    for record in (letter.dead for known in logs for letter in known.letters.values()):
        by_partition.setdefault((record.topic_id, record.partition), []).append(record)
    return SkippedInputs(
        by_partition,
        frozenset().union(*(known.known for known in logs)),
        any(known.begin > 0 for known in logs),
    )


def check_known(
    env: Environment, known: SkippedInputs, tp: TopicPartition, topic_id: bytes, offset: int, count: int
) -> None:
    """Check that all is known that was skipped from an offset on.

    Raises:
        DeadLettersLost: retention has taken dead-letter records.
    """
    source = env.flow.source_of[tp[0]]
    raw = source is not None and source.raw
    missing = known.missing_from(topic_id, tp[1], offset, count, raw=raw)
    if not missing:
        return
    text = (
        f"flow {env.flow.name!r}: {missing} of {count} dead-letter records of {tp[0]}[{tp[1]}] are gone from {env.flow.dead_letter_topic!r}, so it "
        f"is not known which inputs from offset {offset} on were skipped, or released. Expected all of them. Rewind to a later "
        "offset; or accept with --accept-lost-dead-letters that readers which begin in the middle may count such an input twice"
    )
    if not env.settings.once.accept_lost_dead_letters:
        raise DeadLettersLost(text).at(*tp, offset)
    env.emit(Notice(text))
