"""Reads the states of a flow: one by its key, a mapping, rows, or tables. Reading does not disturb a running service.

Readers find states by names that never change, also while a rebuild switches over and deletes the old ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sqe_chain.adapters import open_store
from sqe_chain.codecs import Codec
from sqe_chain.codecs.registry import codec_of_tag
from sqe_chain.envelope.partitioner import cell_of, key_bytes
from sqe_chain.errors import (
    ConfigurationError,
    PoisonError,
    StoreInconsistent,
    Unavailable,
    text_of,
)
from sqe_chain.errors.outage import raise_outage
from sqe_chain.flow import Flow
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.nodes import StageNode
from sqe_chain.flow.stored import StoredState
from sqe_chain.plans.stored_plans import never_run
from sqe_chain.ports import Location, StateStore
from sqe_chain.ports.store import lost_part
from sqe_chain.runtime.connecting import open_stores, shared
from sqe_chain.runtime.neighbours import check_stores

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Key = str | bytes
Rows = Iterator[tuple[bytes, bytes | None]]


@dataclass(frozen=True, slots=True)
class StoredStage:
    """A stage as readers find it, under the name of its flow.

    Args:
        home: any store of the flow: each has all of its locations.
        store: the one that holds the states.
    """

    flow: str
    name: str
    home: StateStore
    store: StateStore

    def location(self) -> Location:
        """Where it is now; see `location_of`."""
        return location_of(self.home, self.flow, self.name)

    def read(self, keys: Sequence[bytes], where: Location | None = None) -> list[bytes | None]:
        """The states of these keys, None where there is none.

        A rebuild deletes old states only after it has written the new location. So a state that is there is valid. One that is
        missing may have been deleted, if the stage has moved since this run read `where`.

        Args:
            keys: the keys.
            where: the stage's location, if it was just looked up.

        Raises:
            StoreInconsistent: the store has lost the cell of a key, or states of it.
        """
        where = where or self.location()
        while True:  # ends: each further round needs another rebuild of the flow
            values, lost = [], list[int]()
            for key in keys:
                cell = cell_of(key, where.state_partitions, where.buckets)
                header, states, _ = self.store.read(where.flow, self.name, cell, [key])
                if header is None:
                    lost.append(cell)
                else:
                    header.check_whole(f"{where.flow}/{self.name}/{cell}")
                values += states
            if None not in values:
                return values
            before, where = where, self.location()
            if _rows(before) == _rows(where):
                self._check_cells(where, lost)
                return values

    def scan(self, keys: Sequence[bytes] = ()) -> Iterator[tuple[bytes, bytes]]:
        """All rows, those of a state partition in the order of their keys.

        Args:
            keys: for a stage without buckets: read only the state partitions of these keys; without any, all.

        Raises:
            StoreInconsistent: the store has lost a cell, or states of it.
            Unavailable: the flow was rebuilt during the scan, so rows may be missing; begin again.
        """
        where = self.location()
        partitions = where.state_partitions
        cells = {cell_of(key, partitions, 1) for key in keys} if keys else range(partitions * where.buckets)
        lost = list[int]()
        for cell in sorted(cells):
            (header,) = self.store.headers(where.flow, self.name, [cell])
            if header is None:
                lost.append(cell)
            else:
                header.check_whole(f"{where.flow}/{self.name}/{cell}")
            yield from sorted(self.store.scan(where.flow, self.name, cell))
        if _rows(where) != _rows(self.location()):
            raise Unavailable(
                f"flow {self.flow!r} was rebuilt while this read stage {self.name!r}. Read it again"
            )
        self._check_cells(where, lost)

    def _check_cells(self, where: Location, lost: Sequence[int]) -> None:
        """Check that no cell is without a header: each has one since the flow began, and nobody has moved the stage meanwhile.

        Raises:
            StoreInconsistent: one is.
        """
        if lost:
            raise lost_part(f"{where.flow}/{self.name}/{lost[0]}")


def location_of(store: StateStore, flow: str, stage: str) -> Location:
    """Where a stage is now, according to any store of the flow.

    Raises:
        ConfigurationError: the flow, or the stage, has not run with this store yet.
        Unavailable: the flow has run, and its locations are gone or not yet written.
    """
    known = store.locations(flow)
    if known is None:
        home, _ = store.home(flow)
        if home is None or home.number < 0:
            raise never_run(flow)
        raise Unavailable(
            f"flow {flow!r} has run with this store, and the store does not have where its states are. Start the service: it writes it"
        )
    if stage not in known.stages:
        raise ConfigurationError(
            f"flow {flow!r} has not run with stage {stage!r} yet. Run it with this stage"
        )
    return known.stages[stage]


def _rows(where: Location) -> tuple[str, int, int]:
    return where.flow, where.state_partitions, where.buckets


class States(Mapping[Key, Any]):
    """The states of a stage by key, each as of the last batch that was persisted.

    Every access reads the store. While a service runs, two states may come from different batches. Keys that are UTF-8
    are returned as text, all others as bytes; both are accepted.

    Args:
        flow: the flow; it need not run.
        stage: name of the stage.
        stores: store name -> store; "" is the flow's metadata store.

    Raises:
        ConfigurationError: there is no such stage, or it is a filter.
    """

    def __init__(self, flow: CompiledFlow, stage: str, stores: Mapping[str, StateStore]) -> None:
        self._flow, self._stores, self._node = flow, stores, stage_named(flow, stage)
        if self._node.codec is None:
            raise ConfigurationError(
                f"stage {stage!r} is a filter. Expected a stage with states. Use `sqe-chain state`, which shows its rows"
            )
        self._codec: Codec[Any] = self._node.codec

    def __getitem__(self, key: Key) -> Any:  # noqa: ANN401 - a state, of the type that the stage declares
        """The state of a key.

        Raises:
            KeyError: there is none; also if the key is neither text nor bytes.
            ConfigurationError: the stage has windows: a key has several states, see `rows`.
        """
        self._check_no_windows()
        if not isinstance(key, str | bytes | bytearray | memoryview):
            raise KeyError(key)
        stored = next(self.rows([key]), None)
        if stored is None or stored.state is None:
            raise KeyError(key)
        return stored.state

    def __iter__(self) -> Iterator[Key]:
        self._check_no_windows()
        return (_shown(stored.key) for stored in self.rows())

    def __len__(self) -> int:
        """How many keys there are; reads them all."""
        return sum(1 for _ in self)

    def to_dict(self) -> dict[Key, Any]:
        """All states at once, which is faster than one after the other."""
        self._check_no_windows()
        return {_shown(stored.key): stored.state for stored in self.rows() if stored.state is not None}

    def rows(self, keys: Sequence[Key] = ()) -> Iterator[StoredState]:
        """Stored states; for a stage with windows, of each open and each retained final window.

        Args:
            keys: only of these keys; without any, of all.

        Raises:
            ConfigurationError: a key is neither text nor bytes.
        """
        try:
            wanted = [key_bytes(key) for key in keys]
        except PoisonError as error:
            raise ConfigurationError(f"stage {self._node.name!r}: {error}") from None
        return self._decoded(stored_rows(self._flow, self._node, self._stores, wanted), wanted)

    def to_arrow(self) -> pa.Table:
        """As an Arrow table: a column for the key and for each field; with windows, for their beginning and end too.

        Raises:
            ConfigurationError: pyarrow is missing.
        """
        from sqe_chain.runtime.tables import arrow_table  # noqa: PLC0415 - only tables need pyarrow

        return arrow_table(self.rows(), self._codec, windows=self._node.traits.windowed)

    def to_pandas(self) -> pd.DataFrame:
        """As a pandas data frame; see `to_arrow`."""
        frame: pd.DataFrame = self.to_arrow().to_pandas()
        return frame

    def _decoded(self, rows: Rows, keys: Sequence[bytes]) -> Iterator[StoredState]:
        for name, data in rows:
            if data is None:
                yield StoredState(name, None)
                continue
            states = states_in_row(self._node, self._flow.name, name, data)
            yield from (state for state in states if not keys or state.key in keys)

    def _check_no_windows(self) -> None:
        if self._node.traits.windowed:
            raise ConfigurationError(
                f"stage {self._node.name!r} has windows, hence several states for a key. Use rows(), to_pandas() or to_arrow()"
            )


@contextmanager
def states(flow: Flow | CompiledFlow, stage: str, store: str | Mapping[str, str]) -> Iterator[States]:
    """The states of a stage, for reading, as long as the context lasts. The flow need not run.

    Args:
        flow: the flow, as it is declared.
        stage: name of the stage.
        store: address of the flow's store; or store name -> address, "" being the metadata store.

    Raises:
        ConfigurationError: an address is wrong, or the store does not have this flow or stage.
    """
    with open_stores(flow.compile(), {"": store} if isinstance(store, str) else store) as stores:
        yield States(flow.compile(), stage, stores)


def stage_named(flow: CompiledFlow, name: str) -> StageNode:
    """The stage of that name.

    Raises:
        ConfigurationError: there is none; the text lists the flow's stages.
    """
    for node in flow.stages:
        if node.name == name:
            return node
    known = ", ".join(node.name for node in flow.stages) or "(none, it keeps no states)"
    raise ConfigurationError(f"flow {flow.name!r} has no stage {name!r}. Expected one of: {known}")


def stored_rows(
    flow: CompiledFlow, node: StageNode, stores: Mapping[str, StateStore], keys: Sequence[bytes]
) -> Rows:
    """Rows of these keys, None where there is none; without keys, all rows. With windows, a key has several rows.

    Raises:
        ConfigurationError: the flow has not run with this stage yet.
        Unavailable: the flow was rebuilt while all its rows were read; read them again.
    """
    stage = StoredStage(flow.name, node.name, stores[""], stores[node.store or ""])
    if keys and node.traits.states_by_key:
        yield from zip(keys, stage.read(keys), strict=True)
    else:
        yield from stage.scan(keys)


def states_in_row(stage: StageNode, flow: str, row: bytes, content: bytes) -> list[StoredState]:
    """The states in a stored row of a stage that has a codec.

    Raises:
        StoreInconsistent: they cannot be decoded.
        Unavailable: the codec could not reach what it needs.
    """
    type_name = "" if stage.codec is None else stage.codec.type_name
    with _decoding(row, stage.name, flow, type_name):
        return list(stage.stage_kind.states_in(row, content))


@contextmanager
def _decoding(key: Key, stage: str, flow: str, type_name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise_outage(error, f"the state of key {key!r} in stage {stage!r} of flow {flow!r}")
        raise StoreInconsistent(
            f"the state of key {key!r} in stage {stage!r} of flow {flow!r} cannot be decoded: {text_of(error).rstrip('.')}. Expected a state of "
            f"type {type_name!r}. Fold the states again: sqe-chain rebuild"
        ) from error


def _shown(key: bytes) -> Key:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key


def get(
    flow: Flow | CompiledFlow | str, stage: str, key: str | bytes, *, store: str | Mapping[str, str]
) -> Any | None:  # noqa: ANN401 - a state, of the type that the stage declares
    """The newest persisted state of a key, even after rebuilds, rewinds and new stages of the flow. Reads only.

    The flow need not run, and is not disturbed. While a rebuild switches over, this returns the old state or the new one,
    never a mixture. The connection stays open for the next call; `sqe_chain.states` reads many keys at once.

    Args:
        flow: the flow; or its name, in a program that does not have its code. Then states in JSON are returned as plain
            values, and protobuf messages only if their generated module was imported.
        stage: name of an aggregate.
        key: the key; text is UTF-8.
        store: address of the flow's store; or store name -> address, "" being the metadata store.

    Returns:
        The state; None: this key has none.

    Raises:
        ConfigurationError: an address is wrong, or the store does not have this flow or stage. Also if the stage has windows
            or is a filter, or if only the flow itself can decode its states.
        StoreInconsistent: the stored state cannot be decoded.
        Unavailable: the store does not answer.
    """
    name = flow if isinstance(flow, str) else flow.name
    urls = {"": store} if isinstance(store, str) else store
    if not urls:
        raise ConfigurationError("get(): no store. Expected the address of one")
    home = _opened(urls.get("") or next(iter(urls.values())))
    where = location_of(home, name, stage)
    decode = _decoder(where, name, stage) if isinstance(flow, str) else _declared(where, flow, stage)
    if where.store not in urls:
        raise ConfigurationError(
            f"stage {stage!r} of flow {name!r} has its states in the store {where.store!r}. Expected its address as well: "
            f"store={{'': URL, {where.store!r}: URL}}"
        )
    stored = StoredStage(name, stage, home, _opened(urls[where.store]))
    (value,) = stored.read([key_bytes(key)], where)
    if value is None:
        return None
    with _decoding(key, stage, name, where.type_name):
        return decode(value)


_open = ExitStack()


@lru_cache(maxsize=32)
def _opened(url: str) -> StateStore:
    """The store at an address; the kind of its server is checked once."""
    check_stores([url])
    store = open_store(url)
    _open.enter_context(shared(repr(store), store.close))
    return store


def _declared(where: Location, flow: Flow | CompiledFlow, stage: str) -> Callable[[bytes], Any]:
    node = stage_named(flow.compile(), stage)
    if where.kind not in (node.kind, "") or node.codec is None or not node.traits.states_by_key:
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
            return codec_of_tag(where.type_name).decode
        except ConfigurationError:
            raise ConfigurationError(
                f"stage {stage!r} holds messages of type {where.type_name!r}, which this program has not imported. Import their generated "
                "module, or give the flow itself instead of its name"
            ) from None
    raise ConfigurationError(
        f"stage {stage!r} holds states of type {where.type_name or 'unknown'!r}, which this program cannot read by its name. Give the "
        "flow itself instead of its name"
    )


def _no_single_state(kind: str, flow: str, stage: str) -> ConfigurationError:
    return ConfigurationError(
        f"stage {stage!r} of flow {flow!r} is of kind {kind!r}. Expected one state for a key. Use sqe_chain.states"
    )
