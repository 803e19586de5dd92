"""What happens in one run of a flow under proof, as plain data: faults, replays, and which inputs there are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from sqe_chain.codecs import Codec
from sqe_chain.envelope.partitioner import key_bytes, partition_of
from sqe_chain.errors import ConfigurationError
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.plans.events import STEPS as NUMBERED_STEPS
from sqe_chain.plans.events import When
from sqe_chain.ports import Headers
from sqe_chain.testing.proving.contents import shown
from sqe_chain.testing.rehearsal import Rehearsal

What = Literal["crash", "no answer", "takeover"]
Service = Literal["flow", "upstream"]

STEPS: Final = ("starting", *(step.name for step in NUMBERED_STEPS.values()))
"""Names of the protocol's steps by their number; 0 lies outside them."""
BLOCK: Final = 3
"""Records that a reader gets at a time, where nothing else is drawn."""
_WORDS: Final[Mapping[tuple[str, str], str]] = {
    ("crash", "before"): "crash before {}",
    ("crash", "after"): "crash after {}, its reply is lost",
    ("no answer", "before"): "{} gets no answer, and has no effect",
    ("no answer", "after"): "{} takes effect, but its reply is lost",
    ("takeover", "before"): "another run takes over before {}, and this one goes on as a zombie",
    ("takeover", "after"): "another run takes over after {}, and this one goes on as a zombie",
}


@dataclass(frozen=True, slots=True)
class Feed:
    """A record of an input: the arguments of `Rehearsal.feed`.

    Attributes:
        topic: input topic.
        payload: a value, or bytes as they are; see `Rehearsal.feed`.
        key: record key.
        partition: by default murmur2 of the key; 0 without a key.
        timestamp_ms: event time, in milliseconds since 1970.
        headers: Kafka headers.
    """

    topic: str
    payload: object
    key: bytes | str | None = None
    partition: int | None = None
    timestamp_ms: int = 0
    headers: Headers | None = None

    def __str__(self) -> str:
        more = "".join(
            f", {name}={getattr(self, name)!r}"
            for name, default in (("key", None), ("partition", None), ("timestamp_ms", 0), ("headers", None))
            if getattr(self, name) != default
        )
        return f"{self.topic} <- {shown(self.payload)}{more}"


Inputs = Mapping[str, Sequence[object]] | Iterable[Feed]
"""Records of the inputs: topic -> payloads, which are fed in turns; or `Feed` objects, in their order."""


