"""A plugin of pytest: the fixture `prove`, bounded for tests, and the option ``--sqe-chain-seed``.

pytest loads it where sqe-chain is installed. A failure shows the seed, with which it fails again.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from sqe_chain.testing import Proof

SECONDS: Final = 5.0
"""How long a proof in a test takes at most, until it finds something."""
SCHEDULES: Final = 300
"""How many schedules it runs at most."""
_OPTION: Final = "--sqe-chain-seed"
_MOST: Final = 1 << 32


def _seed(text: str) -> int:
    if text == "random":
        return random.SystemRandom().randrange(_MOST)
    return int(text)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    group = parser.getgroup("sqe-chain")
    text = "seed of the schedules that the fixture prove draws: a number, or random (default: 0)"
    group.addoption(_OPTION, type=_seed, default=0, metavar="SEED", help=text)


def pytest_report_header(config: pytest.Config) -> str | None:
    """Show the seed, if it is not the default."""
    seed = config.getoption(_OPTION)
    return f"sqe-chain: {_OPTION}={seed}" if seed else None


@pytest.fixture(name="prove")
def prove_fixture(request: pytest.FixtureRequest) -> Callable[..., Proof]:
    """`sqe_chain.testing.prove`, for 5 seconds and 300 schedules at most, with the seed of ``--sqe-chain-seed``.

    Every argument can be given all the same.
    """
    from sqe_chain.testing import prove  # noqa: PLC0415 - pytest starts sooner where nobody asks for it

    seed: Any = request.config.getoption(_OPTION)
    request.node.add_report_section("call", "sqe-chain", f"{_OPTION}={seed}")
    return partial(prove, seconds=SECONDS, schedules=SCHEDULES, seed=seed, progress=False)
