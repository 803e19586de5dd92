"""Every public method has a docstring, its own or an inherited one; the examples in docstrings run and are right."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from inspect import get_annotations
from pathlib import Path
from types import SimpleNamespace

import pytest
from google.protobuf.wrappers_pb2 import StringValue

import sqe_chain
from sqe_chain import ReplayFilter, wrap
from sqe_chain.errors import ConfigurationError

PACKAGE = Path(sqe_chain.__file__).parent
MODULES = sorted(
    ".".join(("sqe_chain", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)
"""Every module with an example."""

value = wrap(StringValue(value="3 screws"), key="robot-7", timestamp_ms=1_700_000_000_000)
MESSAGE = SimpleNamespace(
    topic=lambda: "robot.raw",
    partition=lambda: 0,
    offset=lambda: 0,
    leader_epoch=lambda: 0,
    value=lambda: value,
    headers=lambda: None,
    error=lambda: None,
)
"""What `consumer.poll` gives in the examples that need it."""


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str) -> None:
    module = importlib.import_module(name)
    result = doctest.testmod(module, extraglobs={"message": MESSAGE, "ReplayFilter": ReplayFilter})
    assert result.attempted > 0
    assert result.failed == 0


def test_public_methods_have_or_inherit_a_docstring() -> None:
    assert [method for name in _modules() for method in _undocumented(name)] == []


def _modules() -> Iterator[str]:
    for module in pkgutil.walk_packages(sqe_chain.__path__, "sqe_chain."):
        if module.name.rpartition(".")[2] != "__main__" and "._proto" not in module.name:
            with suppress(ConfigurationError):  # it is of an extra that is not installed here
                importlib.import_module(module.name)
                yield module.name


@cache
def _of_protocols() -> frozenset[str]:
    """Members that a protocol documents: a class with its members need not name it as a base."""
    classes = (cls for name in _modules() for cls in vars(importlib.import_module(name)).values())
    protocols = {cls for cls in classes if getattr(cls, "_is_protocol", False)}
    members = {name for cls in protocols for name, member in vars(cls).items() if inspect.getdoc(member)}
    return frozenset(members)


def _undocumented(name: str) -> Iterator[str]:
    for cls in vars(importlib.import_module(name)).values():
        if inspect.isclass(cls) and cls.__module__ == name and not cls.__name__.startswith("_"):
            for method, found in vars(cls).items():
                ours = inspect.isfunction(found) or isinstance(found, classmethod | staticmethod | property)
                private = method.startswith(("_", "test_"))  # the name of a rule that is shipped states it
                if ours and not private and not inspect.getdoc(getattr(cls, method)):
                    bases = cls.__mro__[1:]  # they describe their attributes
                    if method in _of_protocols() or any(method in get_annotations(base) for base in bases):
                        continue
                    yield f"{name}.{cls.__qualname__}.{method}"


ROOMS = "|".join(sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()))


def test_names_of_modules_in_texts_are_those_of_modules() -> None:
    """Names with the room in front, as `plans.environment.Engine`: of what has moved, they lead nowhere."""
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        for name in re.findall(rf"`((?:{ROOMS})\.[a-z_]\w*(?:\.\w+)*)`", path.read_text(encoding="utf-8")):
            try:
                pkgutil.resolve_name(f"sqe_chain.{name}")
            except (ImportError, AttributeError):
                wrong.append(f"{path.relative_to(PACKAGE)}: `{name}`")
    assert wrong == []
