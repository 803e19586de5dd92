"""Goal: what a run of inputs gives becomes the records that `Gatherer.gather` makes of one input after the other.

Random flows with several outputs and random blocks: raw or enveloped, of several lanes and lengths of chains, with replays.
Several runs in a row, for each begins where the one before ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import StringValue
from hypothesis import given, settings
from hypothesis import strategies as st

from sqe_chain.chain import read_lane, root_position, stored_epoch
from sqe_chain.envelope import EnvelopeHead, parse_head, run_template, wrap
from sqe_chain.envelope.block import Block, EnvelopeBlock, RawBlock
from sqe_chain.envelope.carrier import find_head, in_headers
from sqe_chain.envelope.template import OutputTemplate, WrittenLane, frames
from sqe_chain.errors import PoisonError, RepeatedPosition
from sqe_chain.flow import Flow
from sqe_chain.flow.context import TopicIdPartition, new_origin
from sqe_chain.flow.nodes import Carrier
from sqe_chain.flow.stage_kind import CONTEXT, ENVELOPE, NOTHING
from sqe_chain.ports import Headers, Output, TopicInfo
from sqe_chain.task import outputs as outputs_module
from sqe_chain.task.collector import Made
from sqe_chain.task.inputs import BlockInputs, Inputs
from sqe_chain.task.outputs import Gatherer
from tests.support.records import Record

TYPE = StringValue.DESCRIPTOR.full_name
NOW_MS = 1_700_000_000_000
TP = TopicIdPartition("in", b"i" * 16, 3)
KEYS = [None, b"", b"a", b"b", b"k" * 200]
PAYLOADS = [b"x", b"payload", b"long" * 100, b"", None]


def upstream(random: Random, count: int, links: int) -> list[tuple[bytes, int]]:
    """Envelopes of up to four lanes with `links` links each, some of them repeated, and their times."""
    found: list[tuple[bytes, int]] = []
    alike = random.random() < 0.6  # then all frames are of one size
    times = [0, 1, 20_000] if alike else [0, 1, 20_000, -NOW_MS, 1 - NOW_MS, 20_000 - NOW_MS]
    at = [random.randrange(1 << 40)] * 4
    for _ in range(count):
        lane = random.randrange(4)
        at[lane] = at[lane] - 1 if random.random() < 0.1 else at[lane] + random.randrange(1, 3)
        time_ms = NOW_MS + random.choice(times)
        root = root_position(1, at[lane])
        value = wrap(StringValue(value="x"), key=random.choice(["k", None]), timestamp_ms=time_ms)
        head = parse_head(value)
        for number in range(links):
            template = OutputTemplate(
                lane=head.lane,
                topic=f"t{lane}-{number}",
                topic_id=bytes(16),
                partition=1 + lane if alike else lane * 100,
                output="up/" + "o" * (1 if alike else 1 + lane % 2),
            )
            position = head.position or root
            of = random.choice([1, 2, 40])
            value, _ = template.encode(
                head.chain, at[lane], 1, of - 1, of, position, time_ms, b"k", TYPE, [b"x"], b""
            )
            head = parse_head(value)
        found.append((value, time_ms))
    return found


def block_of(random: Random, kind: str, count: int, begin: int) -> Block:
    """A block of ordinary records from an offset on."""
    epochs = [random.choice([3, 3, 0, None])] * count if random.random() < 0.8 else [3] * (count - 1) + [4]
    kinds: list[Headers | None] = [None, None, [], [("trace", b"1"), ("content-type", b"x")]]
    if random.random() < 0.3:
        kinds = [None]
    headers = [random.choice(kinds) for _ in range(count)]
    if kind == "raw":
        own = random.choice([[0, 5], [0, 5, -NOW_MS - 1, -NOW_MS]])
        times = [NOW_MS + random.choice(own) for _ in range(count)]
        values: list[bytes | None] = [b"x"] * count
    else:
        depths = {"origin": [0], "hop": [1], "far": [3], "mixed": [0, 1, 2, 3], "carried": [0, 2]}[kind]
        envelopes = upstream(random, count, random.choice(depths))
        if kind == "mixed":
            envelopes = [
                random.choice(one) for one in zip(envelopes, upstream(random, count, 0), strict=True)
            ]
        times, values = [time for _, time in envelopes], [value for value, _ in envelopes]
    if kind == "carried":
        for number, value in enumerate(values):
            values[number], added = in_headers(value or b"", source="up")
            headers[number] = [*(headers[number] or []), *added]
    records = [
        Record(begin + number, value, b"k", passed, time_ms, epoch, (TP.topic, TP.partition))
        for number, (value, time_ms, epoch, passed) in enumerate(
            zip(values, times, epochs, headers, strict=True)
        )
    ]
    block = RawBlock(records) if kind == "raw" else EnvelopeBlock(records, TYPE.encode())
    assert block.ordinary.all()
    return block


def gatherer_of(seed: int) -> Gatherer:
    """A gatherer of a flow with three outputs: their settings are random."""
    random = Random(seed)
    flow = Flow("f")
    stream = flow.source("in", StringValue)
    topics: dict[str, TopicInfo] = {}
    for number in range(3):
        topic = f"out{number}"
        kind = random.choice(["value", "value", "value", "value", "headers", "sqe"])
        headers, partitions = random.random() < 0.5, random.choice([1, 6])
        if kind == "sqe":
            stream.to_sqe(topic, partitions=partitions, process_id=7, headers=headers)
        else:
            carrier: Any = kind
            stream.to(topic, partitions=partitions, key=lambda _: "k", carrier=carrier, headers=headers)
        if random.random() < 0.5:
            compacted, largest = random.random() < 0.2, random.choice([1100, 1_048_588])
            topics[topic] = TopicInfo(topic, bytes(16), 6, compacted, largest)
    assert outputs_of(flow) == [*OUTPUTS]
    shard, watermark = random.choice([None, 2]), random.choice([0, NOW_MS])
    return Gatherer(flow.compile(), shard, topics, NOW_MS, "", {"out0": watermark})


OUTPUTS = range(1, 4)
"""Of the flow of `gatherer_of`, by which a gatherer calls them."""


def outputs_of(flow: Flow) -> list[int]:
    return [node.index for node in flow.compile().outputs]


def made_of(random: Random, outputs: Sequence[int], count: int) -> tuple[list[Made], list[int]]:
    """What a block's records give: none, one or several payloads, often with the same key."""
    keys: list[bytes | None] = random.choice([KEYS, KEYS[2:4], [b"%d" % n for n in range(500)]])
    payloads: list[bytes | None] = random.choice([PAYLOADS, PAYLOADS[:2]])
    types: list[str] = random.choice([["a.B"], ["a.B"], ["a.B", "c.D", ""]])
    used = random.choice([outputs, outputs[:1], outputs[:2]])
    most = random.choice([1, 1, 2, 3])
    made: list[Made] = []
    inputs: list[int] = []
    for index in range(count):
        own = types if random.random() < 0.02 else [random.choice(types)]
        for _ in range(random.randrange(most + 1)):
            one = random.choice(used), random.choice(keys), random.choice(own), random.choice(payloads)
            made.append(one)
            inputs.append(index)
    return made, inputs


