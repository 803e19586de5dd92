"""How far a flow without stages has read, by its group's commits: it keeps its place nowhere else.

A flow that gets its first stage, or its first file, reads it here again: from then on its plans keep it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
from typing import Final

from sqe_chain.chain import MAX_EPOCH, MAX_OFFSET, Link
from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.envelope.revisions import FIRST, MAX_REVISION, is_of
from sqe_chain.errors import (
    ConfigurationError,
    NoCommittedOffset,
    PartitionsMismatch,
    PlanMismatch,
    TooManyLanes,
)
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.nodes import OutputNode
from sqe_chain.plans import inputs, same_inputs
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.events import Notice
from sqe_chain.plans.failed_logs import failed_logs
from sqe_chain.plans.inputs import METADATA_LENGTH, decode_marks, encode_marks, parse_metadata
from sqe_chain.plans.layout import (
    TypeLayout,
    behind_stages,
    check_read_type,
    read_type,
)
from sqe_chain.plans.own_revisions import declared_revision
from sqe_chain.ports import Bounds, Commit, Range, TopicInfo, TopicPartition
from sqe_chain.protocol.begun import BegunBatch, last_link
from sqe_chain.task.reading import check_read_id

Infos = Mapping[str, TopicInfo]
Recreated = dict[tuple[str, str], dict[TopicPartition, int]]
"""Topics created again, with the id that was read: partition -> up to where the old topic was read."""


_LOOK_BACK: Final = (100, *repeat(1_000, 100))
"""Offsets at the end of an output's partition among which a flow's last record is looked for, part after part."""


@dataclass(slots=True)
class InputProgress:
    """How far a flow without stages has read one partition.

    Attributes:
        offset: next to read.
        topic_id: of the topic.
        epoch: leader epoch plus one of the last record read; 0 unknown.
        marks: what was seen so far, or since a run had to enter the partition in the middle of its lanes.
        run: id of the run that commits it, so that no two runs make the same commit.
        published: up to where outputs may have been published before the flow was rewound, or had no commit.
        again: up to where it had read before it was rewound.
        begun: the batch that a run has begun there, and perhaps published in part; None: there is none.
        seen: what had been seen before the flow was rewound, until it has read as far again; None: it has, or there are no replays.
        failed: inputs skipped so far for which there is a dead-letter record.
        skipped: offsets of the newest inputs skipped with `poison="skip"`.
        unsure: the marks did not fit into the commit, so replays are not known.
        revision: the revision of the flow's outputs that was taken up there, and the digest of its record.
        began: where it began to read, if it skipped what was there (`--start latest`); 0: it did not, or an older version began.
    """

    offset: int
    topic_id: bytes
    epoch: int
    marks: PartitionMarks
    run: str = ""
    published: int = 0
    again: int = 0
    begun: BegunBatch | None = None
    seen: PartitionMarks | None = None
    failed: int = 0
    skipped: tuple[int, ...] = ()
    unsure: bool = False
    revision: tuple[int, str] = (FIRST, "")
    began: int = 0
    _encoded: tuple[PartitionMarks, str] | None = field(default=None, repr=False, compare=False)

    @property
    def encoded_marks(self) -> str:
        """The marks as a text. A batch commits twice, and they are the same in the first commit as in the last one of the batch before."""
        if self._encoded is None or self._encoded[0] is not self.marks:
            self._encoded = self.marks, encode_marks(self.marks)
        return self._encoded[1]

    @property
    def repeats(self) -> bool:
        """Whether the next inputs may have been read before: what was skipped of them stays skipped."""
        return self.offset < self.published or self.unsure


@dataclass(frozen=True, slots=True)
class EnteredInputs:
    """Partitions that a run takes up.

    Attributes:
        inputs: where each of them is read from.
        fresh: those without a commit.
        recreated: topics without envelopes that were created again, and are read from their beginning.
        retyped: partitions that were read to their ends as another type.
    """

    inputs: dict[TopicPartition, InputProgress] = field(default_factory=dict)
    fresh: list[TopicPartition] = field(default_factory=list)
    recreated: Recreated = field(default_factory=dict)
    retyped: list[TopicPartition] = field(default_factory=list)


def enter(
    env: Environment, infos: Infos, tps: Iterable[TopicPartition], commits: Mapping[TopicPartition, Commit]
) -> EnteredInputs:
    """Where partitions are read from: where their commits are; without one, where a new partition or flow begins.

    Raises:
        ServiceStopped: an input, or the declared outputs, are not what they were at the commit.
        NoCommittedOffset: it is not known where to begin.
    """
    flow, entered = env.flow, EnteredInputs()
    # Ask for bounds after the commits, because another run may commit in between. With older bounds its commit
    # would lie beyond the end, as after a truncation.
    bounds = env.log.bounds(tps)
    starts = _starts(env, infos, {tp: bound for tp, bound in bounds.items() if tp not in commits}, commits)
    for tp, bound in bounds.items():
        info, commit = infos[tp[0]], commits.get(tp)
        known_id = str(parse_metadata(commit).get("topic_id", info.topic_id.hex()))
        if commit is not None and not same_inputs.is_new_root(flow, tp[0], known_id, info):
            entered.inputs[tp] = _progress_at(flow, tp, commit, known_id, info, bound)
            if _is_retyped(flow, tp, commit, bound):
                entered.retyped.append(tp)
            continue
        if commit is not None:
            entered.recreated.setdefault((tp[0], known_id), {})[tp] = commit.offset
        offset = starts.get(tp, 0)
        marks = inputs.new_marks(info, tp[1], entered_in_middle=offset > 0)
        # Perhaps it is no first start, and Kafka has forgotten the commit.
        began = offset if offset > bound.begin else 0
        progress = InputProgress(offset, info.topic_id, 0, marks, published=bound.stable_end, began=began)
        entered.inputs[tp] = progress
        entered.fresh.append(tp)
    return entered


def check_no_plans(flow: CompiledFlow, commits: Mapping[TopicPartition, Commit]) -> None:
    """Check before a run without stages joins the group that no flow with stages commits there: the broker would refuse that.

    Raises:
        PlanMismatch: one does.
    """
    for tp, commit in commits.items():
        meta = parse_metadata(commit)
        if "plan" in meta:
            raise PlanMismatch(
                f"flow {flow.name!r} is declared without stages, and plan {meta['plan']} has committed for its group. Outputs would come on "
                "other lanes now, and readers would count again what they have. Expected stages, as before. Declare them, or give the "
                "flow without them another name"
            ).at(*tp)


def tell_entered(env: Environment, entered: EnteredInputs, infos: Infos) -> None:
    """Report where partitions without a commit begin, and which topics were created again."""
    group = env.flow.declared_name
    for (topic, known_id), read_to in entered.recreated.items():
        env.emit(Notice(same_inputs.recreation_text(topic, known_id, infos[topic], read_to)))
    for topic in sorted({tp[0] for tp in entered.fresh} - {topic for topic, _ in entered.recreated}):
        begun = ", ".join(
            f"[{at}] from {entered.inputs[name, at].offset}" for name, at in entered.fresh if name == topic
        )
        env.emit(
            Notice(
                f"input {topic!r} ({infos[topic].topic_id.hex()}): group {group!r} has no commit for {begun}, and begins "
                "there: a first start, new partitions, Kafka has forgotten it, or the topic was deleted and created again, for Kafka deletes "
                "commits with their topic"
            )
        )


def _starts(
    env: Environment,
    infos: Infos,
    unknown: Mapping[TopicPartition, Bounds],
    commits: Mapping[TopicPartition, Commit],
) -> dict[TopicPartition, int]:
    """Where partitions without a commit begin."""
    start, known = env.settings.start, {topic for topic, _ in commits}
    # A topic with commits for some partitions alone has grown: its other partitions are read from 0.
    grown = {tp: bound.begin for tp, bound in unknown.items() if tp[0] in known}
    for (topic, partition), begin in grown.items():
        if begin > 0 and start != "earliest":
            raise NoCommittedOffset(
                f"group {env.flow.declared_name!r} has no commit for {topic}[{partition}], whose log begins at {begin}: either "
                "records of a new partition are gone before they were read, or Kafka has forgotten the commit "
                "(offsets.retention.minutes). Give --start earliest to go on with what is there: receivers ignore what they have"
            ).at(topic, partition)
    new = {tp: bound for tp, bound in unknown.items() if tp not in grown}
    if start == "latest":
        _check_never_published(env, infos, {topic for topic, _ in new})
    return grown | {tp: offset for tp, (offset, _) in inputs.first_offsets(env.flow, new, start).items()}


def _check_never_published(env: Environment, infos: Infos, topics: Iterable[str]) -> None:
    """Check that the last records of the outputs were not made of these topics, which the flow seems never to have read.

    Raises:
        NoCommittedOffset: one was.
    """
    ids = {topic: infos[topic].topic_id for topic in topics}
    links: list[Link] = []
    with suppress(ConfigurationError):  # who only publishes may have no right to read
        links += _last_published(env, infos, env.flow.outputs if ids else ())
    for link in links:
        if ids.get(link.topic) == link.topic_id:
            raise NoCommittedOffset(
                f"group {env.flow.declared_name!r} has no commit for {link.topic!r}, but output {link.output!r} holds what the flow "
                "has made of it: it has run before, and Kafka has forgotten its commits (offsets.retention.minutes). With "
                "--start latest all that it has not read would be skipped. Give --start earliest: receivers ignore what they "
                "have; or set the group's offsets with Kafka's tools"
            ).at(link.topic, link.partition)


def take_over(env: Environment, infos: Infos) -> dict[TopicPartition, Commit]:
    """The commits of a flow that had no stages until now. No run of it that is still alive commits after this."""
    group = env.flow.declared_name
    member = env.log.join(group, env.flow.input_topics)
    try:
        tps = inputs.input_partitions(env.flow, infos)
        commits = env.retry.call("read the group's commits", partial(member.committed, tps))
        for tp, commit in commits.items():
            # The same offset under another run's id, which a run that sleeps now finds when it wakes.
            metadata = json.dumps(parse_metadata(commit) | {"run": env.new_run_id()})
            if len(metadata) <= METADATA_LENGTH:
                commits[tp] = Commit(commit.offset, metadata)
        env.retry.call("commit", partial(member.commit, commits))
    finally:
        member.leave()
    return commits


def _check_released(env: Environment, entered: EnteredInputs) -> None:
    """Check that no release by a flow without stages was interrupted: one with stages cannot finish it.

    Raises:
        PlanMismatch: one was.
    """
    flow = env.flow
    if not (flow.dead_letters or any(known.failed for known in entered.inputs.values())):
        return
    for known in failed_logs(env):
        for decision in known.releasing.values():
            raise PlanMismatch(
                f"flow {flow.name!r}: the release {known.place_of(decision)} was interrupted when the flow had no stages. Expected the old "
                "declaration: run `sqe-chain failed release` with it, then the new one"
            ).at(known.topic, known.partition)


def check_first_stage(
    env: Environment, infos: Infos, entered: EnteredInputs, commits: Mapping[TopicPartition, Commit]
) -> None:
    """Check that a flow knows what it has read, and that nothing is to be published again by outputs that now come after a stage.

    Raises:
        PlanMismatch: a run published a batch, and was killed before its commit, or the flow was rewound. After a stage its
            outputs have other lanes. Or a release of dead-letter records was interrupted, or another revision is declared.
        NoCommittedOffset: the marks of a partition did not fit into its commit.
    """
    flow, declared = env.flow, declared_revision(env.flow)
    for tp in entered.inputs.keys() - {*entered.fresh}:
        meta = parse_metadata(commits[tp])
        known, _ = _revision_in(meta)
        if known != declared:
            raise PlanMismatch(
                f"flow {flow.name!r} gets its first stage, and its outputs are declared with revision {declared}. Without stages they had {known}. "
                f"Expected the same: what it had published would be replaced, and not published again. Declare revision={known}"
            ).at(*tp)
        if "begun" in meta:
            raise PlanMismatch(
                f"flow {flow.name!r}: a run without stages has begun a batch of {tp[0]}[{tp[1]}] at offset {commits[tp].offset}, and was killed "
                "in the middle of it. Expected the old declaration: run it with --once, then the new one"
            ).at(*tp, commits[tp].offset)
        if "outputs" in meta and "marks" not in meta:
            raise NoCommittedOffset(
                f"flow {flow.name!r}: the marks of {tp[0]}[{tp[1]}] did not fit into its commit: there are too many lanes. A stage would "
                "count again what comes again. Expected a flow of another name for the stage, which reads from the beginning"
            ).at(*tp)
    _check_released(env, entered)
    behind = [node for node in flow.outputs if behind_stages(flow, node.name)]
    published = {tp: read.published for tp, read in entered.inputs.items() if behind}
    published |= dict.fromkeys(entered.fresh, 0)
    for link in _last_published(env, infos, behind):
        tp = link.topic, link.partition
        if tp in published and entered.inputs[tp].topic_id == link.topic_id:
            published[tp] = max(published[tp], link.offset + 1)
    for (topic, partition), until in published.items():
        offset = entered.inputs[topic, partition].offset
        if until > offset:
            raise PlanMismatch(
                f"flow {flow.name!r} may have published outputs of {topic}[{partition}] up to offset {until}, and its group's commit is {offset}: "
                f"these are to be published again. Behind a stage {', '.join(node.name for node in behind)} would come on other lanes, and "
                "readers would count it twice. Expected the old declaration: run it with --once, then the new one"
            ).at(topic, partition, offset)


def _last_published(env: Environment, infos: Infos, outputs: Iterable[OutputNode]) -> Iterator[Link]:
    """The flow's own link of its last record in each partition of outputs, where others may publish, too."""
    names = {f"{env.flow.name}/{node.name}": node.topic for node in outputs}
    for tp, bound in env.log.bounds(
        inputs.partitions_of(infos[topic] for topic in {*names.values()})
    ).items():
        end = bound.stable_end
        for size in _LOOK_BACK:
            begin = max(bound.begin, end - size)
            part = Range(tp[0], infos[tp[0]].topic_id, tp[1], begin, end)
            links = (last_link(message) for block in env.log.read_all([part]) for message in block)
            own = [link for link in links if link is not None and is_of(link.output, names)][-1:]
            yield from own
            if own or begin == bound.begin:
                break
            end = begin


