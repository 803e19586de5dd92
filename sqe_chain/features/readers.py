"""Readers: several processes run one flow side by side, each for input partitions of its own.

A reader has a claim, plans and headers of its own, under its own name (`ports.readers.scope_of`). So it commits, crashes and
recovers by itself. One record in the metadata store keeps the readers of a flow apart. It holds the sets of partitions, and the
name of each set's reader. It changes by compare-and-set alone.

A reader enters its set there, unless another set has one of its partitions. Then it claims, and looks at the record again before
it reads or writes anything. A change of the sets (`changing_readers`) writes into the record first, and claims after that. So of a
reader and a change that meet, the one that claimed last has seen the other.

A flow that is run as one is the reader of all partitions: without a record it is named like the flow.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, Self

from sqe_chain.errors import ConfigurationError, PartitionsMismatch, ReadersOverlap, StoreInconsistent
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.plans import inputs
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.events import Notice
from sqe_chain.plans.look import Infos
from sqe_chain.ports import Home, TopicInfo
from sqe_chain.ports.readers import ALL, Partitions, readers_of, scope_of, union_of

_FORMAT: Final = 1
Sets = Mapping[Partitions, str]
"""Partitions -> name of their reader's claim, plans and headers."""


@dataclass(frozen=True, slots=True)
class Readers:
    """The readers of a flow.

    Attributes:
        state_partitions: of the flow: the same for all of them, for they write into the same tables.
        sets: the readers.
        changes: how often the sets were changed, or a change was begun.
        old: the readers whose partitions are being given to others; empty: nothing is being changed.
        new: the readers that will have them.
        retired: names of the readers that there were before.
        forgotten: the flow is being forgotten.
    """

    state_partitions: int
    sets: Sets = field(default_factory=dict)
    changes: int = 0
    old: Sets = field(default_factory=dict)
    new: Sets = field(default_factory=dict)
    retired: tuple[str, ...] = ()
    forgotten: bool = False

    def to_text(self) -> str:
        """As JSON."""
        members: dict[str, Any] = {
            "readers": _FORMAT,
            "state_partitions": self.state_partitions,
            "sets": _plain(self.sets),
            "changes": self.changes,
            "old": _plain(self.old),
            "new": _plain(self.new),
            "retired": list(self.retired),
            "forgotten": self.forgotten,
        }
        return json.dumps(
            {name: value for name, value in members.items() if value or name in ("readers", "sets")}
        )

    @classmethod
    def from_text(cls, text: str) -> Self:
        """From JSON.

        Raises:
            ValueError, KeyError, TypeError: it is none.
        """
        members = json.loads(text)
        if members["readers"] != _FORMAT:
            raise ValueError(members["readers"])
        return cls(
            members["state_partitions"],
            _parsed(members["sets"]),
            members.get("changes", 0),
            _parsed(members.get("old", {})),
            _parsed(members.get("new", {})),
            tuple(members.get("retired", ())),
            bool(members.get("forgotten")),
        )

    @property
    def names(self) -> list[str]:
        """Names of all readers that there are, were, or are about to be."""
        return list(dict.fromkeys([*self.sets.values(), *self.new.values(), *self.retired]))

    @property
    def unused(self) -> bool:
        """Whether there are none, and never were: the flow is run as one."""
        return not (self.sets or self.changes or self.forgotten)

    def __str__(self) -> str:
        return (
            "; ".join(
                str(partitions) for partitions in sorted(self.sets, key=lambda readers: readers.ranges[0][0])
            )
            or "none"
        )


@dataclass(frozen=True, slots=True)
class ReadersClaim:
    """The record of a flow's readers, as it is stored.

    Attributes:
        home: what the next one is compared with; None: there is none.
        readers: its content; None: there is none.
    """

    home: Home | None = None
    readers: Readers | None = None


class Homes(Protocol):
    """What holds home records: a `StateStore`, or one that retries."""

    def home(self, flow: str) -> tuple[Home | None, int]: ...

    def set_home(self, flow: str, before: Home | None, after: Home) -> Home | None: ...


def read_record(home: Homes, flow: str) -> ReadersClaim:
    """The record of a flow's readers.

    Raises:
        StoreInconsistent: something else is stored there.
    """
    record, _ = home.home(readers_of(flow))
    if record is None:
        return ReadersClaim()
    try:
        return ReadersClaim(record, Readers.from_text(record.owner))
    except (ValueError, KeyError, TypeError) as error:
        raise StoreInconsistent(
            f"flow {flow!r}: the store has a record {readers_of(flow)!r} that is none of its readers: {record}; written by a newer "
            "version, or by another program"
        ) from error


