"""Reads the states of a stage: as rows, a mapping, or tables. Reading does not disturb a running service."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqe_chain.codecs import Codec
from sqe_chain.errors import ConfigurationError, PoisonError, StoreInconsistent
from sqe_chain.flow import Flow
from sqe_chain.flow.nodes import StageNode
from sqe_chain.flow.stored import StoredState
from sqe_chain.partitioner import key_bytes
from sqe_chain.ports import StateStore
from sqe_chain.runtime.connecting import open_stores
from sqe_chain.runtime.locating import StoredStage

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Key = str | bytes
Rows = Iterator[tuple[bytes, bytes | None]]


class States(Mapping[Key, Any]):
    """The states of a stage by key, each as of the last batch that was persisted.

    Every access reads the store. While a service runs, two states may come from different batches. Keys that are UTF-8
    are returned as text, all others as bytes; both are accepted.

    Args:
        flow: the flow; it need not run.
        stage: name of the stage.
        stores: store name -> store; "" is the flow's home store.

    Raises:
        ConfigurationError: there is no such stage, or it is a filter.
    """

    def __init__(self, flow: Flow, stage: str, stores: Mapping[str, StateStore]) -> None:
        self._flow, self._stores, self._node = flow, stores, stage_named(flow, stage)
        if self._node.codec is None:
            raise ConfigurationError(
                f"stage {stage!r} is a filter: it has rows of its own format, but no states"
            )
        self._codec: Codec[Any] = self._node.codec

    def __getitem__(self, key: Key) -> Any:  # noqa: ANN401 - a state, of the type that the stage declares
        """The state of a key.

        Raises:
            KeyError: there is none; or it is neither text nor bytes, which no key is that has a state.
            ConfigurationError: the stage has windows: a key has several states, see `rows`.
        """
        self._check_no_windows()
        if not isinstance(key, str | bytes | bytearray | memoryview):
            raise KeyError(key)
        found = next(self.rows([key]), None)
        if found is None or found.state is None:
            raise KeyError(key)
        return found.state

    def __iter__(self) -> Iterator[Key]:
        """All keys."""
        self._check_no_windows()
        return (_shown(found.key) for found in self.rows())

    def __len__(self) -> int:
        """How many keys there are; reads them all."""
        return sum(1 for _ in self)

    def to_dict(self) -> dict[Key, Any]:
        """All states at once, which is faster than one after the other."""
        self._check_no_windows()
        return {_shown(found.key): found.state for found in self.rows() if found.state is not None}

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
        stored = stored_rows(self._flow, self._node, self._stores, wanted)
        return decoded(self._node, self._codec, stored, wanted)

    def to_arrow(self) -> pa.Table:
        """As an Arrow table: a column for the key and for each field; with windows, for their beginning and end too.

        Raises:
            ConfigurationError: pyarrow is missing.
        """
        from sqe_chain.runtime.tables import arrow_table  # noqa: PLC0415 - only tables need pyarrow

        return arrow_table(self.rows(), self._codec, windows=self._node.stage_kind.windowed)

    def to_pandas(self) -> pd.DataFrame:
        """As a pandas data frame; see `to_arrow`."""
        frame: pd.DataFrame = self.to_arrow().to_pandas()
        return frame

    def _check_no_windows(self) -> None:
        if self._node.stage_kind.windowed:
            raise ConfigurationError(
                f"stage {self._node.name!r} has windows, so a key has several states: use rows(), to_pandas() or to_arrow()"
            )


@contextmanager
def states(flow: Flow, stage: str, store: str | Mapping[str, str]) -> Iterator[States]:
    """The states of a stage, for reading, as long as the context lasts. The flow need not run.

    Args:
        flow: the flow, as it is declared.
        stage: name of the stage.
        store: address of the flow's store; or store name -> address, "" being the home store.

    Raises:
        ConfigurationError: an address is wrong, or the store does not have this flow or stage.
    """
    with open_stores(flow, {"": store} if isinstance(store, str) else store) as stores:
        yield States(flow, stage, stores)


def stage_named(flow: Flow, name: str) -> StageNode:
    """The stage of that name.

    Raises:
        ConfigurationError: there is none; the text lists the flow's stages.
    """
    for node in flow.stages():
        if node.name == name:
            return node
    known = ", ".join(node.name for node in flow.stages()) or "none, it keeps no states"
    raise ConfigurationError(f"flow {flow.name!r} has no stage {name!r}; its stages are: {known}")


def stored_rows(flow: Flow, node: StageNode, stores: Mapping[str, StateStore], keys: Sequence[bytes]) -> Rows:
    """Rows of these keys, None where there is none; without keys, all rows. With windows, a key has several rows.

    Raises:
        ConfigurationError: the flow has not run with this stage yet.
        StoreInconsistent: its last plan is missing, or cannot be read.
        Unavailable: the flow was rebuilt while all its rows were read; read them again.
    """
    stage = StoredStage(flow.name, node.name, stores[""], stores[node.store or ""])
    if keys and node.stage_kind.states_by_key:
        yield from zip(keys, stage.read(keys), strict=True)
    else:
        yield from stage.scan(keys)


def decoded(node: StageNode, codec: Codec[Any], rows: Rows, keys: Sequence[bytes]) -> Iterator[StoredState]:
    """The states in rows; for a stage with windows, of each open and each retained window.

    Raises:
        StoreInconsistent: a row cannot be decoded.
    """
    for name, data in rows:
        try:
            if data is None:
                yield StoredState(name, None)
                continue
            found = list(node.stage_kind.states_in(name, data))
        except Exception as error:
            raise StoreInconsistent(
                f"the state of key {name!r} in stage {node.name!r} is not a {codec.type_name}: {error}"
            ) from error
        yield from (one for one in found if not keys or one.key in keys)


def _shown(key: bytes) -> Key:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key
