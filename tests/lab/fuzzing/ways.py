"""Envelopes in all ways in which they are read, and the one answer that they have to give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, Final, NoReturn

from google.protobuf.message import DecodeError
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain._proto.envelope_pb2 import Envelope as EnvelopeMessage
from sqe_chain.chain import read_lane
from sqe_chain.envelope.carrier import find_head, in_headers
from sqe_chain.envelope.columns import Columns
from sqe_chain.envelope.head import EnvelopeHead, parse_head
from sqe_chain.envelope.marks import MarksRecord, PartitionMarks
from sqe_chain.envelope.message import payloads_of, read
from sqe_chain.envelope.replay_filter import ReplayFilter
from sqe_chain.errors import EnvelopeError, PoisonError, ServiceStopped
from sqe_chain.flow import Flow
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.context import TopicIdPartition
from sqe_chain.task import records as taking
from sqe_chain.task.records import Deciding, Records
from tests.lab.fuzzing.receiver import NEW, REPLAY, Receiver
from tests.lab.fuzzing.records import Record, from_bytes
from tests.lab.fuzzing.reference import Content, Verdict, judge_carried, shard_of

TYPE: Final = StringValue.DESCRIPTOR.full_name
TOPIC_ID: Final = b"w" * 16
NEVER: Final = 1 << 30
BLOCKS: Final = (64, 7, 1, 23)
"""Records of a block, by setting."""
COMPACTED, DECODER = 4, 8
"""Bits of the setting: records may be missing; the source has a decoder of its own, which takes payloads of any type."""


class Difference(AssertionError):
    """A way of reading gives another answer than it has to."""


def _flows() -> tuple[CompiledFlow, CompiledFlow]:
    flow, other = Flow("typed"), Flow("decoded")
    typed = flow.source("words", StringValue)
    decoded = other.source("words", lambda payload: payload)
    typed.aggregate("all", key=lambda word: word.value, state=StringValue, fold=lambda _, __: None)
    decoded.aggregate("all", key=lambda word: word, state=StringValue, fold=lambda _, __: None)
    return flow.compile(), other.compile()


_TYPED, _DECODED = _flows()
_TP: Final = TopicIdPartition("words", TOPIC_ID, 0)


def check(data: bytes, seen: set[Hashable]) -> int:
    """Read an input of the fuzzer in all ways.

    Args:
        data: see `records`.
        seen: what came of its messages is added.

    Returns:
        The number of its messages; each was read in all ways.

    Raises:
        Difference: two ways disagree, or all of them are wrong.
    """
    script = from_bytes(data)
    records = script.records
    if not records:
        return 0
    verdicts = [judge_carried(one.data, one.chains) for one in records]
    ordinary = _side_by_side(records, verdicts)
    answers = _in_order(records, verdicts, script.setting)
    for number, (record, verdict) in enumerate(zip(records, verdicts, strict=True)):
        refused = _alone(record, verdict)
        decided = answers[number] if number < len(answers) else ""
        came = decided if isinstance(decided, str) else len(decided[0])
        seen.add((refused, came, ordinary.get(number, 0), len(record.chains), verdict.strict, verdict.order))
    return len(records)


# --- one message by itself --------------------------------------------------------------------------


def _alone(record: Record, verdict: Verdict) -> str:
    """Returns the name of the error with which it is refused; empty if it is not."""
    value, headers = record.data, record.headers()
    content = verdict.content
    try:
        head = find_head(value, headers)
    except EnvelopeError as found_wrong:
        error = found_wrong
        _refused(error, verdict.refusals, "find_head", record)
        for strict in (False, True):
            try:
                read(value, headers=headers, strict=strict)
            except EnvelopeError as other:
                if not strict:  # a strict one may find something else first
                    _refused(other, verdict.refusals, "read", record)
            else:
                _differ(f"read(strict={strict}) takes what find_head refuses", record)
        return type(error).__name__
    if content is None:
        _differ(f"find_head takes it, {sorted(verdict.refusals)} is right", record)
    if _content_of(head, content.event_id) != content:
        _differ(f"find_head: {_content_of(head, content.event_id)}, right is {content}", record)
    envelope = read(value, headers=headers)
    found = (
        envelope.event_id, envelope.timestamp_ms, envelope.key, envelope.type, envelope.payloads, envelope.lane,
        envelope.position, envelope.previous, envelope.chain_bytes, envelope.watermark_ms,
    )  # fmt: skip
    if found != (
        content.event_id, content.timestamp_ms, content.key, content.type, content.payloads, content.lane,
        content.position, content.previous, content.chain, content.watermark_ms,
    ):  # fmt: skip
        _differ(f"read: {found}, right is {content}", record)
    _strictly(record, verdict)
    if not record.chains and value is not None:
        _elsewhere(record, content, value)
    return ""


def _strictly(record: Record, verdict: Verdict) -> None:
    wrong = verdict.strict | ({"MalformedField"} if verdict.order else set())
    try:
        envelope = read(record.data, headers=record.headers(), strict=True)
    except EnvelopeError as error:
        _refused(error, wrong, "read(strict=True)", record)
        return
    if wrong:
        _differ(f"read(strict=True) takes it, {sorted(wrong)} is right", record)
    links = [
        (one.topic.encode(), one.topic_id, one.partition, one.output.encode(), one.shard, one.offset, one.leader_epoch,
         one.ordinal, one.of)
        for one in envelope.chain
    ]  # fmt: skip
    if links != [link._replace(shard=shard_of(link)) for link in verdict.links]:
        _differ(f"the chain is {links}, right is {verdict.links}", record)


def _elsewhere(record: Record, content: Content, value: bytes) -> None:
    """An envelope as readers in other languages parse it, and the same with its chain in headers."""
    head = parse_head(value)
    try:
        message = EnvelopeMessage.FromString(value)
    except DecodeError:
        if not judge_carried(value, ()).strict:
            _differ("the published .proto does not parse it", record)
    else:
        names = (
            "timestamp_ms",
            "type",
            "payload",
            "size",
            "lane",
            "position",
            "previous",
            "watermark_ms",
            "key",
        )
        if any(getattr(message, name) != getattr(head, name) for name in names):
            _differ("the published .proto says something else", record)
    if len(content.payloads) > 1 or head.size:
        return
    try:
        plain, headers = in_headers(value, source="fuzz")
    except PoisonError:
        return
    chains = tuple(found for name, found in headers if name == "sqe-chain")
    carried = judge_carried(plain, chains).content
    if carried != content or _content_of(find_head(plain, headers), content.event_id) != content:
        _differ(f"with the chain in headers: {carried}, in the value: {content}", record)


def _content_of(head: EnvelopeHead, event_id: bytes) -> Content:
    of = int.from_bytes(head.chain[-4:], "little") if head.chain else 0
    return Content(
        event_id, head.timestamp_ms, head.key if head.HasField("key") else None, head.type, tuple(payloads_of(head)),
        head.lane, head.position, head.previous, head.chain, head.watermark_ms, of,
    )  # fmt: skip


# --- many side by side ------------------------------------------------------------------------------


def _side_by_side(records: Sequence[Record], verdicts: Sequence[Verdict]) -> dict[int, int]:
    """The fields as columns: those of an ordinary message are the right ones.

    Returns:
        Number of a message -> for how many types of payloads it is ordinary.
    """
    plain = Counter[int]()
    groups = (
        ([number for number, one in enumerate(records) if not one.chains], False),
        ([number for number, one in enumerate(records) if len(one.chains) == 1], True),
    )
    for numbers, carried in groups:
        if not numbers:
            continue
        values = [records[number].chains[0] if carried else records[number].data for number in numbers]
        for type_name in (None, TYPE):
            columns = Columns(values, type_name.encode() if type_name else None, carried=carried)
            for index in columns.ordinary.nonzero()[0].tolist():
                number, value = numbers[index], values[index] or b""
                plain[number] += 1
                record, content = records[number], verdicts[number].content
                if carried and (record.data is None or record.data.startswith(b"\x0dSQE\xff")):
                    continue  # such a record is read by itself, whatever its header holds
                if content is None:
                    _differ(f"columns: ordinary, {sorted(verdicts[number].refusals)} is right", record)
                elif (
                    type_name not in (None, content.type)
                    or None in content.payloads
                    or len(content.payloads) > 1
                ):
                    _differ(f"columns: ordinary as {type_name}, but it holds {content}", record)
                elif (found := _cells(columns, index, value, content, carried=carried)) != content:
                    _differ(f"columns: {found}, right is {content}", record)
    return plain


def _cells(columns: Columns, index: int, value: bytes, like: Content, *, carried: bool) -> Content:
    start = int(columns.start[index])

    def cut(begin: Any, size: Any) -> bytes:
        return value[int(begin) - start : int(begin) - start + int(size)]

    size = int(columns.chain_size[index])
    chain = cut(columns.chain_end[index] - size, size)
    payload = like.payloads[0]
    if not carried:
        payload = cut(columns.payload[index], columns.payload_end[index] - columns.payload[index])
    return Content(
        like.event_id,
        int(columns.timestamp_ms[index]),
        cut(columns.key[index], columns.key_size[index]) if columns.keyed[index] else None,
        like.type,
        (payload,),
        int(columns.lane[index]),
        cut(columns.position[index], columns.position_size[index]),
        cut(columns.previous[index], columns.previous_size[index]),
        chain,
        int(columns.watermark_ms[index]),
        int.from_bytes(chain[-4:], "little") if chain else 0,
    )


# --- all of a partition, in its order ---------------------------------------------------------------


def _in_order(records: Sequence[Record], verdicts: Sequence[Verdict], setting: int) -> list[Any]:
    """A receiver's decisions: new, replay, skipped, or an end; with the marks after them. Returns those of the first way."""
    compacted, flow = bool(setting & COMPACTED), _DECODED if setting & DECODER else _TYPED
    right = _right(records, verdicts, compacted=compacted)
    first: tuple[list[Any], MarksRecord] | None = None
    for columns, run, size in (
        (NEVER, NEVER, 64),
        (1, NEVER, BLOCKS[setting & 3]),
        (1, 1, BLOCKS[setting & 3]),
    ):
        found = _decided(records, flow, columns, run, size, compacted=compacted)
        where = f"columns from {columns}, runs from {run}, blocks of {size}"
        if first is None:
            first = found
            _compare(records, found[0], right, typed=flow is _TYPED)
        elif found[0] != first[0]:
            both = list(zip_longest(found[0], first[0]))
            number = next(at for at, (one, other) in enumerate(both) if one != other)
            _differ(f"{where}: {both[number][0]}; one by one: {both[number][1]}", records[number])
        elif found[1] != first[1]:
            _differ(f"{where}: marks {found[1]}; one by one: {first[1]}", records[-1])
    assert first is not None
    _filtered(records, first, compacted=compacted)
    return first[0]