def lane_of(stated: int) -> int:
    return read_lane(stated, *TP)


def one_by_one(
    gatherer: Gatherer, made: list[Made], inputs: list[int], block: Block
) -> tuple[list[Output], dict[int, str]]:
    """The records of the naive way, and what is wrong with the inputs that have none."""
    outputs: list[Output] = []
    refused: dict[int, str] = {}
    for index in dict.fromkeys(inputs):
        message = block.messages[index]
        epoch = stored_epoch(message.leader_epoch())
        head: EnvelopeHead | None = None
        if isinstance(block, EnvelopeBlock):
            head = find_head(message.value(), message.headers())
        position = (head.position if head else b"") or root_position(epoch, message.offset())
        lane = lane_of(head.lane if head else 0)
        origin = new_origin((TP, message.offset(), epoch, lane, position, head, message, None, -1))
        own = [one for one, input_ in zip(made, inputs, strict=True) if input_ == index]
        try:
            gatherer.gather(own, [0] * len(own), Inputs([origin]), outputs)
        except PoisonError as error:
            refused[index] = repr(error)
    return outputs, refused


def remembered(gatherer: Gatherer) -> Any:
    """What the next record of each lane and partition depends on."""
    positions = {
        (index, number, partition): position
        for index, target in gatherer._targets.items()
        for number, lane in target.lanes.items()
        for partition, position in lane.previous.items()
        if position
    }
    envelopes = {
        (index, number): lane.offset
        for index, target in gatherer._targets.items()
        for number, lane in target.lanes.items()
        if lane.offset >= 0
    }
    return positions, envelopes


