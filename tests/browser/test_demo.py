"""Goal: an operator sees on the page what the demo does to its services. Method: the demo with real kills, watched in Chromium."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.browser.test_page import browser
from tests.support.ports import own_port

pytestmark = [pytest.mark.release, pytest.mark.alone, pytest.mark.timeout(1800)]

__all__ = ["browser"]
ROOT = Path(__file__).resolve().parents[2]


def check_fates(page: Any, port: int) -> None:
    """Ask for a record that the traced key has, and for one that the republisher has published again."""
    counted = page.locator("main table a >> nth=0").get_attribute("href")
    page.goto(f"http://127.0.0.1:{port}/#/flow/fastening-totals")
    page.reload()
    again = page.locator("tr:has-text('fastening-standard/') a >> nth=0")
    again.wait_for()
    replay = again.get_attribute("href")
    for href, verdict in ((counted, "counted"), (replay, "replay")):
        page.goto(f"http://127.0.0.1:{port}/{href}")
        page.reload()
        page.wait_for_selector("[data-verdict]", timeout=300_000)
        assert page.locator("[data-verdict]").first.get_attribute("data-verdict") == verdict


def test_kills_replays_and_the_records_of_a_key_are_seen(browser: Any) -> None:
    port = own_port()
    command = [sys.executable, "-m", "services.demo", "--engine", "inprocess", "--messages", "20000"]
    demo = subprocess.Popen(
        [*command, "--kills", "2", "--timeout", "1400", "--web", str(port)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    seen: set[str] = set()
    page = browser.new_page()
    try:
        deadline = time.monotonic() + 1_400
        while len(seen) < 3 and time.monotonic() < deadline and demo.poll() is None:
            try:
                page.goto(f"http://127.0.0.1:{port}/#/flow/fastening-totals")
                page.reload()
                page.wait_for_selector("h1:has-text('Flow fastening-totals')", timeout=5_000)
                text = page.inner_text("main")
            except Exception:  # noqa: BLE001 - the page, or the flow, is not there yet
                time.sleep(1)
                continue
            claims = re.search(r"claims so far\s+(\d+)", text)
            if claims and int(claims[1]) >= 3:
                seen.add("kills")
            if "fastening-standard/" in text:
                seen.add("replays")
            if seen == {"kills", "replays"}:
                page.goto(f"http://127.0.0.1:{port}/#/stage/fastening-totals/per-robot")
                page.wait_for_selector("main table a")
                page.click("main table a >> nth=0")
                page.click("button:has-text('Trace')")
                page.wait_for_selector("#verdict", timeout=300_000)
                assert page.inner_text("#verdict").startswith("equal"), page.inner_text("#verdict")
                seen.add("trace")
                check_fates(page, port)
    finally:
        page.close()
        output, _ = demo.communicate(timeout=1_500)
    assert demo.returncode == 0, output
    assert seen == {"kills", "replays", "trace"}
    assert output.splitlines()[-1].startswith("exact:")