def _right(
    records: Sequence[Record], verdicts: Sequence[Verdict], *, compacted: bool
) -> list[tuple[frozenset[str], Content | None, int]]:
    receiver = Receiver(b"words", TOPIC_ID, 0, compacted=compacted)
    return [
        (receiver.receive(verdict, one.at, one.epoch + 1), verdict.content, one.at)
        for one, verdict in zip(records, verdicts, strict=True)
    ]


@contextmanager
def _ways(columns: int, run: int) -> Iterator[None]:
    before = taking.WORTHWHILE, taking.WORTHWHILE_RUN
    taking.WORTHWHILE, taking.WORTHWHILE_RUN = columns, run
    try:
        yield
    finally:
        taking.WORTHWHILE, taking.WORTHWHILE_RUN = before


def _decided(
    records: Sequence[Record], flow: CompiledFlow, columns: int, run: int, size: int, *, compacted: bool
) -> tuple[list[Any], MarksRecord]:
    """What a task decides about each record, and its marks."""
    marks = PartitionMarks("words", TOPIC_ID, 0, compacted=compacted)
    lanes: dict[int, int] = {}

    def lane_read(lane: int) -> int:
        return lanes.setdefault(lane, read_lane(lane, "words", TOPIC_ID, 0))

    decides = Deciding(flow, flow.sources[0], _TP, marks, {}, lane_read, retried_alone=False)
    decides._wants_key = True
    answers: list[Any] = []
    with _ways(columns, run):
        for begin in range(0, len(records), size):
            block = records[begin : begin + size]
            found = decides.records_of(block)
            stopped = None
            try:
                decides.decide(found)
            except ServiceStopped as error:
                stopped = error
            answers += _answers(found, len(block) if stopped is None else (stopped.offset or 0) - begin)
            if stopped is not None:
                answers.append(type(stopped).__name__)
                break
    return answers, marks.to_json()


