"""What a codec must do: values come back, equal ones give equal bytes, nobody shares a value, and workers get the same codec."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pytest

from sqe_chain.codecs import Codec, Place
from sqe_chain.codecs.codec import codec_name
from sqe_chain.engines.packing import PackedFlow
from sqe_chain.flow import Flow
from sqe_chain.testing.rehearsal import Rehearsal


class CodecContract:
    """Every rule of codecs. A subclass gives the fixtures `codec` and `values`; they are asked for again in each test.

    Attributes:
        topics: topics at which the codec can be used: each of them is read and written.
        headers: of records, as `decode_with` gets them; for codecs that want headers.
    """

    topics: ClassVar[Sequence[str]] = ("contract.one", "contract.two")
    headers: ClassVar[Sequence[tuple[str, bytes | None]]] = ()

    @pytest.fixture
    def codec(self) -> Codec[Any]:
        """The codec, with all its settings."""
        raise NotImplementedError(f"{type(self).__name__} needs a fixture 'codec' that returns a codec")

    @pytest.fixture
    def values(self) -> list[Any]:
        """Values that differ from each other: at least two, with the extremes of their type."""
        raise NotImplementedError(f"{type(self).__name__} needs a fixture 'values' that returns several")

    @pytest.fixture(params=["one topic", "another topic"])
    def placed(self, request: pytest.FixtureRequest, codec: Codec[Any]) -> Codec[Any]:
        """The codec at a topic, as a flow uses it."""
        return codec.at(Place(self.topics[request.param != "one topic"]))

    def test_a_name_is_one_of_envelopes(self, codec: Codec[Any]) -> None:
        assert codec.name
        assert set(codec.name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_")
        assert codec_name(codec.type_name) == codec.name
        assert codec.reads(codec.type_name)
        assert not codec.reads("another-codec:Value")

    def test_values_are_read_back(self, placed: Codec[Any], values: list[Any]) -> None:
        """Alone, many together, and as a source of topics reads them."""
        payloads = [placed.encode(value) for value in values]
        assert [type(payload) for payload in payloads] == [bytes] * len(values)
        assert [placed.decode_own(payload) for payload in payloads] == values
        if placed.wants_headers:
            assert [placed.decode_with(payload, self.headers) for payload in payloads] == values
        else:
            assert placed.decode_all(payloads) == [placed.decode(payload) for payload in payloads] == values
        assert len(set(payloads)) == len(values), "values that differ have the same bytes"

    def test_equal_values_give_equal_bytes(self, placed: Codec[Any], values: list[Any]) -> None:
        """A batch that is processed again publishes the same."""
        if not placed.deterministic:
            pytest.skip("the codec declares that its bytes differ: it can only read")
        for value in values:
            payload = placed.encode(value)
            assert placed.encode(value) == payload
            assert placed.encode(placed.decode_own(payload)) == payload
            assert placed.encode(placed.copy(value)) == payload

    def test_nobody_shares_what_was_decoded(self, placed: Codec[Any], values: list[Any]) -> None:
        """A fold changes its state: no other state may change with it."""
        payload = placed.encode(values[0])
        first, second = placed.decode_own(payload), placed.decode_own(payload)
        assert first == second == placed.copy(first)
        if type(first).__hash__ is None:  # it can be changed
            assert first is not second
            assert placed.copy(first) is not first

    def test_bytes_that_it_has_not_written_raise_an_exception(
        self, placed: Codec[Any], refused: bytes | None
    ) -> None:
        """Then the flow's policy decides. Bytes that give some value instead would be counted."""
        if refused is None:
            pytest.skip("the codec takes any bytes")
        with pytest.raises(Exception):  # noqa: B017, PT011 - any exception is poison
            placed.decode_with(refused, self.headers) if placed.wants_headers else placed.decode(refused)

    @pytest.fixture
    def refused(self) -> bytes | None:
        """Bytes that are no value; None: the codec takes any bytes."""
        return b"\xff\xff not written by this codec"

    def test_a_place_gives_the_same_codec_each_time(self, codec: Codec[Any], values: list[Any]) -> None:
        """Each process asks for it, and neither order nor number of the questions matters."""
        for topic in (*self.topics, self.topics[0]):
            place = Place(topic)
            first, again = codec.at(place), codec.at(place)
            assert type(first) is type(again) is type(codec)
            assert first.python_type is codec.python_type
            assert first.type_name == again.type_name
            for value in values:
                assert first.encode(value) == again.encode(value)

    @pytest.mark.parametrize("how", ["pickled", "sent with a flow"])
    def test_another_process_has_the_same_codec(self, codec: Codec[Any], values: list[Any], how: str) -> None:
        """With its settings: one that falls back to a default there would go to another registry, for example."""
        if how == "pickled":
            copies = dict.fromkeys(self.topics, pickle.loads(pickle.dumps(codec)))
        else:
            flow = Flow("contract")
            flow.source(self.topics, codec.python_type, codec=codec, raw=True).map(repr).to(
                "out", partitions=1
            )
            sent = PackedFlow.of(flow.compile()).unpack()
            copies = {topic: sent.codec_of[topic] for topic in self.topics}
        for topic, copy in copies.items():
            here, there = codec.at(Place(topic)), copy.at(Place(topic))
            assert there.type_name == here.type_name
            for value in values:
                payload = here.encode(value)
                assert there.encode(value) == payload
                assert there.decode_own(payload) == value

    def test_a_flow_reads_and_publishes_values(self, codec: Codec[Any], values: list[Any]) -> None:
        """What it published is read back; nothing was poison."""
        if not codec.deterministic:
            pytest.skip("the codec declares that its bytes differ: it can only read")
        flow = Flow("contract")
        flow.source(self.topics[0], codec.python_type, codec=codec, raw=True).to(
            self.topics[1], partitions=1, codec=codec
        )
        rehearsal = Rehearsal(flow)
        here, there = codec.at(Place(self.topics[0])), codec.at(Place(self.topics[1]))
        for value in values:
            rehearsal.feed(self.topics[0], here.encode(value), headers=[*self.headers] or None)
        rehearsal.run_until_caught_up()
        assert [there.decode_own(payload) for payload in _payloads(rehearsal, self.topics[1])] == values

    def test_states_are_stored_exactly_or_refused(self, codec: Codec[Any], values: list[Any]) -> None:
        """A codec whose values cannot be states gives the reason."""
        if codec.check_state():
            return
        assert codec.deterministic
        assert type(codec.new()) is codec.python_type
        for value in (codec.new(), *values):
            assert codec.decode_own(codec.encode_state(value)) == value


def _payloads(rehearsal: Rehearsal, topic: str) -> Iterator[bytes]:
    for envelope in rehearsal.published(topic):
        yield from (payload for payload in envelope.payloads if payload is not None)
