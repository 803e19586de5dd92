"""Goal: on the page of a flow an operator sees batches by step, the last error with what to do, event time, and a refused trace.

Method: Debian's Chromium without a screen, the page beside a flow in memory whose history is kept.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.errors import Unavailable
from sqe_chain.ext.web import application
from sqe_chain.ext.web.history import History
from sqe_chain.protocol.with_plans import StagedService
from sqe_chain.testing import Rehearsal
from tests.browser.test_page import browser, check_accessible, page, shoot
from tests.support.environments import environment_of
from tests.unit.ext.explain.test_trace import waiting
from tests.unit.ext.web.test_flow_page import page_of
from tests.unit.ext.web.test_pages import Client, client, totals

pytestmark = pytest.mark.release

__all__ = ["browser", "client", "page"]


@pytest.fixture
def beside() -> Iterator[Client]:
    """The page beside a service that has made four batches and could not process a record."""
    service, history = Rehearsal(totals(), partitions={"numbers": 2}), History()
    env = environment_of(service)
    env.observer = history
    run = StagedService(env)
    run.start()
    for number in range(40):
        service.feed("numbers", Int64Value(value=number), partition=number % 2, timestamp_ms=number)
        if number % 10 == 9:
            run.batch()
    env.commits.settle()
    with page_of(service, history) as opened:
        yield opened


def test_batches_by_step_and_from_the_last_error_to_its_entry_of_the_runbook(
    page: Any, beside: Client
) -> None:
    page.goto(f"http://127.0.0.1:{beside.port}/#/flow/totals")
    page.wait_for_selector(".timeline >> nth=3")
    assert page.locator(".timeline").count() == 4
    text = page.inner_text("main")
    assert "OPEN PLAN\nnone" in text.replace("open plan", "OPEN PLAN")
    for step in ("process", "seal", "publish", "persist", "commit"):
        assert page.locator(f".timeline .step-{step}").count() == 4
    check_accessible(page)
    shoot(page, "batches")
    page.click("text=Runbook: PoisonError")
    page.wait_for_selector("h1:has-text('Runbook: PoisonError')")
    assert "**" not in page.inner_text("main")
    assert page.locator("main pre").count() >= 1
    check_accessible(page)


def test_the_newest_skipped_record_is_a_link(page: Any, client: Client) -> None:
    page.goto(f"http://127.0.0.1:{client.port}/#/flow/totals")
    page.click("#last-error a >> nth=0")
    page.wait_for_selector("[data-verdict=skipped]")


def test_what_event_time_waits_for(page: Any) -> None:
    service = waiting()
    with page_of(service) as opened:
        page.goto(f"http://127.0.0.1:{opened.port}/#/flow/hours")
        page.wait_for_selector("text=numbers[1]")
        assert "records that wait\n11" in page.inner_text("main").replace(
            "RECORDS THAT WAIT", "records that wait"
        )


def test_a_trace_that_is_refused_names_the_reason(
    page: Any, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, end = threading.Event(), threading.Event()

    def slow(*_: object, **__: object) -> None:
        begun.set()
        end.wait(30)
        raise Unavailable("the broker is away")

    monkeypatch.setattr(application, "trace", slow)
    other = threading.Thread(target=lambda: client.ask("/api/flows/totals/stages/total/trace/k1"))
    other.start()
    assert begun.wait(20)
    page.goto(f"http://127.0.0.1:{client.port}/#/key/totals/total/k0")
    page.click("button:has-text('Trace')")
    page.wait_for_selector("[role=alert]:has-text('a trace or why-not is under way')")
    assert any("429" in problem for problem in page.problems)
    page.problems.clear()  # the browser reports each refusal
    end.set()
    other.join(20)
    page.click("button:has-text('Trace')")
    page.wait_for_selector("[role=alert]:has-text('the broker is away')")
