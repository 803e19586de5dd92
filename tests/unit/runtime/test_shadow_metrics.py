"""Goal: metrics of a service show the shadow of its flow, and a store that is away breaks no scrape. Method: a flow in memory, a real port."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Event as Signal
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from sqe_chain.cli.listening import serve_metrics
from sqe_chain.errors import Unavailable
from sqe_chain.operations.attempts import shadow_figures
from sqe_chain.plans.events import Recovered
from sqe_chain.runtime.metrics import Metrics, ShadowReader
from sqe_chain.runtime.stop import ServiceClock, Stop
from tests.support.ports import own_port
from tests.support.rebuilding import BEFORE
from tests.support.shadows import flow_of, follow, loud_of, running

Read = Callable[[], Mapping[str, int]]


def shown(text: str) -> dict[str, float]:
    """Series of a shadow -> value."""
    lines = [line for line in text.splitlines() if line.startswith("sqe_chain_shadow_")]
    lines = [line for line in lines if "_created{" not in line]
    return {
        line.rpartition(" ")[0].removeprefix("sqe_chain_shadow_"): float(line.rpartition(" ")[2])
        for line in lines
    }


def at_work(shadow: Read) -> CollectorRegistry:
    """The metrics of a service that has recovered."""
    registry = CollectorRegistry()
    Metrics("notes", registry, shadow=shadow).statistics.event(Recovered(1, 0, ()))
    return registry


def scraped(registry: CollectorRegistry) -> dict[str, float]:
    text = generate_latest(registry).decode()
    assert "sqe_chain_lag" in text
    return shown(text)


def test_metrics_show_a_shadow_as_long_as_it_is_open() -> None:
    pipeline, flow = running(), flow_of(fold=loud_of(0))
    store = pipeline.found.stores[""]
    registry = at_work(ShadowReader(lambda: shadow_figures(store, "notes"), every_s=0).figures)
    assert scraped(registry) == {}
    follow(pipeline, flow)
    pipeline.feed(["zoo", "yak"])
    behind = {"records_behind": 2.0, "plans_left": 1.0}
    counts = {f'outputs_total{{flow="notes",result="{name}"}}': 0.0 for name in ("equal", "different")}
    counts |= {f'outputs_total{{flow="notes",result="{name}"}}': 0.0 for name in ("missing", "added")}
    counts |= {'gaps_total{flow="notes"}': 0.0}
    assert scraped(registry) == {f'{name}{{flow="notes"}}': value for name, value in behind.items()} | counts
    follow(pipeline, flow)
    found = scraped(registry)
    different = pipeline.found.compared_outputs(flow).counts.different
    assert found['outputs_total{flow="notes",result="different"}'] == different > 0
    assert found['records_behind{flow="notes"}'] == found['plans_left{flow="notes"}'] == 0
    pipeline.found.end_shadow(flow)
    assert scraped(registry) == {}


def test_plans_left_are_shown_once_the_shadow_compares() -> None:
    pipeline = running()
    service = pipeline.found.shadow(flow_of()).start()  # and has folded nothing
    figures = shadow_figures(pipeline.found.stores[""], "notes")
    assert figures["records_behind"] == len(BEFORE)
    assert "plans_left" not in figures
    service.leave()


def test_a_store_that_does_not_answer_breaks_no_scrape() -> None:
    answers, asked = Signal(), list[str]()

    def read() -> Mapping[str, int]:
        asked.append("again")
        answers.wait()
        return {"gaps": 3}

    registry = at_work(ShadowReader(read, every_s=3_600).figures)
    assert scraped(registry) == {}
    answers.set()
    # Its late answer is shown, and it is not asked again so soon.
    for _ in range(2):
        assert scraped(registry) == {'gaps_total{flow="notes"}': 3}
    assert asked == ["again"]


@pytest.mark.parametrize("error", [Unavailable("away"), ValueError("not a plan")])
def test_an_error_of_the_store_shows_nothing_until_it_is_over(error: Exception) -> None:
    errors = [None, error, None]

    def read() -> Mapping[str, int]:
        if (now := errors.pop()) is not None:
            raise now
        return {"gaps": 1}

    registry = at_work(ShadowReader(read, every_s=0).figures)
    assert [len(scraped(registry)) for _ in range(3)] == [1, 0, 1]


def test_a_standby_asks_nothing() -> None:
    registry = CollectorRegistry()
    Metrics("notes", registry, shadow=lambda: pytest.fail("it asks"))
    assert scraped(registry) == {}


def test_the_port_of_a_service_shows_the_shadow_from_its_store() -> None:
    pipeline = running()
    url = repr(pipeline.store).removeprefix("MemoryStore(").removesuffix(")")
    follow(pipeline, flow_of())
    port = own_port()
    with serve_metrics(flow_of().compile(), ServiceClock(Stop()), {"": url}, port, "127.0.0.1") as observers:
        for observer in observers:
            observer.event(Recovered(1, 0, ()))
        with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            found = shown(answer.read().decode())
    assert found['records_behind{flow="notes"}'] == 0
    assert found['outputs_total{flow="notes",result="different"}'] == 0