def _progress_at(
    flow: CompiledFlow, tp: TopicPartition, commit: Commit, known_id: str, info: TopicInfo, bound: Bounds
) -> InputProgress:
    """The progress that a commit describes.

    Raises:
        ServiceStopped: the input, or the declared outputs, are not what they were at the commit.
    """
    meta = parse_metadata(commit)
    _check_outputs(flow, meta)
    check_read_id(tp[0], bytes.fromhex(known_id), info.topic_id)
    inputs.check_bounds(tp, commit.offset, bound)
    marks, source = decode_marks(meta.get("marks")), flow.source_of[tp[0]]
    unsure = marks is None and commit.offset > 0 and source is not None and not source.raw
    if marks is None:  # they did not fit: what comes next cannot be compared with what came before
        marks = inputs.new_marks(info, tp[1], entered_in_middle=True)
    epoch = int(str(meta.get("leader_epoch", 0)))
    published = int(str(meta.get("published", 0)))
    begun = BegunBatch.from_json(meta["begun"]) if isinstance(meta.get("begun"), dict) else None  # type: ignore[arg-type]
    again = int(str(meta.get("again", 0)))
    seen, failed = decode_marks(meta.get("seen")), int(str(meta.get("failed", 0)))
    skipped = tuple(meta["skipped"]) if isinstance(meta.get("skipped"), list) else ()  # type: ignore[arg-type]
    return InputProgress(
        commit.offset,
        info.topic_id,
        epoch,
        marks,
        "",
        published,
        again,
        begun,
        seen,
        failed,
        skipped,
        unsure or "unsure" in meta,
        _revision_in(meta),
        int(str(meta.get("began", 0))),
    )


