"""Goal: a flow that an older version has run, by which inputs caused what is due, goes on exactly.

Method: the older version is this one without moments. It leaves windows open where no input came, and may crash in its last batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from sqe_chain import read
from sqe_chain.errors import ConfigurationError
from sqe_chain.features.due import DueMoments
from sqe_chain.flow import Flow
from sqe_chain.protocol import decide
from sqe_chain.stages import Tumbling
from sqe_chain.testing import Rehearsal
from tests.support.receiving import received

Value = dict[str, Any]


def add(state: Value, value: Value) -> None:
    state["n"] = state.get("n", 0) + 1


def service_of() -> Rehearsal:
    flow = Flow("upgraded", state_partitions=5)
    made = flow.source("in", dict, raw=True).windowed(
        "stage", Tumbling(1_000), key=lambda value: value["k"], state=dict, fold=add
    )
    made.map(lambda window: {"k": window.key, "at": window.start_ms}).to("out", partitions=1)
    return Rehearsal(flow)


def nothing(*_: object) -> Iterator[DueMoments]:
    yield from ()


def feed(service: Rehearsal, *, first_ms: int) -> None:
    for number in range(24):
        key = "abcdefgh"[number % 8] if number < 8 else "last"
        service.feed("in", {"k": key}, timestamp_ms=first_ms + number * 400)


def given(service: Rehearsal) -> Counter[tuple[str, int]]:
    """What a reader that ignores replays gets."""
    found, log = Counter[tuple[str, int]](), service.log
    for message in received("out", log.describe(["out"])["out"].topic_id, log.records("out")):
        payloads: Any = read(message.value(), headers=message.headers()).payloads_as(dict)
        found.update((payload["k"], payload["at"]) for payload in payloads)
    return found


@pytest.mark.parametrize("crash", [None, 3, 4, 5, 6, 7])
def test_each_result_comes_once(monkeypatch: pytest.MonkeyPatch, crash: int | None) -> None:
    service, reference = service_of(), service_of()
    with monkeypatch.context() as older:
        older.setattr(decide, "reach_moments", lambda flow, last, decision: decision)
        older.setattr(decide, "moments_after", nothing)
        feed(service, first_ms=0)
        if crash is not None:
            service.crash(step=crash, when="after")
            service.run_until_crash()
        else:
            service.run_until_caught_up()
            assert len({key for key, _ in given(service)}) < 9, "some are open where nothing came"
            with pytest.raises(ConfigurationError, match="older version has made its last plan"):
                service.rebuild()
    service.run_until_caught_up()
    feed(service, first_ms=9_600)
    service.run_until_caught_up()
    for first_ms in (0, 9_600):
        feed(reference, first_ms=first_ms)
        reference.run_until_caught_up()
    assert given(service) == given(reference)
    assert set(given(service).values()) == {1}
    if crash is None:
        with pytest.raises(ConfigurationError, match="an older version has published results"):
            service.rebuild({("in", 0): 0}, republish=True)