def write_record(
    home: Homes, flow: str, before: ReadersClaim, readers: Readers, run_id: str
) -> ReadersClaim | None:
    """Replace the record, if it is still the one before.

    Args:
        home: see `read_record`.
        flow: see there.
        before: the record so far.
        readers: of the new one.
        run_id: a random name, so that two records with the same content differ.

    Returns:
        The new record; None: another process was faster.
    """
    epoch = before.home.epoch + 1 if before.home else 1
    wanted = Home(epoch, run_id, readers.to_text(), -1, "")
    stored = home.set_home(readers_of(flow), before.home, wanted)
    return ReadersClaim(wanted, readers) if stored == wanted else None


def enter_flow(env: Environment, infos: Infos) -> CompiledFlow:
    """Before step 1: the flow under the name under which the run works, that of its reader.

    Raises:
        ReadersOverlap, ConfigurationError, PartitionsMismatch: it may not read these partitions.
    """
    flow = env.flow
    if flow.may_run_apart:
        # What only finishes a plan finishes it under the name that it was given.
        return flow if env.role.only_recovers else _enter(env, infos)
    if flow.partitions is not None:
        check_exist(flow, flow.partitions, infos)
    return flow


def check_entered(env: Environment) -> None:
    """Step 1, after the claim and before anything else: check that the partitions are still this reader's.

    Raises:
        ReadersOverlap: they are not.
    """
    if env.flow.may_run_apart and not env.role.only_recovers:
        _check_entered(env)


def notice_unread(env: Environment, infos: Infos) -> None:
    """Report which partitions no reader has: when this reader starts, and when partitions are about to enter."""
    if env.flow.partitions is not None and env.flow.may_run_apart:
        _notice_unread(env, infos)


def _enter(env: Environment, infos: Infos) -> CompiledFlow:
    """Enter this reader's partitions into the record, if they are not there, and find the name under which it works.

    Args:
        env: the flow, with its partitions if it is one of several readers, and its ports.
        infos: its topics.

    Returns:
        The flow under that name.

    Raises:
        ReadersOverlap: another reader has one of the partitions, or the flow is run as one.
        ConfigurationError: a partition does not exist.
        PartitionsMismatch: the readers have another number of state partitions.
    """
    flow, home = env.flow, env.home
    wanted = flow.partitions or ALL
    if flow.partitions is not None:
        check_exist(flow, wanted, infos)
    while True:  # not bounded: each further round means that another reader has entered in between
        record = read_record(home, flow.declared_name)
        known = record.readers
        if flow.partitions is None and (known is None or known.unused):
            return flow
        if known is not None and wanted in known.sets:
            _check_open(flow, known, wanted)
            _check_state_partitions(flow, known)
            return flow.reader(wanted, scope=known.sets[wanted])
        known = known or Readers(flow.state_partitions)
        _check_not_one(env, flow, known, wanted)
        _check_free(flow, known, wanted)
        _check_state_partitions(flow, known)
        scope = scope_of(flow.declared_name, wanted, known.changes)
        after = replace(known, sets={**known.sets, wanted: scope})
        written = write_record(home, flow.declared_name, record, after, env.new_run_id())
        if written is None:
            continue
        try:
            _check_not_one(env, flow, known, wanted)
        except ReadersOverlap:  # it was started as one in between: this set has read nothing yet
            write_record(home, flow.declared_name, written, known, env.new_run_id())
            raise
        env.emit(
            Notice(f"partitions {wanted} of flow {flow.declared_name!r} are read by {scope!r} from now on")
        )
        return flow.reader(wanted, scope=scope)


def _check_entered(env: Environment) -> None:
    flow = env.flow
    known, wanted = read_record(env.home, flow.declared_name).readers, flow.partitions or ALL
    if known is None or known.unused:
        if flow.partitions is not None:
            raise ReadersOverlap(
                f"flow {flow.declared_name!r}: the record of its readers is gone: it was forgotten in between"
            )
        return
    if known.sets.get(wanted) != flow.name:
        _check_free(flow, known, wanted)
        raise ReadersOverlap(
            f"flow {flow.declared_name!r}: partitions {wanted} were given to another reader in between; start again"
        )
    _check_open(flow, known, wanted)


def unread(flow: CompiledFlow, known: Readers, infos: Mapping[str, TopicInfo]) -> list[str]:
    """The partitions that no reader has, as "topic[partition]"."""
    covered = union_of(known.sets)
    every = inputs.partitions_of(infos[topic] for topic in flow.input_topics)
    return [f"{topic}[{number}]" for topic, number in every if number not in covered]


