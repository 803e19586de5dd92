"""What the protocol needs from a store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal, Protocol, runtime_checkable

from sqe_chain.errors import RESTORE_OR_REBUILD, StoreInconsistent


def lost_part(where: str) -> StoreInconsistent:
    """What readers raise where a state partition has no header, though the flow has run.

    Args:
        where: flow, stage and state partition.
    """
    return StoreInconsistent(
        f"{where}: the store has no header of this state partition, though the flow has run. It has lost all its states: "
        f"{RESTORE_OR_REBUILD}"
    )


Rows = Sequence[tuple[bytes, bytes | None]]
"""Keys and their new states, in key order; None deletes the state."""

ViewKind = Literal["json", "hash", "table"]
"""How a state is also written for other programs: as a JSON text, field by field, or as a row with typed columns."""

Shown = str | Mapping[str, str]
"""The view of one state: a JSON text, its fields as texts, or a JSON object with the columns of its row."""


@dataclass(frozen=True, slots=True)
class ViewTable:
    """A table that shows the states of one stage to SQL.

    Attributes:
        name: as other programs find it; a-z, 0-9 and _.
        columns: name and type in SQL of each column, besides the key.
    """

    name: str
    columns: tuple[tuple[str, str], ...]

    @property
    def mark(self) -> str:
        """What a location has once the table shows all states: its name, and a digest of its columns."""
        return f"{self.name}:{blake2b(repr(self.columns).encode(), digest_size=8).hexdigest()}"


@dataclass(frozen=True, slots=True)
class Views:
    """Views of the changed states of one atomic write.

    Attributes:
        kind: the form.
        shown: key -> its view; a key that is written and has none shows nothing, now or later.
        table: which one, for tables.
        clear: instead, of a write without rows: the table loses all rows of this cell, whether there are states for them or not.
    """

    kind: ViewKind
    shown: Mapping[bytes, Shown]
    table: ViewTable | None = None
    clear: bool = False

    def size(self, key: bytes) -> int:
        """Bytes of a key's view (UTF-8); 0 when it has none."""
        view = self.shown.get(key, "")
        texts = (view,) if isinstance(view, str) else (text for field in view.items() for text in field)
        return sum(len(text) if text.isascii() else len(text.encode()) for text in texts)


@dataclass(frozen=True, slots=True)
class Home:
    """A flow's claim and the number of its last plan, as the metadata store holds them.

    Attributes:
        epoch: grows with each claim.
        run_id: random name of the run that holds the claim; empty after it was released.
        owner: who that is, for people and for "is that process dead?": JSON with host, pid, started.
        number: number of the last sealed plan; -1 before the birth plan.
        plan_id: id of the last sealed plan; empty before the birth plan.
    """

    epoch: int
    run_id: str
    owner: str
    number: int
    plan_id: str

    def __str__(self) -> str:
        by = f"run {self.run_id}" if self.run_id else "no run"
        return f"{_plan(self.number, self.plan_id)}, claimed by {by} with epoch {self.epoch}"


@dataclass(frozen=True, slots=True)
class Header:
    """What each cell of a stage (a state partition, or one of its buckets) stores in addition to its states.

    Attributes:
        epoch: epoch of the run that stamped it last.
        run_id: random name of that run.
        number: number of the last plan applied in full.
        plan_id: id of that plan.
        begun_id: id of the plan that is being applied in chunks; empty when none is.
        cursor: the last key written of that plan, in key order; None when none is begun.
        lost: what the store misses beside it, for errors: it knows how many states a write has left, or that there must be
            some. Empty: nothing. It is found when the header is read, and is not a part of it.
    """

    epoch: int
    run_id: str
    number: int
    plan_id: str
    begun_id: str = ""
    cursor: bytes | None = None
    lost: str = field(default="", compare=False)

    def __str__(self) -> str:
        begun = f", plan {self.begun_id} begun" if self.begun_id else ""
        return (
            f"{_plan(self.number, self.plan_id)}{begun}, stamped by run {self.run_id} with epoch {self.epoch}"
        )

    def check_whole(self, where: str) -> None:
        """Check that the states are there beside it: else they would be counted on from nothing.

        Args:
            where: it is, for the error's text.

        Raises:
            StoreInconsistent: they are not.
        """
        if self.lost:
            raise StoreInconsistent(
                f"{where}: states are gone: {self.lost}. Another program has deleted them, or the store has: it evicted or expired them. "
                "Restore the store as a whole, or fold the states again with sqe-chain rebuild"
            )