@pytest.mark.parametrize("worthwhile", [1, 20])
@pytest.mark.parametrize("kind", ["raw", "origin", "hop", "far", "mixed", "carried"])
@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 1 << 32))
def test_a_run_gives_the_records_of_its_inputs(kind: str, worthwhile: int, seed: int) -> None:
    random = Random(seed)
    run, naive = gatherer_of(seed), gatherer_of(seed)
    begin = random.choice([0, 1 << 40])
    furthest: dict[Any, bytes] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outputs_module, "WORTHWHILE", worthwhile)
        patch.setattr(run_template, "FEWEST", worthwhile)
        for _ in range(3):
            block = block_of(random, kind, random.choice([1, 5, 40]), begin)
            made, inputs = made_of(random, OUTPUTS, len(block.messages))
            begin += len(block.messages)
            given = list(made)
            envelopes: list[Any] = [("kept", 0, None, None, None, 0)]
            expected, refused = one_by_one(naive, made, inputs, block)
            found, failed = list(envelopes), dict[int, str]()

            def note(
                row: int, error: Exception, failed: dict[int, str] = failed, inputs: list[int] = inputs
            ) -> bool:
                failed[inputs[row]] = repr(error)
                return False

            assert not run.gather(made, inputs, BlockInputs(TP, block, lane_of), found, note)
            assert (found, failed) == (envelopes + expected, refused)
            assert made == given
            assert remembered(run) == remembered(naive)
            positions, _ = remembered(run)
            assert all(position >= furthest.get(place, b"") for place, position in positions.items())
            furthest |= positions


def test_lanes_whose_chains_differ_in_size_are_framed_together() -> None:
    """Partition 0 takes no bytes, so the lanes of nearly every republisher do: one by one they cost half as much again."""
    upstream = [
        OutputTemplate(lane=0, topic="t", topic_id=bytes(16), partition=root, output="up/o")
        for root in range(3)
    ]
    records = [
        Record(
            number,
            upstream[number % 3].encode(
                b"", number, 1, 0, 1, root_position(1, number), NOW_MS, b"k", TYPE, [b"x"]
            )[0],
            b"k",
            None,
            NOW_MS,
            3,
            (TP.topic, TP.partition),
        )
        for number in range(600)
    ]
    block = EnvelopeBlock(records, TYPE.encode())
    inputs, at = BlockInputs(TP, block, lane_of), range(600)
    places, lane_at = inputs.lanes(at)
    lanes = [
        WrittenLane(
            OutputTemplate(lane=stated, topic=TP.topic, topic_id=TP.topic_id, partition=3, output="f/o")
        )
        for _, stated in places
    ]
    slow = [WrittenLane(lane.template) for lane in lanes]
    framed = run_template.run_frames(run_template.Run(block, at, lanes, lane_at, [0] * 600))
    each = ((slow[lane], source, 0, 1, 0) for lane, source in zip(lane_at, inputs.sources(at), strict=True))
    assert framed == frames(each)
    assert [lane.previous for lane in lanes] == [lane.previous for lane in slow]


