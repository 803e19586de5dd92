"""Whether the modules of the user are, in a process that runs tasks, what they were when the service was started.

A worker that replaces a lost one imports modules from where they are now. Code that was installed meanwhile would then
run beside the code of the service, within one batch.
"""

from __future__ import annotations

import site
import sys
import sysconfig
from collections.abc import Mapping
from functools import cache
from hashlib import blake2b
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

from sqe_chain.errors import ConfigurationError

_OWN = "sqe_chain"
_noted: dict[str, tuple[ModuleSpec | None, str]] = {}


def digests_of_modules() -> dict[str, str]:
    """Module -> digest of its source, of those that are imported here, and neither installed nor part of Python.

    Each is read once per import: what is installed later is not what this process runs.
    """
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        own = name.partition(".")[0] not in ("__main__", "__mp_main__", _OWN)
        if own and (name not in _noted or _noted[name][0] is not spec):
            _noted[name] = spec, _digest_of(spec)
    return {name: digest for name, (_, digest) in sorted(_noted.items()) if digest and name in sys.modules}


def check_modules(started_with: Mapping[str, str]) -> None:
    """Check that modules here, and those that functions import later, are what the service was started with.

    A module that only the service can import is not compared: no task runs it.

    Args:
        started_with: what `digests_of_modules` gave in the service.

    Raises:
        ConfigurationError: one has changed.
    """
    for name, digest in started_with.items():
        spec = _spec_of(name)
        now = _digest_of(spec, installed=True)
        if spec is not None and now and now != digest:
            raise ConfigurationError(
                f"module {name!r} has changed since the service was started: {spec.origin}. Expected the code that the "
                "service was started with, in all of its processes. Restart the service"
            )


def is_installed(path: Path) -> bool:
    """Whether a file belongs to Python or to an installed package."""
    if {"site-packages", "dist-packages"} & set(path.parts):
        return True
    return any(path.is_relative_to(root) for root in _roots())


@cache
def _roots() -> tuple[str, ...]:
    """Where Python and packages are installed; Python takes long to work that out."""
    roots = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return tuple(filter(None, {*roots, site.getusersitepackages()}))


def _spec_of(name: str) -> ModuleSpec | None:
    """Where a module was imported from, or would be; None: nowhere, or its package was not imported here."""
    if name in sys.modules:
        return getattr(sys.modules[name], "__spec__", None)
    parent = name.rpartition(".")[0]
    if parent and parent not in sys.modules:  # to look for it would import the package
        return None
    try:
        return find_spec(name)
    except (ImportError, ValueError):
        return None


def _digest_of(spec: ModuleSpec | None, *, installed: bool = False) -> str:
    """Digest of a module's source; empty: it has none, or is installed and those are not asked for."""
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return ""
    read = getattr(spec.loader, "get_data", None)  # of a directory or a zip
    if read is None or (not installed and is_installed(Path(spec.origin))):
        return ""
    try:
        return blake2b(read(spec.origin), digest_size=16).hexdigest()
    except OSError:  # it was removed, and is imported already
        return ""