def _answers(records: Records, count: int) -> list[Any]:
    """For each record of a block: the name of an error, REPLAY, or what is taken of it."""
    taken: dict[int, list[tuple[Any, Any]]] = {}
    for number, key, payload in zip(records.inputs, records.keys, records.payloads, strict=True):
        taken.setdefault(number, []).append((key, payload))
    answers: list[Any] = []
    for number in range(count):
        failure = records.failures.get(number)
        if failure is not None:
            answers.append(type(failure).__name__)
        elif number in taken:
            origin = records.origin(number)
            answers.append((taken[number], origin.lane, origin.position, origin.timestamp_ms))
        else:
            answers.append(REPLAY)
    return answers


def _compare(
    records: Sequence[Record],
    answers: Sequence[Any],
    right: Sequence[tuple[frozenset[str], Content | None, int]],
    *,
    typed: bool,
) -> None:
    """Whether the decisions, record by record, are the right ones."""
    for number, answer in enumerate(answers):
        wanted, content, offset = right[number]
        if wanted != {NEW} or content is None:
            if isinstance(answer, tuple) or answer not in wanted:
                _differ(f"decided: {answer}, right is {sorted(wanted)}", records[number])
        elif typed and content.type != TYPE:
            if answer != "WrongPayloadType":
                _differ(f"decided: {answer}, right is WrongPayloadType", records[number])
        elif None in content.payloads:
            if answer != "EmptyValue":
                _differ(f"decided: {answer}, right is EmptyValue", records[number])
        else:
            key = b"record's key" if content.key is None else content.key
            position = content.position or (records[number].epoch + 1).to_bytes(4) + offset.to_bytes(8)
            expected = (
                [(key, payload) for payload in content.payloads],
                read_lane(content.lane, "words", TOPIC_ID, 0),
                position,
                content.timestamp_ms,
            )
            if answer != expected:
                _differ(f"decided: {answer}, right is {expected}", records[number])
    if (
        len(answers) < len(records)
        and not {"GapError", "ChangedRepublisher", "RecreatedTopic"} & right[len(answers) - 1][0]
    ):
        _differ(f"it ends with {answers[-1]}", records[len(answers) - 1])


