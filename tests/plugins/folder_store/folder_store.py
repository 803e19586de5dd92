"""A store of states: ``folder:///some/where`` keeps one file for each flow's claim and plans, and one for each cell."""

from __future__ import annotations

import fcntl
import marshal
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Any

from sqe_chain.adapters import Address
from sqe_chain.errors import ConfigurationError, StoreInconsistent, Unavailable
from sqe_chain.ports import Header, Home, Location, Locations, Rows, ViewKind, Views

_NAME = re.compile(r"[A-Za-z0-9._-]+").fullmatch


class FolderStore:
    """A `StateStore` in files of this machine. Every step takes a lock, and replaces one file as a whole."""

    max_key_bytes = max_state_bytes = max_plan_bytes = 1 << 24
    views: frozenset[ViewKind] = frozenset()

    def __init__(self, folder: Path, max_rows: int, max_bytes: int) -> None:
        self.max_rows, self.max_bytes = max_rows, max_bytes
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def __repr__(self) -> str:
        return f"FolderStore(folder://{self._folder})"

    def check(self) -> list[str]:
        """Every file is synchronized before it takes its place."""
        return []

    def remarks(self) -> list[str]:
        """There are none."""
        return []

    def home(self, flow: str) -> tuple[Home | None, int]:
        found, beat, _ = self._load_home(flow)
        return found, beat

    def set_home(
        self, flow: str, before: Home | None, after: Home, plan: bytes | None = None, drop_below: int = 0
    ) -> Home | None:
        if plan is not None and len(plan) > self.max_plan_bytes:
            raise ConfigurationError(f"{self}: a plan of {len(plan)} bytes, more than {self.max_plan_bytes}")
        with self._locked():
            found, beat, plans = self._load_home(flow)
            if found != before:
                return found
            if plan is not None:
                plans[after.number] = plan
            plans = {number: kept for number, kept in plans.items() if number >= drop_below}
            self._save(self._home(flow), (astuple(after), beat, plans))
            return after

    def beat(self, flow: str, epoch: int, run_id: str) -> bool:
        with self._locked():
            found, beat, plans = self._load_home(flow)
            if found is None or not run_id or (found.epoch, found.run_id) != (epoch, run_id):
                return False
            self._save(self._home(flow), (astuple(found), beat + 1, plans))
            return True

    def plan(self, flow: str, number: int) -> bytes | None:
        return self._load_home(flow)[2].get(number)

    def flows(self) -> list[str]:
        return sorted(path.parent.name for path in self._folder.glob("*/home"))

    def forget(self, flow: str, before: Home) -> Home | None:
        with self._locked():
            found = self._load_home(flow)[0]
            if found != before:
                return found
            self._home(flow).unlink()
            return None

    def forget_part(self, flow: str, stage: str, part: int, before: Header) -> Header | None:
        with self._locked():
            found, _ = self._load_cell(flow, stage, part)
            if found != before:
                return found
            self._cell(flow, stage, part).unlink()
            return None

    def headers(self, flow: str, stage: str, parts: Sequence[int]) -> list[Header | None]:
        return [self._load_cell(flow, stage, part)[0] for part in parts]

    def read(
        self, flow: str, stage: str, part: int, keys: Sequence[bytes]
    ) -> tuple[Header | None, list[bytes | None], Header | None]:
        """See `StateStore`: one file, so one snapshot."""
        header, rows = self._load_cell(flow, stage, part)
        return header, [rows.get(key) for key in keys], header

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
        size = sum(len(key) + len(state or b"") for key, state in rows)
        if len(rows) > self.max_rows or (len(rows) > 1 and size > self.max_bytes):
            raise ValueError(f"{len(rows)} rows of {size} bytes; write in chunks")
        for key, state in rows:
            if len(key) + len(state or b"") > self.max_state_bytes:
                raise ConfigurationError(
                    f"{self}: a key and its state have more than {self.max_state_bytes} bytes"
                )
        with self._locked():
            header, standing = self._load_cell(flow, stage, part)
            if header != before:
                return header
            changed = standing | dict(rows)
            kept = {key: state for key, state in changed.items() if state is not None}
            self._save(self._cell(flow, stage, part), (astuple(after), kept))
            return after

    def scan(self, flow: str, stage: str, part: int) -> Iterator[tuple[bytes, bytes]]:
        yield from self._load_cell(flow, stage, part)[1].items()

    def locations(self, flow: str) -> Locations | None:
        epoch, number, stages = self._load(self._locations(flow)) or (0, 0, {})
        places = {stage: Location(*place) for stage, place in stages.items()}
        return Locations(epoch, number, places) if places else None

    def set_locations(self, flow: str, after: Locations) -> Locations | None:
        if not after.stages:
            raise ValueError("locations without stages")
        if after.number < 0:
            raise ValueError(f"locations at plan {after.number}, before 0")
        for stage in after.stages:
            _checked(stage)
        with self._locked():
            found = self.locations(flow)
            if found is not None and found.age >= after.age:
                return found
            places = {stage: astuple(place) for stage, place in after.stages.items()}
            self._save(self._locations(flow), (after.epoch, after.number, places))
            return after

    def forget_locations(self, flow: str, before: Locations) -> Locations | None:
        with self._locked():
            found = self.locations(flow)
            if found is None or found.age != before.age:
                return found
            self._locations(flow).unlink()
            return None

    def close(self) -> None:
        """Nothing is open between calls."""

    def _home(self, flow: str) -> Path:
        return self._folder / _checked(flow) / "home"

    def _locations(self, flow: str) -> Path:
        return self._folder / _checked(flow) / "locations"

    def _cell(self, flow: str, stage: str, part: int) -> Path:
        return self._folder / _checked(flow) / f"cell-{_checked(stage)}-{part}"

    def _load_home(self, flow: str) -> tuple[Home | None, int, dict[int, bytes]]:
        home, beat, plans = self._load(self._home(flow)) or (None, 0, {})
        return home and Home(*home), beat, plans

    def _load_cell(self, flow: str, stage: str, part: int) -> tuple[Header | None, dict[bytes, bytes]]:
        header, rows = self._load(self._cell(flow, stage, part)) or (None, {})
        return header and Header(*header), rows

    @staticmethod
    def _load(file: Path) -> Any:
        with _as_ours(file):
            return marshal.loads(file.read_bytes()) if file.exists() else None  # noqa: S302 - our own file

    @staticmethod
    def _save(file: Path, content: Any) -> None:
        with _as_ours(file):
            file.parent.mkdir(exist_ok=True)
            fresh = file.with_suffix(".new")
            with fresh.open("wb") as out:
                out.write(marshal.dumps(content))
                out.flush()
                os.fsync(out.fileno())
            fresh.replace(file)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


@contextmanager
def _as_ours(file: Path) -> Iterator[None]:
    """A full disk may pass, and the write may be sent again; a file that cannot be read was written by something else."""
    try:
        yield
    except OSError as error:
        raise Unavailable(f"{file}: {error}") from error
    except (EOFError, ValueError, TypeError) as error:
        raise StoreInconsistent(f"{file}: cannot be read ({error}). Restore the folder") from error


def _checked(name: str) -> str:
    if not _NAME(name):
        raise ValueError(f"the name {name!r} is made of letters, digits, '.', '_' and '-' only")
    return name


def open_address(address: Address) -> FolderStore:
    """The store at an address."""
    if not address.path:
        raise ConfigurationError("folder:// needs a path: folder:///some/where")
    store = FolderStore(
        Path(address.path), address.whole("max_rows", 20_000), address.whole("max_bytes", 1 << 24)
    )
    address.finish()
    return store
