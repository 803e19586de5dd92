"""Goal: texts follow docs/contributing/writing.md. Method: all prose of the repository is read; planted faults are found."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.support import prose


@pytest.mark.timeout(900)  # ten seconds of processor time, which a busy machine gives in minutes
def test_no_text_has_a_fault() -> None:
    assert [str(fault) for fault in prose.all_faults()] == []


def test_sentences_of_a_page_are_short_on_average() -> None:
    means = {}
    for file in prose.files("README.md", "docs", "CONTRIBUTING.md", "CHANGELOG.md"):
        counts = [
            words
            for passage in prose.passages(file)
            for sentence in prose.sentences(passage.text)
            if (words := prose.count_words(sentence)) > 3
        ]
        means[file] = sum(counts) / max(1, len(counts))
    assert {file: round(mean, 1) for file, mean in means.items() if mean > 18} == {}


PLANTED = {
    "docs/page.md": "The service stands there.\n\n- It " + "really " * 26 + "works.\n",
    "sqe_chain/code.py": '"""Tells nobody."""\n\n# whoever reads\nraise ValueError(f"{x} was left out")\n'
    'parser.add_argument(help="go on for good")\nfor one in x: pass\n',
    "tests/test_x.py": "def test_it_is_told(): pass\n",
    "Makefile": "all:  ## Runs it once more\n",
}


@pytest.mark.parametrize("file", PLANTED)
def test_planted_faults_are_found(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(PLANTED[file], encoding="utf-8")
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    rules = Counter(fault.rule.split(" ")[0] for fault in prose.faults(file))
    expected = {
        "docs/page.md": {"'stands'": 1, "a": 1},
        "sqe_chain/code.py": {"'Tells'": 1, "'whoever'": 1, "'left": 1, "'for": 1},
        "tests/test_x.py": {"'told'": 1},
        "Makefile": {"'once": 1},
    }
    assert rules == expected[file]
    if file.startswith("sqe_chain"):
        assert len(list(prose.vague_names(file))) == 1


def test_what_is_not_prose_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = "Call `tell()` or [this page](stand.md).\n\n```python\ntold = 1\n```\n\nLetters and digits; heartbeats; understand.\n"
    (tmp_path / "page.md").write_text(page, encoding="utf-8")
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    assert list(prose.faults("page.md")) == []
