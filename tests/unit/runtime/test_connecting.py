"""Connections of a process are shared: who leaves does not close them under others."""

from __future__ import annotations

from typing import ClassVar
from uuid import uuid4

import pytest

from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.errors import ConfigurationError
from sqe_chain.flow import Flow
from sqe_chain.runtime import connecting
from sqe_chain.runtime import states as reading
from sqe_chain.runtime.states import get, states


class Closing(MemoryStore):
    """A store that records when it is closed."""

    closed: ClassVar[list[str]] = []

    def close(self) -> None:
        self.closed.append(self.name)


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> str:
    for module in (connecting, reading):
        monkeypatch.setattr(module, "open_store", lambda url: Closing(url.removeprefix("memory://")))
    Closing.closed.clear()
    return f"memory://{uuid4().hex}"


@pytest.fixture
def flow() -> Flow:
    flow = Flow("sums")
    source = flow.source("in", dict, raw=True)
    source.aggregate("sum", key=lambda _: "k", state=dict, fold=lambda state, value: None)
    return flow


def test_the_last_one_to_leave_closes_a_store(flow: Flow, url: str) -> None:
    with connecting.open_stores(flow.compile(), {"": url}):
        with states(flow, "sum", url):
            pass
        with connecting.open_stores(flow.compile(), {"": url}):
            pass
        assert not Closing.closed
    assert len(Closing.closed) == 1
    with pytest.raises(RuntimeError), connecting.open_stores(flow.compile(), {"": url}):
        raise RuntimeError
    assert len(Closing.closed) == 2


def test_what_is_read_key_by_key_stays_open(flow: Flow, url: str) -> None:
    with pytest.raises(ConfigurationError, match="sums"):
        get(flow, "sum", "k", store=url)
    with states(flow, "sum", url):
        pass
    assert not Closing.closed
