"""Goal: an operator can use the page in a browser. Method: Debian's Chromium without a screen, a page in front of flows in memory.

Each page is also checked by axe-core for WCAG AA, in light and dark.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import sync_playwright

from sqe_chain.ext.web.command import serve
from sqe_chain.flow import Flow
from sqe_chain.testing import Rehearsal
from tests.unit.ext.web.test_pages import HOSTILE, Client, client

pytestmark = pytest.mark.release

__all__ = ["client"]
SHOTS = Path(__file__).parents[2] / "docs" / "images"
CHROMIUM = shutil.which("chromium") or ""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(params=["light", "dark"])
def page(browser: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    context = browser.new_context(color_scheme=request.param, viewport={"width": 1100, "height": 800})
    opened = context.new_page()
    opened.problems = []
    opened.on("pageerror", lambda error: opened.problems.append(str(error)))
    opened.on("console", lambda line: opened.problems.append(line.text) if line.type == "error" else None)
    opened.on("dialog", lambda dialog: opened.problems.append(f"dialog {dialog.message}"))
    yield opened
    assert opened.problems == []
    context.close()


def check_accessible(page: Any) -> None:
    found = Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]})
    assert found.violations_count == 0, found.generate_report()


def shoot(page: Any, name: str) -> None:
    """Take the picture that the docs show, if it is asked for: SQE_CHAIN_SCREENSHOTS=1."""
    if os.environ.get("SQE_CHAIN_SCREENSHOTS"):
        dark = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
        page.screenshot(path=SHOTS / f"web-{name}-{'dark' if dark else 'light'}.png")


def test_from_the_map_to_the_records_of_a_key(page: Any, client: Client) -> None:
    page.goto(f"http://127.0.0.1:{client.port}/")
    page.wait_for_selector("svg.map")
    page.wait_for_selector("text=live,")
    check_accessible(page)
    shoot(page, "flows")
    page.click("table >> text=totals")
    page.wait_for_selector("h1:has-text('Flow totals')")
    assert "up/numbers" in page.inner_text("main")
    check_accessible(page)
    shoot(page, "flow")
    page.click("table >> text=total")
    page.fill("#prefix", "k")
    page.click("text=Search")
    page.click("text=k0")
    page.click("button:has-text('Trace')")
    page.wait_for_selector("#verdict")
    assert page.inner_text("#verdict").startswith("equal: the stored state is what 10 records give")
    check_accessible(page)
    shoot(page, "trace")


def test_a_record_and_what_became_of_it(page: Any, client: Client) -> None:
    page.goto(f"http://127.0.0.1:{client.port}/#/record")
    page.fill("#record", "numbers[0]@0")
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-verdict=counted]")
    assert "raw[" in page.inner_text(".chain")
    assert "null" not in page.inner_text("main")
    check_accessible(page)
    page.fill("#record", "nonsense")
    page.keyboard.press("Enter")
    page.wait_for_selector("[role=alert]")


def test_a_hostile_key_is_text(page: Any, client: Client) -> None:
    page.goto(f"http://127.0.0.1:{client.port}/#/stage/totals/total")
    page.wait_for_selector("text=k0")
    assert page.locator("main img").count() == 0
    page.click(f"text=0x{HOSTILE.encode().hex()}")
    page.wait_for_selector("h2:has-text('State')")
    assert page.locator("main img").count() == 0


def test_dead_letter_records_are_shown_with_the_command_for_them(page: Any, client: Client) -> None:
    page.goto(f"http://127.0.0.1:{client.port}/#/dead-letters/totals")
    page.wait_for_selector("text=no <b>seven</b>")
    page.wait_for_selector("text=sqe-chain failed list")
    check_accessible(page)


def test_live_news_come_again_after_an_answer_that_is_none(page: Any, client: Client) -> None:
    """A browser asks again by itself only where it got no answer; a proxy in front of a server that restarts gives one."""
    asked = list[str]()

    def refuse(route: Any) -> None:
        asked.append("again")
        route.fulfill(status=204)

    page.route("**/api/live", refuse)
    page.goto(f"http://127.0.0.1:{client.port}/")
    page.wait_for_selector("text=not connected, trying again")
    page.unroute("**/api/live")
    page.wait_for_selector("text=/^live, /")
    assert asked


def test_a_phone_needs_no_sideways_scrolling(browser: Any, client: Client) -> None:
    context = browser.new_context(viewport={"width": 360, "height": 740})
    phone = context.new_page()
    for path in ("", "#/flow/totals", "#/stage/totals/total", "#/record/numbers[0]@0"):
        phone.goto(f"http://127.0.0.1:{client.port}/{path}")
        phone.wait_for_selector("h1")
        assert phone.evaluate("document.documentElement.scrollWidth") <= 360, path
    context.close()


def test_the_keyboard_reaches_everything(page: Any, client: Client) -> None:
    page.goto(f"http://127.0.0.1:{client.port}/")
    page.wait_for_selector("table")
    reached = set()
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.textContent.slice(0, 20)"))
    assert {"Skip to content", "Flows", "Record", "totals"} <= reached


MARKS = '<img src=x onerror="alert(1)">\x1b[2J\u202eexe.\u2066'


@pytest.fixture
def hostile() -> Iterator[Any]:
    """A page in front of records, states, errors and dead-letter records whose texts are all hostile."""

    def refuse(value: str) -> str:
        if value.startswith("no"):
            raise ValueError(MARKS + value)
        return value

    def keep(state: dict[str, str], value: str) -> None:
        state["text"] = value

    flow = Flow("hostile", state_partitions=1, poison="dead_letter", dead_letter_partitions=1)
    stage = flow.source("texts", str).map(refuse)
    stage.aggregate("last", key=lambda value: value, state=dict, fold=keep)
    service = Rehearsal(flow)
    for text in (MARKS, "no" + MARKS, "long" * 2_000, "plain"):
        service.feed("texts", text, key=text, timestamp_ms=1)
    service.log.append("texts", 0, MARKS.encode(), MARKS.encode(), [(MARKS, MARKS.encode())], 2)
    service.log.append(
        "hostile.dead-letters", 0, MARKS.encode(), MARKS.encode(), [(MARKS, MARKS.encode())], 2
    )
    service.run_until_caught_up()
    flows = {"hostile": service.flow}
    with serve(service.log, service.stores, flows, "127.0.0.1", 0, show_payloads=True) as port:
        yield port


def test_hostile_text_of_all_kinds_changes_no_page(page: Any, hostile: int) -> None:
    key = f"0x{MARKS.encode().hex()}"
    for path, text in (
        ("flow/hostile", "ValueError"),
        ("stage/hostile/last", "1 keys are too long"),
        (f"key/hostile/last/{key}", "\\u202e"),
        ("record/texts[0]@0", "counted"),
        ("record/texts[0]@1", "skipped"),
        ("record/texts[0]@4", "skipped"),
        ("dead-letters/hostile", "ValueError"),
    ):
        page.goto(f"http://127.0.0.1:{hostile}/#/{path}")
        page.reload()
        page.wait_for_selector(f"main >> text={text}")
        shown = page.inner_text("main")
        assert not {"\x1b", "\u202e", "\u2066"} & set(shown), path
        assert page.locator("main img, main script").count() == 0, path
        assert "null" not in shown, path
        if path.startswith("key/"):
            page.click("button:has-text('Trace')")
            page.wait_for_selector("#verdict:has-text('equal')")
            assert not {"\x1b", "\u202e", "\u2066"} & set(page.inner_text("main"))