def _notice_unread(env: Environment, infos: Infos) -> None:
    known = read_record(env.home, env.flow.declared_name).readers
    unread_partitions = unread(env.flow, known, infos) if known is not None else []
    if unread_partitions:
        rest = f" and {len(unread_partitions) - 5} more" if len(unread_partitions) > 5 else ""  # noqa: PLR2004 - as many as fit into a line
        env.emit(
            Notice(
                f"no reader of flow {env.flow.declared_name!r} has read {', '.join(unread_partitions[:5])}{rest} so far; readers have: {known}. Start "
                "one for them (8- means 8 and all above)"
            )
        )


def command_for(sets: Iterable[Partitions] = ()) -> str:
    """How the readers of a flow are changed, for error texts."""
    to = " ".join(f"--to {partitions}" for partitions in sets) or "--to SET ..."
    return (
        f"stop the readers concerned, run `sqe-chain readers MODULE:FLOW {to}` once, with all sets that there shall be, and start "
        "readers with these"
    )


def _check_free(flow: CompiledFlow, known: Readers, wanted: Partitions) -> None:
    for taken in sorted((*known.sets, *known.new), key=lambda readers: readers.ranges[0][0]):
        number = wanted.shared(taken)
        if number is not None:
            own = (
                f"partitions {wanted}"
                if flow.partitions is not None
                else "all of its partitions, as it is started now,"
            )
            raise ReadersOverlap(
                f"flow {flow.declared_name!r}: {own} cannot be read here: partition {number} belongs to the reader of {taken}, whose plans "
                f"hold what was read of it. Readers: {known}. Start it with its partitions, --partitions {taken}. Or, to "
                f"change the sets, {command_for()}"
            )
    if known.forgotten:
        raise ReadersOverlap(
            f"flow {flow.declared_name!r} is being forgotten; run sqe-chain flows forget again"
        )


def _check_open(flow: CompiledFlow, known: Readers, wanted: Partitions) -> None:
    if known.forgotten:
        raise ReadersOverlap(
            f"flow {flow.declared_name!r} is being forgotten; run sqe-chain flows forget again"
        )
    if wanted in known.old:
        kept = [partitions for partitions in known.sets if partitions not in known.old] + list(known.new)
        raise ReadersOverlap(
            f"flow {flow.declared_name!r}: partitions {wanted} are being given to other readers: finish that, {command_for(kept)}"
        )


def _check_not_one(env: Environment, flow: CompiledFlow, known: Readers, wanted: Partitions) -> None:
    """Check that the flow is not run as one, and never was; unless it has been given to readers since."""
    if flow.declared_name in known.retired:
        return
    record, _ = env.home.home(flow.declared_name)
    if record is not None and (record.number >= 0 or record.run_id):
        raise ReadersOverlap(
            f"flow {flow.declared_name!r}: partitions {wanted} cannot be read here: one reader has read the whole flow so far ({record}), and its "
            f"plans hold what was read. To go on with several readers, {command_for()}"
        )


def _check_state_partitions(flow: CompiledFlow, known: Readers) -> None:
    if known.state_partitions != flow.state_partitions:
        raise PartitionsMismatch(
            f"flow {flow.declared_name!r}: its readers were created with {known.state_partitions} state partitions, declared are now "
            f"{flow.state_partitions}; the number is permanent, and the same for all readers"
        )


def check_exist(flow: CompiledFlow, wanted: Partitions, infos: Mapping[str, TopicInfo]) -> None:
    """Check that each partition that is named exists in one of the topics. What is open at the end may come later.

    Raises:
        ConfigurationError: one does not.
    """
    most = max(infos[topic].partitions for topic in flow.input_topics)
    for first, last in wanted.ranges:
        if first >= most or (last is not None and last >= most):
            topics = ", ".join(f"{topic} has {infos[topic].partitions}" for topic in flow.input_topics)
            raise ConfigurationError(
                f"flow {flow.declared_name!r}: partitions {wanted}: there is no partition {first if first >= most else last}: {topics}; "
                f"{first}- means {first} and all above, also those that are added later"
            )


def _plain(sets: Sets) -> dict[str, str]:
    return {str(partitions): name for partitions, name in sets.items()}


def _parsed(sets: Mapping[str, str]) -> dict[Partitions, str]:
    return {Partitions.parse(text): name for text, name in sets.items()}
