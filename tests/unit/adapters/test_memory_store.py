"""The memory store goes back in time on demand, and shares nothing with its copies."""

from __future__ import annotations

import uuid

import pytest

from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.adapters.store_rules import SizeLimits
from sqe_chain.errors import ConfigurationError
from sqe_chain.ports import Header, Home, Views

CLAIM = Home(1, "run-a", "", 0, "p0")
BORN = Header(1, "run-a", 0, "p0")
NEXT = Header(1, "run-a", 1, "p1")


@pytest.fixture
def store() -> MemoryStore:
    made = MemoryStore(uuid.uuid4().hex)
    made.set_home("f", None, CLAIM, b"plan 0")
    made.write("f", "s", 0, None, BORN, [(b"k", b"0")])
    made.write("f", "s", 1, None, BORN, [(b"l", b"0")])
    return made


def go_on(store: MemoryStore) -> None:
    store.set_home("f", CLAIM, Home(1, "run-a", "", 1, "p1"), b"plan 1")
    store.beat("f", 1, "run-a")
    store.write("f", "s", 0, BORN, NEXT, [(b"k", b"1")])
    store.write("f", "s", 1, BORN, NEXT, [(b"l", b"1")])


def test_one_state_partition_goes_back(store: MemoryStore) -> None:
    copy = store.copy_part("f", "s", 0)
    go_on(store)
    store.restore_part("f", "s", 0, copy)
    assert store.read("f", "s", 0, [b"k"]) == (BORN, [b"0"], BORN)
    assert store.read("f", "s", 1, [b"l"]) == (NEXT, [b"1"], NEXT)
    store.restore_part("f", "s", 0)
    assert store.read("f", "s", 0, [b"k"]) == (None, [None], None)


def test_the_home_goes_back(store: MemoryStore) -> None:
    copy = store.copy_home("f")
    go_on(store)
    assert store.home("f")[1] == 1
    store.restore_home("f", copy)
    assert store.home("f") == (CLAIM, 0)
    assert (store.plan("f", 0), store.plan("f", 1)) == (b"plan 0", None)
    assert store.headers("f", "s", [0]) == [NEXT]
    store.restore_home("f")
    assert store.home("f") == (None, 0)


def test_everything_goes_back_and_may_do_so_again(store: MemoryStore) -> None:
    copy = store.copy_all()
    for _ in range(2):
        go_on(store)
        store.restore_all(copy)
        assert store.home("f") == (CLAIM, 0)
        assert store.headers("f", "s", [0, 1]) == [BORN, BORN]
        assert list(store.scan("f", "s", 0)) == [(b"k", b"0")]
    store.restore_all()
    assert store.home("f") == (None, 0)
    assert store.headers("f", "s", [0, 1]) == [None, None]


def test_memory_warns_that_its_durability_is_weak(store: MemoryStore) -> None:
    (sentence,) = store.check()
    assert "--allow-weak-durability" in sentence


def test_the_same_name_is_the_same_data(store: MemoryStore) -> None:
    assert MemoryStore(store.name).home("f")[0] == CLAIM
    assert MemoryStore(store.name + "x").home("f") == (None, 0)


def test_it_keeps_the_size_limits_that_it_is_given() -> None:
    """A key, a state with its view, a plan: each to its very limit, and not beyond."""
    narrow = MemoryStore(uuid.uuid4().hex, limits=SizeLimits(3, 10, 20))
    assert (narrow.max_key_bytes, narrow.max_state_bytes, narrow.max_plan_bytes) == (3, 10, 20)
    narrow.write("f", "s", 0, None, BORN, [(b"kkk", b"7777777")], Views("json", {b"kkk": ""}))
    narrow.write("f", "s", 0, BORN, NEXT, [(b"kkk", b"55555")], Views("json", {b"kkk": "ä"}))
    for rows, views in [
        ([(b"kkkk", b"")], None),
        ([(b"kkkk", None)], None),
        ([(b"a", b"1"), (b"kkk", b"8" * 8)], None),
        ([(b"kkk", b"666666")], Views("json", {b"kkk": "ä"})),
        ([(b"kkk", b"666666")], Views("hash", {b"kkk": {"a": "b"}})),
    ]:
        with pytest.raises(ConfigurationError, match="at most"):
            narrow.write("f", "s", 0, NEXT, BORN, rows, views)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"4 bytes.*at most 3"):
        narrow.read("f", "s", 0, [b"k", b"kkkk"])
    assert narrow.headers("f", "s", [0]) == [NEXT]
    narrow.set_home("f", None, CLAIM, b"p" * 20)
    with pytest.raises(ConfigurationError, match=r"21 bytes\. Expected at most 20"):
        narrow.set_home("f", CLAIM, Home(1, "run-a", "", 1, "p1"), b"p" * 21)
    assert narrow.home("f")[0] == CLAIM