@dataclass(frozen=True, slots=True)
class Location:
    """Where the states and views of one stage are now, and what a reader needs to know about them.

    Attributes:
        flow: the name under which they are stored: another one after each rebuild.
        state_partitions: P of the stage's layout.
        buckets: buckets of each state partition.
        kind: `aggregate`, or the kind of a filter or of windows, whose rows have a format of the library's own.
        type_name: type of the states, as in envelopes; empty for rows of the library's own format.
        view: form of the view that is written with each state; of a table that shows all states, its
            `ViewTable.mark`. None: no view.
        store: name of the store that holds them; empty for the flow's metadata store.
    """

    flow: str
    state_partitions: int
    buckets: int
    kind: str
    type_name: str = ""
    view: str | None = None
    store: str = ""


@dataclass(frozen=True, slots=True)
class Locations:
    """Where all stages of a flow are, under a name that never changes: the flow's own.

    Attributes:
        epoch: epoch of the run that wrote this.
        number: number of the plan whose layout this is.
        stages: stage name -> where its states are.
    """

    epoch: int
    number: int
    stages: Mapping[str, Location]

    @property
    def age(self) -> tuple[int, int]:
        """For comparison: a later run, or a later plan of one run, is newer."""
        return self.epoch, self.number


def _plan(number: int, plan_id: str) -> str:
    return f"plan {number} ({plan_id})" if plan_id else "no plan"


class StateStore(Protocol):
    """A database that holds states, headers, claims and plans.

    A store guarantees:

    - **It compares, never the client.** Each call that changes something is one atomic operation, and compares first. It gives
      what is stored then. So it is safe to send again after a lost reply: the second attempt finds `after` stored.
    - **A read sees every write that was acknowledged before it began**, by any process. So it never asks a replica that may lag.
    - **A call ends within a bounded time**, with an answer or with `Unavailable`; the protocol waits, and calls again.
    - **Threads share it, and it can be pickled.** It holds settings only, and opens its clients on first use, once per process:
      a forked process never uses those of its parent.
    - **Its `repr` is its address, without passwords.** Errors show it, and stores with the same one share clients: `close` is
      called when the last of them is no longer used.

    Errors replace those of the driver, and their texts are free:

    - `ValueError`: the program's mistake. These are names outside of the alphabet ``[A-Za-z0-9._-]``, and more than `max_rows`
      or `max_bytes` in one `write`. So are locations without a stage or a plan.
    - `ConfigurationError`: address, login, rights, tables, and data above the limits of the server.
    - `Unavailable`: no answer, or an unknown outcome. It alone is tried again.
    - `StoreInconsistent`: what is stored cannot be read, because something else has written it.
    """

    max_rows: int
    """Most rows of one `write`."""
    max_bytes: int
    """Most bytes of keys, states and views in one `write` (a single row may be larger)."""

    @property
    def max_key_bytes(self) -> int:
        """Largest key, in bytes, at least 32 KiB and 64 bytes: a longer one can be neither written nor read.

        This limit, `max_state_bytes` and `max_plan_bytes` are those of the server, read from it once a process
        where possible; `write` and `set_home` refuse more with ConfigurationError.
        """

    @property
    def max_state_bytes(self) -> int:
        """Largest sum of a key, its state and its view, in bytes; at least 2 MiB."""

    @property
    def max_plan_bytes(self) -> int:
        """Largest sealed plan, in bytes."""

    @property
    def views(self) -> frozenset[ViewKind]:
        """The kinds of views that this store can write."""

    def check(self) -> list[str]:
        """What is weak about the durability of this server, one sentence each. A setting that cannot be read counts as weak."""

    def remarks(self) -> list[str]:
        """What is durable enough but worth knowing, one sentence each; services report it as notices."""

    def home(self, flow: str) -> tuple[Home | None, int]:
        """The flow's home record, and its heartbeat counter (0 before the first heartbeat)."""

    def set_home(
        self, flow: str, before: Home | None, after: Home, plan: bytes | None = None, drop_below: int = 0
    ) -> Home | None:
        """If the home record equals `before` (None: absent), replace it.

        Args:
            flow: flow name.
            before: the expected current record.
            after: the new record.
            plan: when given, stored as the plan with number `after.number` in the same operation.
            drop_below: plans with smaller numbers are deleted in the same operation.

        Returns:
            The current record: equal to `after` if and only if that was done, now or by an earlier attempt.
        """

    def beat(self, flow: str, epoch: int, run_id: str) -> bool:
        """Increment the heartbeat counter and return True, if this run holds the claim; otherwise return False."""

    def plan(self, flow: str, number: int) -> bytes | None:
        """A sealed plan by its number; None when it was not stored, or was dropped."""

    def flows(self) -> list[str]:
        """Names of all flows that have a home record here, sorted. For people: it may read every key."""

    def forget(self, flow: str, before: Home) -> Home | None:
        """If the home record equals `before`, delete it with heartbeat counter and plans; None if and only if it is deleted."""

    def forget_part(self, flow: str, stage: str, part: int, before: Header) -> Header | None:
        """If the header equals `before`, delete it with all remaining states; None if and only if it is deleted.

        Views as hashes are deleted with their states, by `write`; so that comes first.
        """

    def headers(self, flow: str, stage: str, parts: Sequence[int]) -> list[Header | None]:
        """The headers of these state partitions, with what is `lost` beside them; None where nothing is stored."""

    def read(
        self, flow: str, stage: str, part: int, keys: Sequence[bytes]
    ) -> tuple[Header | None, list[bytes | None], Header | None]:
        """The header, the states of these keys (None: no state), and the header again, in that order; headers as `headers` gives them."""

    def write(
        self,
        flow: str,
        stage: str,
        part: int,
        before: Header | None,
        after: Header,
        rows: Rows,
        views: Views | None = None,
    ) -> Header | None:
        """If the header equals `before` (None: absent), write rows and `after`.

        With `views`, also write the views of written states, and delete that of each deleted one.

        Returns:
            The current header: equal to `after` if and only if that was done, now or by an earlier attempt.
        """

    def scan(self, flow: str, stage: str, part: int) -> Iterator[tuple[bytes, bytes]]:
        """All keys and states of one state partition, in no particular order; not a snapshot.

        A key that is stored all the time is given at least once, perhaps twice, with a state that it had meanwhile. One that is
        added or deleted meanwhile may be missing. The caller may call the store between rows, or stop early.
        """

    def locations(self, flow: str) -> Locations | None:
        """Where the flow's stages are, for readers; None: not stored yet.

        A read that begins after `set_locations` has returned sees its locations, or newer ones.
        """

    def set_locations(self, flow: str, after: Locations) -> Locations | None:
        """If `after` is newer (`Locations.age`), replace the flow's locations.

        So a run that was superseded while it was suspended cannot set them back.

        Returns:
            The current locations; None: the tables of this store are of an older version, which cannot hold them.

        Raises:
            ValueError: there is no stage in it.
        """

    def forget_locations(self, flow: str, before: Locations) -> Locations | None:
        """If the locations are those of `before`, by their age, delete them; None if and only if they are deleted."""

    def check_view_table(self, flow: str, stage: str, table: ViewTable) -> None:
        """Check that the table of a view is there, with these columns. Only called if `views` has tables.

        Args:
            flow: the flow's own name.
            stage: of the states.
            table: its name and columns.

        Raises:
            ConfigurationError: it is missing, belongs to another stage, or has other columns.
        """
        del flow, stage, table

    def unlike_rows(
        self, flow: str, stage: str, part: int, table: ViewTable, wanted: Mapping[bytes, str | None]
    ) -> list[bytes]:
        """Which rows of a view's table are not as the states are. Only called if `views` has tables.

        Args:
            flow: as the states are stored.
            stage: of the states.
            part: number of the cell.
            table: its name and columns.
            wanted: key -> its view, as in `Views.shown`; None: it shows nothing.

        Returns:
            These keys, and where a row shows a state that the cell does not have, its place in the index.

        Raises:
            Unavailable: no answer.
        """
        del flow, stage, part, table, wanted
        return []

    def close(self) -> None:
        """Close this process's clients of the store; a later call opens them again."""