def _revision_in(meta: Mapping[str, object]) -> tuple[int, str]:
    known = meta.get("revision")
    return (int(known[0]), str(known[1])) if isinstance(known, list) else (FIRST, "")


def _is_retyped(flow: CompiledFlow, tp: TopicPartition, commit: Commit, bound: Bounds) -> bool:
    """Whether a partition was read to its end as another type. If there is a rest, it has to be readable as both.

    Raises:
        ChangedType: it is not.
    """
    known = parse_metadata(commit).get("type")
    if not isinstance(
        known, list
    ):  # it did not fit, payloads name their types, or an older release committed
        return False
    kind, name, shape = known
    was = TypeLayout(kind, name, shape)
    if commit.offset < bound.stable_end:
        check_read_type(flow, tp[0], was)
        return False
    return was != read_type(flow, tp[0])


def _check_outputs(flow: CompiledFlow, meta: dict[str, object]) -> None:
    known = meta.get("outputs")
    if not isinstance(known, dict):
        return
    for node in flow.outputs:
        stored = known.get(node.name)
        if stored is not None and stored != [node.topic, node.partitions]:
            raise PartitionsMismatch(
                f"{node.declared_at}: output {node.name!r} was created with {stored[1]} partitions of {stored[0]!r}, declared are "
                f"now {node.partitions} of {node.topic!r}: replays would take another lane; give it another name"
            ).at(node.topic)


