"""Names of modules before 0.2 keep working until 0.3: each is the module itself under its new name, with a warning."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Final

NEW: Final = {
    "sqe_chain.codecs.rows": "sqe_chain.ext.files.codec",
    "sqe_chain.dev": "sqe_chain.ext.dev",
    "sqe_chain.logs": "sqe_chain.adapters",
    "sqe_chain.logs.files": "sqe_chain.ext.files",
    "sqe_chain.partitioner": "sqe_chain.envelope.partitioner",
    "sqe_chain.replays": "sqe_chain.envelope.replays",
    "sqe_chain.stores": "sqe_chain.adapters",
    "sqe_chain.stores.memory": "sqe_chain.adapters.memory.store",
    "sqe_chain.tables": "sqe_chain.ext.tables",
    "sqe_chain.wal": "sqe_chain.ext.wal",
}
"""Old name of a module or package -> its new name; what is in a package moved with it."""


def new_name(name: str) -> str | None:
    """The present name of a module with an old name; None: it has no old name."""
    head, tail = name, ""
    while head not in NEW:
        head, _, last = head.rpartition(".")
        if not head:
            return None
        tail = f".{last}{tail}"
    return NEW[head] + tail


class _Alias(Loader):
    def __init__(self, new: str) -> None:
        self._new = new

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        warnings.warn(f"{spec.name} is now {self._new}", DeprecationWarning, stacklevel=3)
        module = import_module(self._new)
        self._spec = module.__spec__  # importlib puts another one there
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


class _OldNames(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        new = new_name(fullname)
        if new is None or find_spec(new) is None:
            return None
        return ModuleSpec(fullname, _Alias(new))


def accept_old_names() -> None:
    """Let old names be imported, from now on."""
    sys.meta_path.insert(0, _OldNames())
