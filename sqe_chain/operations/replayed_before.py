"""What older versions have sent back of a dead-letter topic: they kept it in the commits of a group of its own."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from sqe_chain.errors import ChainError, ConfigurationError
from sqe_chain.features.dead_letter_commits import replay_group
from sqe_chain.plans.inputs import parse_metadata
from sqe_chain.ports import Commit, Log, TopicInfo, TopicPartition
from sqe_chain.task.dead_letters import Identity
from sqe_chain.task.failed_log import Decision, FailedLog

_BY = "replayed before"


@dataclass(frozen=True, slots=True)
class Replayed:
    """What older versions have sent back, or passed over.

    Attributes:
        flow: name of the flow, as it is declared.
        commits: their progress, by partition of the dead-letter topic.
    """

    flow: str
    commits: Mapping[TopicPartition, Commit]

    def of(self, known: FailedLog) -> list[Identity]:
        """The inputs of a partition that they have sent back or passed over, as far as nothing else was decided about them."""
        commit = self.commits.get((known.topic, known.partition))
        if commit is None:
            return []
        apart = _apart(commit)
        return [
            identity
            for identity, letter in known.letters.items()
            if identity not in known.decided
            and (letter.message.offset() < commit.offset or letter.message.offset() in apart)
        ]

    @property
    def decision(self) -> Decision:
        """What is decided about those now: they have counted already, so they are never released."""
        return Decision(self.flow, "discard", (), by=_BY)


def read_replayed(log: Log, flow: str, info: TopicInfo) -> Replayed:
    """What older versions have sent back of a flow's dead-letter records.

    Raises:
        ConfigurationError: such a replay was interrupted, so nobody knows what it has sent.
    """
    tps = [(info.name, partition) for partition in range(info.partitions)]
    commits = {
        tp: commit
        for tp, commit in log.committed(replay_group(flow), tps).items()
        if parse_metadata(commit).get("topic_id") == info.topic_id.hex()
    }
    for (topic, partition), commit in commits.items():
        if parse_metadata(commit).get("sending"):
            raise ConfigurationError(
                f"{topic}[{partition}]: `dead-letters replay` of an older version was interrupted, and may have sent more than it has "
                "committed. Expected it to be finished. Run that version's command until it ends, then this one"
            )
    return Replayed(flow, commits)


def forget_replayed(log: Log, flow: str) -> None:
    """Delete the group; if the broker refuses that, its commits do no harm."""
    with suppress(ChainError):
        log.delete_group(replay_group(flow))


def _apart(commit: Commit) -> set[int]:
    """Offsets that are done behind the committed one: pairs of how many are not, and how many are."""
    numbers = parse_metadata(commit).get("apart", ())
    gaps = [int(number) for number in numbers] if isinstance(numbers, list) else []
    done, at = set[int](), commit.offset
    for gap, length in zip(gaps[::2], gaps[1::2], strict=True):
        done |= set(range(at + gap, at + gap + length))
        at += gap + length
    return done