def _metadata(flow: CompiledFlow, topic_id: bytes, leader_epoch: int) -> dict[str, object]:
    """What a commit keeps but for marks: the topic's id, the last leader epoch, the partitions of each output."""
    outputs = {node.name: [node.topic, node.partitions] for node in flow.outputs}
    return {"topic_id": topic_id.hex(), "leader_epoch": leader_epoch, "outputs": outputs}


def commit_of(flow: CompiledFlow, progress: InputProgress) -> Commit:
    """The commit of a progress, with marks where they fit; without them the next run enters in the middle.

    What codecs have noted comes along where it fits beside them, and then the type.

    Raises:
        TooManyLanes: they do not fit, and the flow cannot do without them.
    """
    known = _metadata(flow, progress.topic_id, progress.epoch) | _moved(progress)
    marked = known | {"marks": progress.encoded_marks}
    noted = marked | ({"notes": dict(flow.notes)} if flow.notes else {})
    for more in (noted | _type_read(flow, progress.marks.topic), noted):
        if len(text := json.dumps(more)) <= METADATA_LENGTH:
            return Commit(progress.offset, text)
    metadata = json.dumps(marked)
    if len(metadata) > METADATA_LENGTH:  # what can be done without goes first
        if progress.begun is not None and progress.begun.ends is not None:
            return commit_of(flow, replace(progress, begun=replace(progress.begun, ends=None)))
        if progress.skipped:
            return commit_of(
                flow, replace(progress, skipped=progress.skipped[len(progress.skipped) // 2 + 1 :])
            )
        if progress.seen is not None:
            return commit_of(flow, replace(progress, seen=None))
    if len(metadata) > METADATA_LENGTH and flow.writes_sqe:
        raise TooManyLanes(
            f"flow {flow.name!r}: the marks of a partition of {progress.marks.topic!r} take {len(metadata)} characters of a "
            f"commit's metadata with all else. Expected at most {METADATA_LENGTH}: without marks replays would be written again, "
            "which readers of SQE's record keys cannot notice. Give the flow a stage: then a store keeps its marks"
        ).at(progress.marks.topic)
    return Commit(progress.offset, metadata if len(metadata) <= METADATA_LENGTH else json.dumps(known))


def noted_in(commits: Iterable[Commit]) -> dict[str, str]:
    """What codecs had noted when the commits of a flow's group were made."""
    notes = dict[str, str]()
    for commit in commits:
        known = parse_metadata(commit).get("notes")
        if isinstance(known, dict):
            notes |= {str(name): str(note) for name, note in known.items()}
    return notes


def _type_read(flow: CompiledFlow, topic: str) -> dict[str, object]:
    """The type as which a topic is read, to notice one that would read the rest of it wrongly."""
    own = read_type(flow, topic)
    return {"type": [own.kind, own.name, own.shape]} if own is not None else {}


def _moved(progress: InputProgress) -> dict[str, object]:
    """Who commits, and what only some commits keep: of a batch that was begun, of a rewind, of what was skipped."""
    offset = progress.offset
    given: dict[str, object] = {
        "run": progress.run,
        "published": progress.published if progress.published > offset else 0,
        "again": progress.again if progress.again > offset else 0,
        "begun": progress.begun and progress.begun.to_json(),
        "failed": progress.failed,
        "skipped": list(progress.skipped),
        "seen": progress.seen and encode_marks(progress.seen),
        "unsure": progress.unsure,
        "revision": progress.revision[0] != FIRST and list(progress.revision),
        "began": progress.began,
    }
    return {name: value for name, value in given.items() if value}


def check_metadata(flow: CompiledFlow) -> None:
    """Check before anything is published that it can be committed.

    Raises:
        ConfigurationError: the names of the outputs are too long.
    """
    length = len(
        json.dumps(
            _metadata(flow, bytes(16), MAX_EPOCH)
            | {
                "run": " " * 16,
                "published": MAX_OFFSET,
                "revision": [MAX_REVISION, " " * 16],
                "began": MAX_OFFSET,
            }
            | {
                "begun": BegunBatch(
                    MAX_OFFSET, MAX_OFFSET, dict.fromkeys((node.name for node in flow.outputs), MAX_OFFSET)
                ).to_json()
            }
        )
    )
    if length > METADATA_LENGTH:
        raise ConfigurationError(
            f"flow {flow.name!r} has {len(flow.outputs)} outputs, whose names take {length} characters of a commit's "
            f"metadata; Kafka takes {METADATA_LENGTH}. Shorten the names, or split the flow"
        )
