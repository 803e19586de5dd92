"""Goal: the page answers for one record of each fate what became of it.

Method: flows in memory to which each fate has happened; a browser asks the page for each record.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.testing import Rehearsal
from tests.browser.test_page import browser, page
from tests.unit.ext.explain.test_trace import hours, records_of, republisher, run_chain, totals, waiting
from tests.unit.ext.web.test_flow_page import page_of
from tests.unit.ext.web.test_pages import client

pytestmark = pytest.mark.release

__all__ = ["browser", "client", "page"]


def shown_fate(page: Any, port: int, place: str) -> str:
    """The verdict that the page shows for a record."""
    page.goto(f"http://127.0.0.1:{port}/#/record/{place}")
    page.reload()
    page.wait_for_selector("[data-verdict], [role=alert]")
    return str(page.locator("[data-verdict]").first.get_attribute("data-verdict"))


def test_of_records_in_order_of_arrival(page: Any) -> None:
    service = run_chain(totals())
    found: dict[str, str] = {}
    seen: set[int] = set()
    for (topic, partition, offset), value in records_of(service, "numbers"):
        fate = "replay" if value in seen else {500: "filtered", 50: "skipped"}.get(value, "counted")
        found.setdefault(fate, f"{topic}[{partition}]@{offset}")
        seen.add(value)
    assert set(found) == {"replay", "filtered", "skipped", "counted"}
    with page_of(service) as opened:
        for fate, place in found.items():
            assert shown_fate(page, opened.port, place) == fate


def test_of_records_by_event_time_and_of_records_that_are_not_there(page: Any) -> None:
    service = run_chain(hours())
    upstream = Rehearsal(republisher(), log=service.log)

    def place_of(value: int) -> str:
        topic, partition, offset = [place for place, read in records_of(service, "numbers") if read == value][
            -1
        ]
        return f"{topic}[{partition}]@{offset}"

    upstream.feed("raw", Int64Value(value=3), partition=0, timestamp_ms=1)
    upstream.run_until_caught_up()
    service.run_until_caught_up()
    upstream.feed("raw", Int64Value(value=999), partition=0, timestamp_ms=2)
    upstream.run_until_caught_up()
    with page_of(service) as opened:
        assert shown_fate(page, opened.port, place_of(3)) == "dropped"
        assert shown_fate(page, opened.port, place_of(999)) == "not read"
        partition = place_of(999).partition("[")[2].partition("]")[0]
        service.log.truncate_before("numbers", int(partition), 1)
        page.goto(f"http://127.0.0.1:{opened.port}/#/record/numbers[{partition}]@0")
        page.wait_for_selector("[role=alert]:has-text('has no record at offset 0')")
        page.problems.clear()  # the browser reports each answer 404


def test_of_a_record_that_waits_and_of_one_before_the_start(page: Any) -> None:
    service = waiting()
    with page_of(service) as opened:
        assert shown_fate(page, opened.port, "numbers[0]@5") == "waiting"
        assert "numbers[1] holds it back" in page.inner_text("main")
    late = Rehearsal(totals(), partitions={"numbers": 1})
    late.feed("numbers", Int64Value(value=1), timestamp_ms=1)
    late.settings = replace(late.settings, start="latest")
    late.run_until_caught_up()
    with page_of(late) as opened:
        assert shown_fate(page, opened.port, "numbers[0]@0") == "before start"