def _filtered(records: Sequence[Record], first: tuple[list[Any], MarksRecord], *, compacted: bool) -> None:
    """A plain consumer decides the same, and has the same marks."""
    replays = ReplayFilter({"words": TOPIC_ID}, compacted=("words",) if compacted else ())
    for record, decided in zip(records, first[0], strict=False):
        try:
            answer: str = NEW if replays.accept(record) else REPLAY
        except EnvelopeError as error:
            replays.undecodable(record)
            answer = type(error).__name__
        except ServiceStopped as error:
            answer = type(error).__name__
        known = NEW if isinstance(decided, tuple) else decided
        if answer not in {known, NEW if decided in ("WrongPayloadType", "EmptyValue") else known}:
            _differ(f"ReplayFilter: {answer}; in a flow: {decided}", record)
    if replays.marks("words", 0).to_json() != first[1]:
        _differ(
            f"ReplayFilter: marks {replays.marks('words', 0).to_json()}; in a flow: {first[1]}", records[-1]
        )


def _refused(error: EnvelopeError, right: frozenset[str] | set[str], way: str, record: Record) -> None:
    if type(error).__name__ not in right:
        _differ(
            f"{way} says {type(error).__name__} ({error}), right is {sorted(right) or 'to take it'}", record
        )


def _differ(text: str, record: Record) -> NoReturn:
    raise Difference(f"{text}\n  value {record.data!r}\n  headers {record.chains!r}")
