"""A service checks its settings before it does anything: every number, its type and its bounds."""

from __future__ import annotations

from dataclasses import fields

import pytest

from sqe_chain.errors import ConfigurationError
from sqe_chain.features.settings import GROUPS, settings_of
from sqe_chain.plans.settings import Settings

NUMBERS = [
    field.name
    for kind in (Settings, *GROUPS)
    for field in fields(kind)
    if type(field.default) in (int, float)
]
WRONG = [-1, 1.5, "10", True, None, 10**16, float("nan"), float("inf")]


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", WRONG)
def test_every_number_is_checked(name: str, value: object) -> None:
    """A setting that is added with a number for its default, and without a check, fails here."""
    with pytest.raises(ConfigurationError, match=f"{name}="):
        settings_of(**{name: value})


@pytest.mark.parametrize(("name", "least"), [("keep_plans", 2), ("max_records", 1), ("max_excluded", 0)])
def test_the_least_is_accepted_and_less_is_not(name: str, least: int) -> None:
    assert getattr(Settings(**{name: least}), name) == least  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=name):
        Settings(**{name: least - 1})  # type: ignore[arg-type]


@pytest.mark.parametrize("share", [0, 0.0, 0.1, 1, 1.0])
def test_a_share_lies_between_nothing_and_everything(share: float) -> None:
    assert Settings(max_excluded_share=share).max_excluded_share == share
    with pytest.raises(ConfigurationError, match="max_excluded_share"):
        Settings(max_excluded_share=1.01)