def test_one_run_holds_chains_of_one_size_and_positions_of_several() -> None:
    """Two short links take as many bytes as a long one; their positions do not."""
    values: list[bytes] = []
    for number in range(60):
        value, time_ms = wrap(StringValue(value="x"), key="k", timestamp_ms=NOW_MS), NOW_MS
        head = parse_head(value)
        for topic, output in [("t", "up/o"), ("t", "up/o")] if number % 2 else [("t", "up/" + "o" * 54)]:
            template = OutputTemplate(
                lane=head.lane, topic=topic, topic_id=bytes(16), partition=0, output=output
            )
            position = head.position or root_position(1, number)
            value, _ = template.encode(head.chain, number, 1, 0, 1, position, time_ms, b"k", TYPE, [b"x"])
            head = parse_head(value)
        values.append(value)
    assert len({len(parse_head(value).chain) for value in values}) == 1
    records = [
        Record(number, value, b"k", None, NOW_MS, 3, (TP.topic, TP.partition))
        for number, value in enumerate(values)
    ]
    block = EnvelopeBlock(records, TYPE.encode())
    flow = Flow("f")
    flow.source("in", StringValue).to("out", partitions=1)
    run, naive = (Gatherer(flow.compile(), None, {}, NOW_MS) for _ in range(2))
    (index,) = outputs_of(flow)
    made: list[Made] = [(index, b"k", TYPE, b"x")] * 60
    outputs: list[Output] = []
    run.gather(made, range(60), BlockInputs(TP, block, lane_of), outputs)
    assert (outputs, {}) == one_by_one(naive, made, list(range(60)), block)


def test_a_run_of_several_types_for_one_key_is_refused_like_its_input() -> None:
    flow = Flow("f")
    flow.source("in", StringValue).to("out", partitions=1)
    gatherer = Gatherer(flow.compile(), None, {}, NOW_MS)
    (index,) = outputs_of(flow)
    block = block_of(Random(1), "raw", 60, 0)
    made: list[Made] = [*[(index, b"k", "a.B", b"x")] * 60, (index, b"k", "c.D", b"x")]
    records: list[Output] = []
    with pytest.raises(PoisonError, match=r"two types for key b'k' from in\[3\]@59: a.B and c.D"):
        gatherer.gather(made, [*range(60), 59], BlockInputs(TP, block, lane_of), records)
    assert not records
    assert remembered(gatherer) == ({}, {})


@pytest.mark.parametrize("carrier", ["value", "headers"])
@pytest.mark.parametrize("why", ["on trial", "refused"])
def test_an_input_that_is_taken_back_leaves_no_position_behind(why: str, carrier: Carrier) -> None:
    """The next envelope would name it as the one before, and readers would stop because it is missing."""
    flow = Flow("f")
    flow.source("in", StringValue).to("out", partitions=1, carrier=carrier)
    refuses = {"out": TopicInfo("out", bytes(16), 1, max_message_bytes=2_000)}
    gatherer, naive = (Gatherer(flow.compile(), None, refuses, NOW_MS) for _ in range(2))
    (index,) = outputs_of(flow)
    block = block_of(Random(1), "raw", 3, 0)
    records: list[Output] = []
    expected: list[Output] = []

    def gather(
        one: Gatherer, number: int, made: list[Made], into: list[Output], *, keep: bool = True
    ) -> None:
        position, message = root_position(0, number), block.messages[number]
        origin = new_origin((TP, number, 0, lane_of(0), position, None, message, None, -1))
        one.gather(made, [0] * len(made), Inputs([origin]), into, keep=keep)

    ordinary: Made = (index, b"k", "a.B", b"x")
    for one, into in ((gatherer, records), (naive, expected)):
        gather(one, 0, [ordinary], into)
    if why == "on trial":
        gather(gatherer, 1, [ordinary, (index, b"l", "a.B", b"y")], records, keep=False)
    else:
        with pytest.raises(PoisonError):
            gather(gatherer, 1, [ordinary, (index, b"l", "a.B", b"y" * 3_000)], records)
    for one, into in ((gatherer, records), (naive, expected)):
        gather(one, 2, [ordinary], into)
    assert records == expected
    assert remembered(gatherer) == remembered(naive)


