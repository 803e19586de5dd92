"""Reads one state by its key."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache
from typing import Any

from sqe_chain.codecs.registry import codec_tagged
from sqe_chain.errors import ConfigurationError, StoreInconsistent
from sqe_chain.flow import Flow
from sqe_chain.partitioner import key_bytes
from sqe_chain.ports import Location, StateStore
from sqe_chain.runtime.connecting import shared
from sqe_chain.runtime.locating import StoredStage, location_of
from sqe_chain.runtime.neighbours import check_stores
from sqe_chain.runtime.states import stage_named
from sqe_chain.stores import open_store


def get(flow: Flow | str, stage: str, key: str | bytes, *, store: str | Mapping[str, str]) -> Any | None:  # noqa: ANN401 - a state, of the type that the stage declares
    """The newest persisted state of a key, even after rebuilds, rewinds and new stages of the flow. Reads only.

    The flow need not run, and is not disturbed. While a rebuild switches over, this returns the old state or the new one,
    never a mixture. The connection stays open for the next call; `sqe_chain.states` reads many keys at once.

    >>> from sqe_chain.testing import MemoryStore, Rehearsal
    >>> words = Flow("words")
    >>> def count(total: dict, word: str) -> None:
    ...     total["times"] = total.get("times", 0) + 1
    >>> source = words.source("words", str, raw=True)
    >>> _ = source.aggregate("per-word", key=lambda word: word, state=dict, fold=count)
    >>> service = Rehearsal(words, store=MemoryStore("words-seen"))
    >>> for word in ("bee", "ant", "bee"):
    ...     _ = service.feed("words", word)
    >>> service.run_until_caught_up()
    >>> service.rebuild()
    >>> get(words, "per-word", "bee", store="memory://words-seen")
    {'times': 2}
    >>> get("words", "per-word", "cow", store="memory://words-seen") is None
    True

    Args:
        flow: the flow; or its name, in a program that does not have its code. Then states in JSON are returned as plain
            values, and protobuf messages only if their generated module was imported.
        stage: name of an aggregate.
        key: the key; text is UTF-8.
        store: address of the flow's store; or store name -> address, "" being the home store.

    Returns:
        The state; None: this key has none.

    Raises:
        ConfigurationError: an address is wrong; the store does not have this flow or stage; the stage has windows or
            is a filter; or the flow itself is needed to decode its states.
        StoreInconsistent: the stored state cannot be decoded.
        Unavailable: the store does not answer.
    """
    name = flow if isinstance(flow, str) else flow.name
    urls = {"": store} if isinstance(store, str) else store
    if not urls:
        raise ConfigurationError("get() needs the address of a store")
    home = _opened(urls.get("") or next(iter(urls.values())))
    where = _location(home, flow, stage)
    decode = _decoder(where, name, stage) if isinstance(flow, str) else _declared(where, flow, stage)
    stored = StoredStage(name, stage, home, _holding(where, name, stage, urls))
    (found,) = stored.read([key_bytes(key)], where)
    if found is None:
        return None
    try:
        return decode(found)
    except Exception as error:
        raise StoreInconsistent(
            f"the state of key {key!r} in stage {stage!r} of flow {name!r} is not a {where.type_name}: {error}"
        ) from error


def _location(home: StateStore, flow: Flow | str, stage: str) -> Location:
    """Where the stage is. Plans of older versions do not name the store: then it is the declared one."""
    name = flow if isinstance(flow, str) else flow.name
    located = home.locations(name) is not None
    if not located and isinstance(flow, str) and home.home(name)[0] is not None:
        raise ConfigurationError(
            f"flow {name!r} has not run since states have permanent names: give the flow itself instead of its name, or "
            "start its service once"
        )
    found = location_of(home, name, stage)
    return (
        found
        if located or isinstance(flow, str)
        else replace(found, store=stage_named(flow, stage).store or "")
    )


_open = ExitStack()


@lru_cache(maxsize=32)
def _opened(url: str) -> StateStore:
    """The store at an address; the kind of its server is checked once."""
    check_stores([url])
    store = open_store(url)
    _open.enter_context(shared(repr(store), store.close))
    return store


def _holding(where: Location, flow: str, stage: str, urls: Mapping[str, str]) -> StateStore:
    if where.store not in urls:
        raise ConfigurationError(
            f"stage {stage!r} of flow {flow!r} keeps its states in the store {where.store!r}; give its address as well: "
            f"store={{'': URL, {where.store!r}: URL}}"
        )
    return _opened(urls[where.store])


def _declared(where: Location, flow: Flow, stage: str) -> Callable[[bytes], Any]:
    """A decoder of states, for a flow whose declaration is given."""
    node = stage_named(flow, stage)
    if where.kind not in (node.kind, "") or node.codec is None or not node.stage_kind.states_by_key:
        raise _no_single_state(where.kind or node.kind, flow.name, stage)
    return node.codec.decode


def _decoder(where: Location, flow: str, stage: str) -> Callable[[bytes], Any]:
    """A decoder of states, by the name of their type."""
    if where.kind != "aggregate":
        raise _no_single_state(where.kind, flow, stage)
    codec, colon, _ = where.type_name.partition(":")
    if codec == "json" and colon:
        return json.loads
    if where.type_name and not colon:
        try:
            return codec_tagged(where.type_name).decode
        except ConfigurationError:
            raise ConfigurationError(
                f"stage {stage!r} holds messages of type {where.type_name!r}, which this program has not imported: import the module "
                "that was generated from their .proto, or give the flow itself instead of its name"
            ) from None
    raise ConfigurationError(
        f"stage {stage!r} holds states of type {where.type_name or 'unknown'!r}: give the flow itself instead of its name"
    )


def _no_single_state(kind: str, flow: str, stage: str) -> ConfigurationError:
    return ConfigurationError(
        f"stage {stage!r} of flow {flow!r} is of kind {kind!r}, where a key has no single state; use sqe_chain.states"
    )
