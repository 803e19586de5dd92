"""What filters and windows remember is folded again by a rebuild, and goes along when a flow moves to other stores."""

from __future__ import annotations

import itertools

import pytest
from google.protobuf.wrappers_pb2 import Int64Value, StringValue

from sqe_chain import Flow
from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.stages import Result, Tumbling, WindowResult
from sqe_chain.testing import Rehearsal

names = itertools.count()


def count(total: Int64Value, _: object) -> None:
    total.value += 1


def flow_of() -> Flow:
    """Words, each once within a minute, counted by window, and by word behind that; in two stores."""
    flow = Flow("kept", state_partitions=2)
    once = flow.source("words", StringValue).deduplicate(
        "once", lambda text: text.value, 60_000, store="other"
    )
    windows = once.windowed(
        "windows",
        Tumbling(10_000),
        key=lambda text: text.value[0],
        state=Int64Value,
        fold=count,
        retention_ms=50_000,
    )
    windows.aggregate("closed", key=lambda result: result.key, state=Int64Value, fold=add)
    once.dropped().to("again", partitions=1)
    return flow


def add(total: Int64Value, result: WindowResult) -> None:
    total.value += Int64Value.FromString(result.state).value


def stores() -> dict[str, MemoryStore]:
    found = {name: MemoryStore(f"kept-{next(names)}", max_rows=2) for name in ("", "other")}
    for store in found.values():
        store.restore_all()
    return found


def feed_words(service: Rehearsal, words: str, at_ms: int) -> None:
    for number, text in enumerate(words.split()):
        service.feed("words", StringValue(value=text), key=text[0], timestamp_ms=at_ms + number)
    service.run_until_caught_up()


def heard() -> Rehearsal:
    """A service that has read some words."""
    service = Rehearsal(flow_of(), partitions={"words": 2}, store=stores())
    for at_ms, words in ((0, "ant bee ant cow"), (10_000, "bee dog ape"), (21_000, "auk ant elk boa")):
        feed_words(service, words, at_ms)
    return service


@pytest.fixture
def before() -> Rehearsal:
    return heard()


def results_of(service: Rehearsal) -> tuple[dict[bytes, int], list[Result]]:
    return {key: state.value for key, state in service.states("closed").items()}, service.windows("windows")


def rows(service: Rehearsal, stage: str, store: str = "") -> dict[bytes, bytes]:
    home, _ = service.stores[""].home("kept")
    assert home is not None
    return {key: row for part in (0, 1) for key, row in service.stores[store].scan("kept", stage, part)}


def goes_on(service: Rehearsal) -> tuple[dict[bytes, int], list[Result]]:
    """Duplicates of before are known, windows of before close."""
    feed_words(service, "ant bee cow fox", 22_000)
    feed_words(service, "gnu hen ibis ant", 90_000)
    feed_words(service, "a b c d e f g h i", 200_000)
    return results_of(service)


def test_a_rebuild_folds_the_same_and_goes_on(before: Rehearsal) -> None:
    expected = results_of(before)
    assert expected[0]
    assert expected[1]
    before.rebuild()
    assert results_of(before) == expected
    assert goes_on(before) == goes_on(heard())


def test_a_moved_flow_knows_what_it_knew(before: Rehearsal) -> None:
    expected, remembered = results_of(before), rows(before, "once", "other")
    after = Rehearsal(before.flow, log=before.log, store=stores())
    after.imported(before.exported())
    assert results_of(after) == expected
    assert rows(after, "once", "other") == remembered
    assert goes_on(after) == goes_on(heard())
