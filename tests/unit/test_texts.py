"""Goal: what a person reads is in a person's words. Method: texts are checked as they are shown, and in the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.wrappers_pb2 import StringValue

import sqe_chain
from sqe_chain.errors import PartitionsMismatch
from sqe_chain.flow import Flow
from sqe_chain.plans.layout import Layout, StageLayout
from sqe_chain.ports import Header, Home
from sqe_chain.task.exclusion import Exclusion
from sqe_chain.testing import Rehearsal
from tests.support.word_flows import append_word, first_letter, same_key

OURS = re.compile(r"\b(sieves?|stray|strays|surroundings|cells?|levels?)\b")
"""Words of the code that no user has to know."""
PACKAGE = Path(sqe_chain.__file__).parent


def texts(tree: ast.AST) -> Iterator[ast.Constant]:
    """String constants in errors and in notices."""
    for node in ast.walk(tree):
        spoken: list[ast.AST] = []
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            name = getattr(node.exc.func, "id", "")
            spoken = [] if name == "AssertionError" else list(node.exc.args)
        elif isinstance(node, ast.Call):
            spoken = [keyword.value for keyword in node.keywords if keyword.arg == "text"]
        for part in spoken:
            yield from (
                one for one in ast.walk(part) if isinstance(one, ast.Constant) and isinstance(one.value, str)
            )


def test_no_text_uses_a_word_of_the_code() -> None:
    for file in sorted(PACKAGE.rglob("*.py")):
        for constant in texts(ast.parse(file.read_text(encoding="utf-8"))):
            assert isinstance(constant.value, str)
            assert not OURS.search(constant.value), f"{file}:{constant.lineno}: {constant.value}"


def test_changes_by_a_new_layout_are_described_in_words() -> None:
    flow = Flow("grows", state_partitions=2)
    stage = flow.source("words", StringValue).aggregate(
        "first", key=same_key, state=StringValue, fold=append_word
    )
    service = Rehearsal(flow)
    service.run_until_caught_up()
    grown = Flow("grows", state_partitions=2)
    stage = grown.source("words", StringValue).aggregate(
        "first", key=same_key, state=StringValue, fold=append_word
    )
    stage.changes().to("totals", key=first_letter, partitions=3)
    grown.source("more", StringValue).aggregate("second", key=same_key, state=StringValue, fold=append_word)
    service.log.grow("words", 3)
    again = Rehearsal(grown, log=service.log, store=service.stores, partitions={"more": 2})
    again.run_until_caught_up()
    (text,) = [str(fields["text"]) for fields in again.events("notice") if "brings in" in str(fields["text"])]
    assert text == (
        "plan 1 brings in stage 'second', output 'totals' (3 partitions of 'totals'), input 'more' with 2 partitions, "
        "partitions 1 to 2 of input 'words'"
    )


def test_layouts_are_compared_in_words() -> None:
    stage = StageLayout(0, 1, "flow")
    before = Layout(8, {"old": stage}, {}, {"words": ("aa", 2)})
    after = Layout(8, {}, {}, {"words": ("bb", 2)})
    assert after.changes_since(before) == ["stage 'old' is gone"], (
        "a topic created again has a notice of its own"
    )
    assert before.changes_since(before) == []


def test_records_of_stores_are_shown_without_python() -> None:
    header = Header(3, "run-a", 7, "id7", "id8", b"k")
    assert str(header) == "plan 7 (id7), plan id8 begun, stamped by run run-a with epoch 3"
    assert str(Home(4, "", "{}", 7, "id7")) == "plan 7 (id7), claimed by no run with epoch 4"
    assert str(Home(4, "run-b", "{}", -1, "")) == "no plan, claimed by run run-b with epoch 4"
    assert str(Exclusion("words", 1, 5, "skip", "ValueError", "no")) == "words[1]@5 (ValueError: no)"


def test_too_few_partitions_do_not_tempt_into_another_error() -> None:
    """The error must not ask the user to add partitions to a flow that was created with two."""
    flow = Flow("few")
    flow.source("words", StringValue).to("out", key=first_letter, partitions=2)
    service = Rehearsal(flow)
    service.run_until_caught_up()
    more = Flow("few")
    more.source("words", StringValue).to("out", key=first_letter, partitions=3)
    with pytest.raises(PartitionsMismatch, match=r"permanent: declare that, or give .* another name"):
        Rehearsal(more, log=service.log).start()
