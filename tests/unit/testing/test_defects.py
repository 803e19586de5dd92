"""The defects that docs/reliability.md tells of can still be put back, and the simulator finds those it finds soonest."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.defect_injection import PACKAGE, time_to_detect
from tests.support.defects import DEFECTS, Defect

SOON = ("windows ask a heartbeat function again", "a third attempt at a batch")


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_every_text_stands_where_it_is_replaced_and_what_comes_of_it_compiles(defect: Defect) -> None:
    files: dict[str, str] = {}
    for one in defect.replacements:
        text = files.get(one.file) or (PACKAGE / one.file).read_text()
        assert text.count(one.new) == 1, one
        assert one.new != one.old
        files[one.file] = text.replace(one.new, one.old)
    for file, text in files.items():
        compile(text, file, "exec")


def test_the_page_tells_of_each_of_them() -> None:
    page = Path(PACKAGE.parent, "docs", "reliability.md").read_text()
    told = re.findall(r"^\| (.+?) \| +(?:\d|not\b)", page, re.MULTILINE)
    assert told == [defect.name for defect in DEFECTS]


@pytest.mark.parametrize("begin", SOON)
def test_it_is_found(begin: str) -> None:
    (defect,) = (one for one in DEFECTS if one.name.startswith(begin))
    finding = time_to_detect(defect.replacements, seconds=120)
    assert finding.seconds is not None, finding.output
