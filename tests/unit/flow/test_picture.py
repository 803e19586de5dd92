"""Goal: a flow can be seen, in a terminal and in a notebook. Method: a flow with everything in it."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from google.protobuf.wrappers_pb2 import Int64Value, StringValue

from sqe_chain import Flow
from sqe_chain.stages import Tumbling


def plausible(word: StringValue) -> bool:
    return bool(word.value)


def add(total: Int64Value, word: StringValue) -> None:
    total.value += len(word.value)


def everything() -> Flow:
    flow = Flow("everything", poison="dead_letter")
    words = flow.source(["words", "more"], StringValue).filter(plausible)
    raw = flow.source("raw", lambda data: StringValue(value=data.decode()), raw=True)
    merged = words.merge(raw)
    once = merged.deduplicate("once", lambda word: word.value, 60_000)
    once.dropped().to("dropped", partitions=2)
    stage = once.aggregate("per-word", key=lambda word: word.value, state=Int64Value, fold=add)
    stage.changes().to("totals", partitions=1)
    once.windowed("per-minute", Tumbling(60_000), state=Int64Value, fold=add).to("minutes", partitions=1)
    return flow


def test_a_tree_shows_every_node_once() -> None:
    assert everything().to_text().splitlines() == [
        "flow everything",
        "├─ source words, more: google.protobuf.StringValue",
        "│  └─ filter: plausible",
        "│     └─ merge",
        "│        └─ deduplicate once",
        "│           ├─ dropped",
        "│           │  └─ to dropped: 2 partitions",
        "│           ├─ aggregate per-word: google.protobuf.Int64Value",
        "│           │  └─ changes",
        "│           │     └─ to totals: 1 partition",
        "│           └─ windowed per-minute: google.protobuf.Int64Value",
        "│              └─ to minutes: 1 partition",
        "└─ source raw: raw",
        "   └─ merge (above)",
    ]


def test_a_picture_is_sound_and_no_two_boxes_lie_on_each_other() -> None:
    flow = everything()
    assert flow._repr_html_() == flow.to_svg()
    root = ET.fromstring(flow.to_svg())  # noqa: S314 - our own
    space = "{http://www.w3.org/2000/svg}"
    boxes = [(box.get("x"), box.get("y")) for box in root.iter(f"{space}rect")]
    assert len(boxes) == len(set(boxes)) == len(flow.nodes)
    lines = list(root.iter(f"{space}path"))
    assert len(lines) == sum(len(node.parents) for node in flow.nodes)
    assert any("declared at" in (title.text or "") for title in root.iter(f"{space}title"))


def test_names_are_escaped() -> None:
    flow = Flow("escaped")
    flow.source("words", StringValue).map(lambda word: word).to("out", partitions=1)
    strange = type("<b>&", (), {"__call__": lambda self, word: word})()
    flow.source("more", StringValue).map(strange).to("out2", partitions=1)
    ET.fromstring(flow.to_svg())  # noqa: S314 - our own
    assert "&lt;b&gt;&amp;" in flow.to_svg()


def test_an_empty_flow_can_be_shown() -> None:
    assert Flow("empty").to_text() == "flow empty"
    ET.fromstring(Flow("empty").to_svg())  # noqa: S314 - our own