@pytest.mark.parametrize("carrier", ["value", "headers"])
def test_after_a_replay_an_envelope_names_the_highest_position_before_it(carrier: Carrier) -> None:
    """If it named the replay that was passed on, readers would not notice that what came between is missing."""
    flow = Flow("f")
    flow.source("in", StringValue).to("out", partitions=1, carrier=carrier)
    gatherer = Gatherer(flow.compile(), None, {}, NOW_MS)
    (index,) = outputs_of(flow)
    block = block_of(Random(1), "raw", 3, 0)
    records: list[Output] = []
    for offset, number in enumerate((0, 1, 0, 2)):
        message, position = block.messages[number], root_position(0, number)
        origin = new_origin((TP, offset, 0, lane_of(0), position, None, message, None, -1))
        gatherer.gather([(index, b"k", "a.B", b"x")], [0], Inputs([origin]), records)
    positions = [root_position(0, number) + bytes(4) for number in (0, 1)]
    heads = [find_head(value, headers) for _, _, _, value, headers, _ in records]
    assert [head.previous for head in heads] == [b"", positions[0], positions[1], positions[1]]


@pytest.mark.parametrize("kind", ["value", "headers", "sqe"])
@pytest.mark.parametrize("again", ["together", "one by one"])
@pytest.mark.parametrize("before", ["together", "one by one"])
def test_what_an_input_gives_is_gathered_once(before: str, again: str, kind: str) -> None:
    """What came later would have the same position, and readers would take it for a replay."""
    flow = Flow("f")
    stream = flow.source("in", StringValue, raw=True)
    for topic in ("out", "other"):
        if kind == "sqe":
            stream.to_sqe(topic, partitions=4, process_id=7)
        else:
            carrier: Any = kind
            stream.to(topic, partitions=4, carrier=carrier)
    gatherer = Gatherer(flow.compile(), None, {}, NOW_MS)
    first, second = outputs_of(flow)
    block = block_of(Random(1), "raw", 3, 0)

    def gather(way: str, index: int, number: int, key: bytes) -> list[Output]:
        outputs: list[Output] = []
        made: list[Made] = [(index, key, "a.B", b"x")]
        if way == "together":
            gatherer.gather(made, [number], BlockInputs(TP, block, lane_of), outputs)
        else:
            one_by_one(gatherer, made, [number], block)
        return outputs

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outputs_module, "WORTHWHILE", 1)
        gather(before, first, 1, b"k")
        gather(again, second, 1, b"k")  # another output has another lane
        known = remembered(gatherer)
        for number in (1, 0):
            with pytest.raises(
                RepeatedPosition, match=rf"output 'f/out': in\[3\]@{number} gave more.*offset 1"
            ) as error:
                gather(again, first, number, b"l")
            assert (error.value.topic, error.value.partition, error.value.offset) == ("in", 3, number)
        assert remembered(gatherer) == known
        gather(again, first, 2, b"l")


@pytest.mark.parametrize("kind", ["raw", "origin", "hop", "far", "mixed", "carried"])
def test_a_shuffle_carries_of_a_block_what_it_carries_of_its_inputs(kind: str) -> None:
    for seed in range(30):
        random = Random(seed)
        block = block_of(random, kind, random.choice([1, 20, 60]), random.choice([0, 1 << 40]))
        orders_ms = {number: random.randrange(9) for number in range(len(block.messages)) if seed % 2}
        numbers = sorted(random.choices(range(len(block.messages)), k=40))
        inputs = BlockInputs(TP, block, lane_of, orders_ms)
        for need in (NOTHING, ENVELOPE, CONTEXT):
            carried = inputs.carried(numbers, need)
            assert carried == [inputs.origin(number).pack(need) for number in numbers]
            assert len(set(map(id, carried))) <= len(set(numbers)), "one object for what comes of one input"
