"""Inputs that a flow without stages has skipped, when it reads them again: they stay skipped, whatever the code of now makes of them.

Its readers have read past them. The dead-letter topic has their lanes and positions. Their numbers show whether
retention has taken any. With `poison="skip"` the newest of their offsets are in the group's commits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sqe_chain.errors import DeadLettersLost
from sqe_chain.ports import Range, TopicInfo, TopicPartition
from sqe_chain.protocol.environment import Environment
from sqe_chain.protocol.events import Notice
from sqe_chain.task.dead_letters import DeadLetter, parse_dead_letter

KEPT: Final = 64
"""Offsets of skipped inputs that a commit keeps of each partition with `poison="skip"`."""


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The dead-letter records of a flow that its topic still holds.

    Attributes:
        of: input partition, as topic id and partition -> its records, by number and offset; each input once.
        lost: whether retention has deleted anything of the topic.
    """

    of: Mapping[tuple[bytes, int], tuple[DeadLetter, ...]] = field(default_factory=dict)
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
        kept = self.of.get((topic_id, partition), ())
        numbers = {letter.number for letter in kept if letter.number >= 0}
        gone = [number for number in range(count) if number not in numbers]
        if not gone or not self.lost:  # what was never written is no loss: the run was killed before it
            return 0
        after = min((letter.offset for letter in kept if letter.number > gone[-1]), default=None)
        return 0 if raw and after is not None and after <= offset else len(gone)


def read_dead_letters(env: Environment, infos: Mapping[str, TopicInfo]) -> DeadLetters:
    """All dead-letter records of the flow; their topic is read from its beginning."""
    flow = env.flow
    info = infos.get(flow.dead_letter_topic) if flow.dead_letters else None
    if info is None:
        return DeadLetters()
    kept: dict[tuple[bytes, int], dict[tuple[str, bytes, int], DeadLetter]] = defaultdict(dict)
    bounds = env.log.bounds([(info.name, partition) for partition in range(info.partitions)])
    for (topic, partition), bound in bounds.items():
        part = Range(topic, info.topic_id, partition, bound.begin, bound.stable_end)
        for block in env.ports.log.read(part):
            for letter in filter(None, map(parse_dead_letter, block)):
                if letter.flow == flow.name:
                    kept[letter.topic_id, letter.partition].setdefault(letter.identity, letter)
    of = {place: tuple(sorted(own.values(), key=lambda it: it.offset)) for place, own in kept.items()}
    return DeadLetters(of, any(bound.begin > 0 for bound in bounds.values()))


def check_known(
    env: Environment, letters: DeadLetters, tp: TopicPartition, topic_id: bytes, offset: int, count: int
) -> None:
    """Check that all is known that was skipped from an offset on.

    Raises:
        DeadLettersLost: retention has taken dead-letter records.
    """
    source = env.flow.source_of[tp[0]]
    raw = source is not None and source.raw
    missing = letters.missing_from(topic_id, tp[1], offset, count, raw=raw)
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
