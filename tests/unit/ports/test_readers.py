"""Goal: a set of partitions is what its text lists, whatever its order. Method: compared with sets of numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqe_chain.errors import ConfigurationError
from sqe_chain.ports.readers import MOST_RANGES, Partitions, flow_of, scope_of, union_of

LAST = 30
ranges = st.tuples(st.integers(0, 20), st.one_of(st.none(), st.integers(0, 8))).map(
    lambda one: f"{one[0]}-" if one[1] is None else f"{one[0]}-{one[0] + one[1]}"
)
texts = st.lists(ranges, min_size=1, max_size=5).map(",".join)


def numbers(text: str) -> set[int]:
    found = set[int]()
    for one in text.split(","):
        first, _, last = one.partition("-")
        found |= set(range(int(first), int(last or LAST) + 1))
    return found


@given(texts)
def test_a_set_is_what_its_text_lists(text: str) -> None:
    found = Partitions.parse(text)
    assert {number for number in range(LAST + 1) if number in found} == numbers(text)
    assert Partitions.parse(str(found)) == found
    assert flow_of(scope_of("a.b", found, 0)) == "a.b"
    assert flow_of(scope_of("a.b", found, 12)) == "a.b"


@given(texts, texts)
def test_what_is_shared_and_what_is_missing(one: str, other: str) -> None:
    first, second = Partitions.parse(one), Partitions.parse(other)
    assert first.shared(second) == min(numbers(one) & numbers(other), default=None)
    missing = first.without(second)
    expected = min(numbers(one) - numbers(other), default=None)
    assert missing == expected or (expected is None and missing is not None and missing > LAST)
    assert union_of([first, second]) == Partitions.parse(f"{one},{other}")


@pytest.mark.parametrize(
    "text", ["", "a", "3-1", "-3", "1--2", "0-3-5", "1,,2", "0-9999999", "٣", "1.5", " "]
)
def test_what_is_no_set_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="expected numbers and ranges"):
        Partitions.parse(text)


def test_a_set_has_a_limited_number_of_ranges() -> None:
    with pytest.raises(ConfigurationError, match="at most"):
        Partitions.parse(",".join(str(2 * number) for number in range(MOST_RANGES + 1)))
