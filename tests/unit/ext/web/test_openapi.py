"""Goal: states over HTTP do what their OpenAPI description promises, whatever is asked.

Method: schemathesis makes valid and invalid requests from the description; the names of a flow that exists are among its values.
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sqe_chain.ext.web import application
from sqe_chain.ext.web.openapi import OPENAPI
from tests.unit.ext.web.test_pages import Client, client

__all__ = ["client"]
KNOWN = {"flow": "totals", "stage": "total", "key": "k0"}


def description() -> dict[str, Any]:
    """The description, with names that exist."""
    described = copy.deepcopy(OPENAPI)
    for path in described["paths"].values():
        for parameter in path["get"].get("parameters", []):
            known = KNOWN.get(parameter["name"])
            if known is not None:
                parameter["schema"] = {"anyOf": [{"enum": [known]}, parameter["schema"]]}
    return described


@pytest.mark.timeout(300)
def test_answers_are_those_of_the_description(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "LONGEST_WAIT_S", 0.0)  # most offsets never come
    file = tmp_path / "openapi.json"
    file.write_text(json.dumps(description()), encoding="utf-8")
    config = tmp_path / "schemathesis.toml"
    config.write_text(
        '[checks.not_a_server_error]\nexpected-statuses = ["2xx", "3xx", "4xx", "504"]\n', encoding="utf-8"
    )
    program = Path(sys.executable).with_name("schemathesis")
    options = ("--phases", "coverage,fuzzing", "--max-examples", "60", "--seed", "1", "--no-color")
    checked = subprocess.run(
        [program, "--config-file", config, "run", file, "--url", f"http://127.0.0.1:{client.port}", *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout[-6_000:]
    assert "3 selected / 3 total" in checked.stdout


ANYTHING = st.text(st.characters(exclude_categories=["Cs"]), max_size=30).map(
    lambda text: quote(text, safe="")
)
DIGITS = st.just("9" * 5_000) | st.integers(-5, 100).map(str) | ANYTHING
FLOWS, STAGES = st.sampled_from(["totals"]) | ANYTHING, st.sampled_from(["total"]) | ANYTHING
TOPICS = st.sampled_from(["numbers", "totals.dead-letters"]) | ANYTHING
PATHS = st.one_of(
    st.builds("/api/flows/{}".format, FLOWS),
    st.builds("/api/topics/{}/replays".format, TOPICS),
    st.builds("/api/records/{}/{}/{}".format, TOPICS, DIGITS, DIGITS),
    st.builds("/api/flows/{}/dead-letters?limit={}".format, FLOWS, DIGITS),
    st.builds("/api/flows/{}/why-not/{}/{}/{}".format, FLOWS, TOPICS, DIGITS, DIGITS),
    st.builds("/api/flows/{}/stages/{}/trace/{}".format, FLOWS, STAGES, ANYTHING),
    st.builds("/api/runbook/{}".format, ANYTHING),
    st.builds("/{}".format, ANYTHING),
)


def test_no_path_of_the_page_makes_the_server_fail(client: Client) -> None:
    @settings(
        max_examples=150, deadline=None, database=None, derandomize=True, suppress_health_check=[*HealthCheck]
    )
    @given(PATHS)
    def ask(path: str) -> None:
        status, _, body = client.ask(path)
        assert status < 500, (path, body)

    ask()
