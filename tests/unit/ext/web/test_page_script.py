"""Goal: the page shows what its address names, and no line of its map crosses a box.

Method: its script runs in node, in front of a document of a few lines and a server that answers when the test lets it.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from sqe_chain.ext.web.application import STATIC

NODE = shutil.which("node") or ""
pytestmark = pytest.mark.skipif(not NODE, reason="node is not installed")

DOCUMENT = """
class Element {
  constructor(name) { this.name = name; this.attributes = {}; this.children = []; this.style = {}; }
  append(...nodes) { this.children.push(...nodes); }
  replaceChildren(...nodes) { this.children = nodes; }
  setAttribute(name, value) { this.attributes[name] = String(value); }
  addEventListener() {}
  focus() {}
  set textContent(text) { this.children = [text]; }
  get textContent() { return this.children.map((one) => one.textContent ?? String(one)).join(""); }
  find(name) { return [...(this.name === name ? [this] : []), ...this.children.flatMap((one) => one.find?.(name) ?? [])]; }
}
const root = new Element("main"), other = new Element("p"), waiting = {}, handlers = {};
globalThis.document = { getElementById: (id) => (id === "main" ? root : other), createElement: (name) => new Element(name),
  createElementNS: (_, name) => new Element(name) };
globalThis.location = { hash: "#/" };
globalThis.addEventListener = (name, handler) => { handlers[name] = handler; };
globalThis.EventSource = class { addEventListener() {} };
const answers = (path) => (path === "/api/flows" ? { flows: FLOWS } : null);
globalThis.fetch = (path) => new Promise((resolve) => {
  const answer = (body) => resolve({ ok: true, json: async () => body });
  if (answers(path)) answer(answers(path)); else waiting[path] = answer;
});
const settled = () => new Promise((resolve) => setTimeout(resolve, 0));
const go = async (hash) => { location.hash = hash; handlers.hashchange(); await settled(); };
"""


def run(script: str, flows: object = ()) -> Any:
    """What a script prints as JSON, after the page has begun."""
    page = (STATIC / "app.js").read_text(encoding="utf-8")
    text = f"const FLOWS = {json.dumps(flows)};\n{DOCUMENT}\n{page}\nawait settled();\n{script}"
    done = subprocess.run(
        [NODE, "--input-type=module"], input=text, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_answer_for_a_page_that_was_left_is_dropped() -> None:
    """The first page is slow, the second is there before it."""
    first, second = run("""
        const title = () => main.find("h1")[0].textContent;
        await go("#/runbook/Slow");
        await go("#/runbook/Fast");
        waiting["/api/runbook/Fast"]({ text: "fast" });
        await settled();
        const before = title();
        waiting["/api/runbook/Slow"]({ text: "slow" });
        await settled();
        console.log(JSON.stringify([before, title()]));
    """)
    assert (first, second) == ("Runbook: Fast", "Runbook: Fast")


def test_an_older_answer_for_the_same_page_is_dropped_and_a_newer_one_is_shown() -> None:
    shown = run("""
        const text = () => main.find("p").map((one) => one.textContent).join();
        await go("#/runbook/Same");
        const old = waiting["/api/runbook/Same"];
        await go("#/runbook/Same");
        const now = waiting["/api/runbook/Same"], found = [];
        now({ text: "now" }); await settled(); found.push(text());
        old({ text: "old" }); await settled(); found.push(text());
        console.log(JSON.stringify(found));
    """)
    assert shown == ["now", "now"]


def flow(name: str, reads: list[str], writes: list[str]) -> dict[str, Any]:
    return {"name": name, "reads": reads, "writes": writes, "plan": 1, "lag": 0, "claimed_by": None}


CHAIN = [flow(f"f{n}", [f"t{n}"], [f"t{n + 1}"]) for n in range(4)]
MAPS = {
    "a chain": CHAIN,
    "past columns": [*CHAIN, flow("far", ["t0", "t1"], ["t4"]), flow("farther", ["t0"], ["t4", "end"])],
    "back": [*CHAIN, flow("loop", ["t4"], ["t1"]), flow("own", ["t2"], ["t2"])],
    "many": [flow(f"g{n}", [f"s{n % 3}", "s0"], [f"s{n % 3 + 3}", f"e{n}"]) for n in range(9)],
}


def points(way: str) -> Iterator[tuple[float, float]]:
    """Points of a path of lines and curves."""
    at = (0.0, 0.0)
    for command, text in re.findall(r"([MCHV])([^MCHV]*)", way):
        given = [float(number) for number in re.findall(r"-?[0-9.]+", text)]
        ends = {"M": given, "C": given, "H": [*given, at[1]], "V": [at[0], *given]}[command]
        if command != "C":
            begin, at = at, (ends[0], ends[1])
            ways = [
                (begin[0] + (at[0] - begin[0]) * t / 50, begin[1] + (at[1] - begin[1]) * t / 50)
                for t in range(51)
            ]
            yield from ways if command != "M" else ()
            continue
        knots = [at, *zip(ends[::2], ends[1::2], strict=True)]
        for step in range(51):
            t = step / 50
            weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3)
            yield tuple(
                sum(w * knot[axis] for w, knot in zip(weights, knots, strict=True)) for axis in (0, 1)
            )  # type: ignore[misc]
        at = knots[3]


@pytest.mark.parametrize("name", MAPS)
def test_no_line_of_the_map_crosses_a_box(name: str) -> None:
    ways, boxes, size = run(
        """
        console.log(JSON.stringify([main.find("path").map((one) => one.attributes.d),
          main.find("g").map((one) => one.attributes.transform), main.find("svg")[0].attributes.viewBox]));
    """,
        MAPS[name],
    )
    places = [tuple(map(float, re.findall(r"[0-9.]+", box))) for box in boxes]
    width, height = map(float, size.split()[2:])
    assert len(set(places)) == len(places) > 0
    assert len(ways) == sum(len(one["reads"]) + len(one["writes"]) for one in MAPS[name])
    for way in ways:
        for x, y in points(way):
            assert 0 <= x <= width
            assert 0 <= y <= height
            assert not any(left + 1 < x < left + 179 and top + 1 < y < top + 49 for left, top in places), way