@runtime_checkable
class WithSchema(Protocol):
    """A `StateStore` with tables that `sqe-chain store init` creates; services only check their version."""

    # Not derived from StateStore: isinstance() would read that one's properties, which ask the server.

    def make_schema(self, replication: Mapping[str, int]) -> list[str]:
        """Create the tables, or migrate them to the newest version. May be repeated.

        Args:
            replication: used if the database for them has to be created: data centre -> replicas; "" for every one.

        Returns:
            What was done, one line for each change; [] when there was nothing to do.

        Raises:
            Unavailable: no answer.
            ConfigurationError: login, rights, no replication given where it is needed, or a newer schema.
        """

    def schema_version(self) -> tuple[int, int]:
        """The version of the existing tables (0: none), and the newest version; raises as `make_schema` does."""


@runtime_checkable
class WithViewTables(Protocol):
    """A `StateStore` whose views may be tables: `sqe-chain store init --flow` makes them; services only check them (`check_view_table`)."""

    def make_view_table(self, flow: str, stage: str, table: ViewTable) -> list[str]:
        """Make the table, or add the columns that it lacks. May be repeated.

        Args:
            flow: the flow's own name.
            stage: of the states.
            table: its name and columns.

        Returns:
            What was done, one line for each change; [] when there was nothing to do.

        Raises:
            Unavailable: no answer.
            ConfigurationError: rights; the name is taken; a column that there is is not wanted, or has another type.
        """
