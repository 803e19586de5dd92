"""tests/README.md lists for each fault and store whether it is tested here, and if not, why not."""

from __future__ import annotations

from tests.support.docs_examples import ROOT
from tests.support.store_faults import FAULTS, IMPOSSIBLE, STORES, faults_table


def test_the_table_of_faults_is_the_one_that_is_run() -> None:
    text = (ROOT / "tests" / "README.md").read_text(encoding="utf-8")
    assert faults_table() in text, f"tests/README.md lacks this table:\n{faults_table()}"


def test_each_reason_belongs_to_a_fault_and_a_store() -> None:
    assert {(store, fault) for store in STORES for fault in FAULTS} > IMPOSSIBLE.keys()
