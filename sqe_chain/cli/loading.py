"""Loads the flow that MODULE:FLOW names from the user's module."""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType

from sqe_chain.errors import ChainError, ConfigurationError
from sqe_chain.flow import Flow, Stream
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.wings import WINGS, load

_TARGET = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)")
_PACKAGE = str(Path(__file__).parent.parent)


def load_flow(target: str) -> CompiledFlow:
    """Load the flow that MODULE:FLOW names. Modules in the working directory come first.

    Args:
        target: module name and the flow's name in it, as in `services.fastening:totals`.

    Raises:
        ConfigurationError: no such module or flow, or importing fails; the text has the user's file and line.
        FlowError: the flow's declaration cannot work.
    """
    named = _TARGET.fullmatch(target)
    if named is None:
        raise ConfigurationError(
            f"{target!r} does not name a flow. Expected MODULE:FLOW, a module's name (no path, no .py) and that of a Flow in it. "
            "Write it as in services.fastening:totals"
        )
    module, name = load_module(named.group(1)), named.group(2)
    flow = getattr(module, name, None)
    if isinstance(flow, Flow):
        return _with_registry(flow.compile())
    flows = sorted(other for other, value in vars(module).items() if isinstance(value, Flow))
    known = f"Expected one of: {', '.join(flows)}" if flows else "Expected a Flow; there is none"
    if flow is None:
        raise ConfigurationError(f"module {module.__name__} ({module.__file__}) has no {name!r}. {known}")
    what = "a stream of a flow, not the flow" if isinstance(flow, Stream) else f"a {type(flow).__name__}"
    raise ConfigurationError(f"{target} is {what}. {known}")


def _with_registry(flow: CompiledFlow) -> CompiledFlow:
    """The flow with the schema registry of this environment: commands without the option `--registry` read it there."""
    address = os.environ.get("SQE_CHAIN_REGISTRY")
    return flow.asking(load(WINGS, "registry", "registry")(address)) if address else flow


def load_module(name: str) -> ModuleType:
    """Import a module by name, from the working directory or from wherever Python finds it.

    Raises:
        ConfigurationError: there is no such module, or importing fails; the text has the user's file and line.
        ChainError: raised by the module itself, for example a FlowError.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ChainError:
        raise
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigurationError(
                f"there is no module {error.name!r} in {here} or on Python's path. Run the command in the module's "
                "directory, or add that directory to PYTHONPATH"
            ) from error
        raise ConfigurationError(f"{location_of(error)}: importing {name} failed: {error}") from error
    except (Exception, SystemExit) as error:
        text = f"{type(error).__name__}: {error}"
        raise ConfigurationError(f"{location_of(error)}: importing {name} failed: {text}") from error


def location_of(error: BaseException) -> str:
    """File and line of the user's code that an error came from, ``file:line``."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((_PACKAGE, "<frozen"))
        and "site-packages" not in frame.filename
        and "/importlib/" not in frame.filename
    ]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "the module"
