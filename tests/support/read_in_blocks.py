"""What a writer publishes, and all that comes of it in one input partition after the other: for tests of the short ways."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple, cast

from google.protobuf.wrappers_pb2 import BytesValue, StringValue

from sqe_chain.chain import root_position
from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.envelope.message import wrap
from sqe_chain.envelope.template import OutputTemplate
from sqe_chain.errors import ChainError
from sqe_chain.flow import Flow
from sqe_chain.ports import Header, Message, Range
from sqe_chain.task.event_times import EventTimes, Frontier, Taking
from sqe_chain.task.exclusion import Exclusion
from sqe_chain.task.reading import Reading
from sqe_chain.task.results import ChangedStates, Job, Portion, Report, Sections
from sqe_chain.task.states import Claim, Transition
from tests.support.records import Record

TYPE = StringValue.DESCRIPTOR.full_name

EVERYTHING = Frontier(1 << 62, "", 0)


class Scripted(NamedTuple):
    """A message: who writes it, what is special about it, its word, time, and the watermark that it bears."""

    lane: int
    kind: str
    word: str
    at_ms: int
    watermark_ms: int


def records_of(script: Sequence[Scripted]) -> list[Record]:
    """What two writers with three lanes write, and a producer at the origin."""
    offsets, records = [0, 0, 0], list[Record]()
    for lane, kind, word, at_ms, watermark_ms in script:
        if kind == "root":
            value = wrap(StringValue(value=word), key=None, timestamp_ms=at_ms)
        else:
            offsets[lane] += kind != "replay"
            template = OutputTemplate(
                lane=0,
                topic=f"raw-{lane}",
                topic_id=bytes(16),
                partition=lane,
                output=f"up-{lane // 2}/words",
                watermark_ms=watermark_ms,
            )
            position = root_position(1, offsets[lane])
            value, _ = template.encode(
                b"", offsets[lane], 1, 0, 1, position, at_ms + 10_000 * (kind == "far"), b"k",
                BytesValue.DESCRIPTOR.full_name if kind == "other type" else TYPE,
                [StringValue(value=word).SerializeToString()], b"",
            )  # fmt: skip
        records.append(Record(len(records), value[:-1] if kind == "cut short" else value, at_ms=at_ms))
    return records


@dataclass
class Store:
    """What is stored; the header does not move."""

    header: Header
    rows: dict[bytes, bytes | None] = field(default_factory=dict)

    def read(self, *where: Any) -> tuple[Header, list[bytes | None], Header]:
        return self.header, [self.rows.get(row) for row in where[-1]], self.header


def read_blocks(
    flow: Flow,
    blocks: Sequence[Sequence[Any]],
    store: Any,
    marks: PartitionMarks | None = None,
    exclusions: tuple[Exclusion, ...] = (),
    times: EventTimes | None = None,
    **job: Any,
) -> list[Any]:
    """Everything that comes of blocks of one input partition.

    Args:
        flow: the flow.
        blocks: of the topic "words".
        store: where states are.
        marks: of the partition; new ones by default.
        exclusions: the records that the plan skips.
        times: of the partition.
        job: how they are read; without a shuffle by default.
    """
    job = {"in_place": True} | job
    reading = Reading(
        flow.compile(), Job(Transition("notes", Claim(1, "run"), 3, "plan-3"), 1, **job), lambda _: store
    )
    own = PartitionMarks("words", bytes(16), 0) if marks is None else marks
    portion = Portion(Range("words", bytes(16), 0, 0, 100), own, exclusions, times=times)
    return [*reading.read(portion, cast("Sequence[Sequence[Message]]", blocks)), *reading.finish()]


def cut(records: Sequence[Any], sizes: Sequence[int]) -> list[list[Any]]:
    """Blocks of these sizes, and one of the rest."""
    ends = [*accumulate(sizes), len(records)]
    return [list(records[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]


def outcome(
    flow: Flow,
    batches: Sequence[Sequence[Record]],
    cursor: bytes | None,
    sizes: int,
    exclusions: tuple[Exclusion, ...] = (),
    *,
    last: Flow | None = None,
) -> object:
    """Everything that comes of batches, which are read in blocks; all topics bring the same.

    Args:
        flow: the flow.
        batches: the records of each.
        cursor: how far an earlier attempt has written the last batch; None: there was none.
        sizes: of blocks.
        exclusions: the records that the plans skip.
        last: how the flow is declared when it reads the last batch; None: as before.
    """
    store = Store(Header(1, "run", 3, "plan-3"))
    topics = sorted(topic for source in flow.compile().sources for topic in source.topics)
    marks = {topic: PartitionMarks(topic, bytes(16), 0) for topic in topics}
    times = {topic: EventTimes(0) for topic in topics}
    results: list[str] = []
    for number, batch in enumerate(batches):
        if number == len(batches) - 1 and cursor is not None:
            store.header = Header(1, "run", 3, "plan-3", begun_id="plan-4", cursor=cursor)
        job = Job(
            Transition("notes", Claim(1, "run"), 3, "plan-3"),
            1,
            in_place=True,
            sections=Sections.of(Taking(frontier=EVERYTHING)),
        )
        own = last if last is not None and number == len(batches) - 1 else flow
        reading = Reading(own.compile(), job, lambda _: cast("Any", store))
        found: list[Any] = []
        blocks = [batch[begin : begin + sizes] for begin in range(0, len(batch), sizes)]
        try:
            for topic in topics:
                portion = Portion(
                    Range(topic, bytes(16), 0, 0, 100), marks[topic], exclusions, times=times[topic]
                )
                found += reading.read(portion, cast("Sequence[Sequence[Message]]", blocks))
            found += reading.finish()
        except ChainError as error:
            return [*results, type(error).__name__, str(error)]
        report: Report = found[-1]
        for end in report.ends:
            assert end.times is not None
            marks[end.topic], times[end.topic] = end.marks, end.times.settled()
        results += [repr(block) for block in found]
        for block in found:
            if isinstance(block, ChangedStates):
                store.rows.update(block.rows)
    return results