@dataclass(frozen=True, slots=True)
class FedRecord:
    """An input as it is appended in every run, byte for byte.

    Attributes:
        feed: what the user gave.
        partition: of the topic.
        value: bytes.
        key: bytes.
    """

    feed: Feed
    partition: int
    value: bytes | None
    key: bytes | None


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens at one call of a port.

    Attributes:
        what: the process dies; broker, store or table does not answer; or another run takes over.
        call: which call of the service it is, from 0: of those before which, or after which, something can happen.
        when: before the call, or after it has taken effect.
        service: whose call.
    """

    what: What
    call: int
    when: When
    service: Service = "flow"


@dataclass(frozen=True, slots=True)
class Schedule:
    """One run.

    Attributes:
        inputs: which of the records are fed, by their number.
        faults: what happens to the flow and to the service upstream.
        rewinds: halves of the inputs after which the service upstream publishes everything again (the flow itself, if it has
            no stages and nothing is upstream).
        upstream: whether a service upstream republishes the inputs.
        carrier: how that one carries chains.
        batch: records of one batch at most; 0: as in the settings.
        block: records that a reader gets at a time.
        rows: rows that one write to a store takes.
        in_place: whether stages run in the tasks that read, where the settings and partitions allow it.
        unreachable: calls of the flow's functions, in the order of the run, that cannot reach what they need.
    """

    inputs: tuple[int, ...]
    faults: tuple[Fault, ...] = ()
    rewinds: tuple[int, ...] = ()
    upstream: bool = False
    carrier: Literal["value", "headers"] = "value"
    batch: int = 0
    block: int = BLOCK
    rows: int = 2
    in_place: bool = True
    unreachable: tuple[int, ...] = ()

    @property
    def undisturbed(self) -> Schedule:
        """The same without anything that happens, on the usual layout and in the usual blocks: neither may change anything."""
        return replace(self, faults=(), rewinds=(), unreachable=(), in_place=True, block=BLOCK)

    @property
    def reference(self) -> Schedule:
        """What it is compared with: undisturbed, in batches of this size if anything happens, else as in the settings."""
        happens = self.faults or self.rewinds or self.unreachable
        return self.undisturbed if happens else replace(self.undisturbed, batch=0)


@dataclass(frozen=True, slots=True)
class Point:
    """A place where something can happen.

    Attributes:
        call: its number, as in `Fault`.
        when: before a call, or after it.
        name: what is called.
        write: whether the call writes.
        step: number of the protocol's step.
        service: whose call.
    """

    call: int
    when: When
    name: str
    write: bool
    step: int
    service: Service = "flow"

    @property
    def kind(self) -> tuple[object, ...]:
        """What it has in common with others of its kind, in runs with other inputs."""
        return self.when, self.write, self.step, self.service, self.name.split(" ")[0]

    def with_fault(self, what: What) -> str:
        """In words: what happens here."""
        whose = "" if self.service == "flow" else "upstream: "
        step = f" (step {self.step}, {STEPS[self.step]})" if self.step else f" ({STEPS[0]})"
        return whose + _WORDS[what, self.when].format(self.name) + step


def list_feeds(inputs: Inputs) -> list[Feed]:
    """The inputs as a list.

    Raises:
        ConfigurationError: something else was given.
    """
    if isinstance(inputs, Mapping):
        topics = [[Feed(topic, payload) for payload in payloads] for topic, payloads in inputs.items()]
        longest = max(map(len, topics), default=0)
        return [topic[index] for index in range(longest) for topic in topics if index < len(topic)]
    feeds = list(inputs)
    for feed in feeds:
        if not isinstance(feed, Feed):
            raise ConfigurationError(
                f"inputs: {shown(feed)}. Expected topic -> payloads, or a list of Feed(topic, payload, ...)"
            )
    return feeds


def make_records(flow: CompiledFlow, feeds: Sequence[Feed], partitions: Mapping[str, int]) -> list[FedRecord]:
    """The records that `Rehearsal.feed` makes, once and for all runs: event ids are random.

    Raises:
        ConfigurationError: the flow does not read a topic.
    """
    maker = Rehearsal(flow, partitions=partitions)
    known = flow.input_topics
    records = []
    for feed in feeds:
        if feed.topic not in known:
            raise ConfigurationError(
                f"inputs: flow {flow.name!r} does not read topic {feed.topic!r}. Expected one of: {', '.join(known) or '(none)'}"
            )
        key = None if feed.key is None else key_bytes(feed.key)
        place = feed.partition
        if place is None:
            place = 0 if key is None else partition_of(key, partitions.get(feed.topic, 1))
        more: dict[str, Any] = {"timestamp_ms": feed.timestamp_ms, "headers": feed.headers}
        offset = maker.feed(feed.topic, feed.payload, key=key, partition=place, **more)
        records.append(FedRecord(feed, place, maker.log.kept(feed.topic, place)[offset].value(), key))
    maker.log.clear()
    return records


class PassThrough(Codec[bytes]):
    """Payloads as bytes, under the name of any type: for a service that hands on what it does not understand."""

    name = "pass-through"

    def __init__(self, type_name: str) -> None:
        super().__init__(bytes)
        self._type_name = type_name

    @property
    def type_name(self) -> str:
        return self._type_name

    def encode(self, value: bytes) -> bytes:
        return value

    def decode(self, data: bytes) -> bytes:
        return data


def drop_pieces(numbers: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The numbers without large pieces, then without smaller ones."""
    size = len(numbers) // 2
    while size:
        for first in range(0, len(numbers), size):
            yield (*numbers[:first], *numbers[first + size :])
        size //= 2
