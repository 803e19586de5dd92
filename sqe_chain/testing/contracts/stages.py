"""What a kind of stage must do: its results depend on the records alone, not on batches, state partitions, crashes and processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, Literal

import pytest

from sqe_chain.codecs import codec_for
from sqe_chain.engines.packing import PackedFlow
from sqe_chain.flow import Flow, Stream
from sqe_chain.testing.rehearsal import Rehearsal

Result = tuple[bytes | None, tuple[bytes | None, ...], bytes]
"""Key, payloads and position of what a stage published; what is published again after a crash has the same position."""
Rows = dict[tuple[str, int], dict[bytes, bytes]]
"""Stage and cell -> its rows."""
_MOST_CALLS: Final = 1_000
"""Calls to broker and store of a short run; one that makes more does not end."""


class StageContract:
    """Every rule of kinds of stages. A subclass gives the fixtures `declare` and `inputs`.

    Attributes:
        rows_differ: rows hold what differs from run to run: the batch's clock, or the id of a topic. Otherwise they are compared.
    """

    rows_differ: ClassVar[bool] = False

    @pytest.fixture
    def declare(self) -> Callable[[Stream[Any]], Stream[Any]]:
        """Adds the stage to a stream of the inputs, and gives what it forwards."""
        raise NotImplementedError(f"{type(self).__name__} needs a fixture 'declare' that adds the stage")

    @pytest.fixture
    def inputs(self) -> Sequence[tuple[str, Any]]:
        """Key and value of some records, of one type, in their order: about ten, some of the same key."""
        raise NotImplementedError(
            f"{type(self).__name__} needs a fixture 'inputs' that returns keys and values"
        )

    @pytest.fixture
    def run(
        self, declare: Callable[[Stream[Any]], Stream[Any]], inputs: Sequence[tuple[str, Any]]
    ) -> Callable[..., tuple[set[Result], Rows, int]]:
        """Runs a flow with the stage; gives what it published, its rows, and how often it crashed."""

        def run(
            *, partitions: int = 2, each: int = 4, crash: tuple[int, Literal["before", "after"]] | None = None
        ) -> tuple[set[Result], Rows, int]:
            flow = Flow("contract", state_partitions=partitions)
            kind = type(inputs[0][1])
            declare(flow.source("inputs", kind, raw=True)).to("outputs", partitions=1)
            compiled = PackedFlow.of(flow.compile()).unpack()
            rehearsal = Rehearsal(compiled)
            if crash is not None:
                rehearsal.crash_at_call(*crash)
            for number, (key, value) in enumerate(inputs, 1):
                rehearsal.feed(
                    "inputs", codec_for(kind).encode(value), key=key, timestamp_ms=1_700_000_000_000 + number
                )
                if number % each == 0:
                    rehearsal.run_until_caught_up()
            rehearsal.run_until_caught_up()
            published = {
                (envelope.key, envelope.payloads, envelope.position)
                for envelope in rehearsal.published("outputs")
            }
            store = rehearsal.stores[""]
            rows = {
                (stage.name, cell): dict(store.scan(compiled.name, stage.name, cell))
                for stage, cell in compiled.all_cells
            }
            return published, rows, rehearsal.crashes

        return run

    def test_it_forwards_something(self, run: Callable[..., Any]) -> None:
        """Else the other rules compare nothing."""
        assert run()[0]

    @pytest.mark.parametrize("each", [1, 2, 1_000])
    def test_results_do_not_depend_on_where_batches_end(self, run: Callable[..., Any], each: int) -> None:
        assert run(each=each)[0] == run()[0]

    def test_results_do_not_depend_on_the_number_of_state_partitions(self, run: Callable[..., Any]) -> None:
        results = [
            sorted((key, payloads) for key, payloads, _ in run(partitions=count)[0]) for count in (1, 2, 7)
        ]
        assert results[0] == results[1] == results[2]

    @pytest.mark.parametrize("when", ["before", "after"])
    def test_a_crash_at_any_call_to_broker_and_store_changes_nothing(
        self, run: Callable[..., Any], when: str
    ) -> None:
        published, rows, _ = run()
        for call in range(_MOST_CALLS):
            again, left, crashes = run(crash=(call, when))
            assert again == published, f"after a crash {when} call {call}"
            if not self.rows_differ:
                assert left == rows, f"after a crash {when} call {call}"
            if not crashes:
                assert call > 0
                return
        pytest.fail(f"the run makes more than {_MOST_CALLS} calls")
