"""Goal: what a program sets in a module after its import is refused by name where other processes would not have it.

Method: a module is imported, the program sets something, the service notes it; then the module is imported again, as a worker
does. What a flow's functions change themselves, and what nobody assigns, is no reason to stop.
"""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from sqe_chain.engines.globals_at_start import Different, differing_globals, globals_of
from sqe_chain.engines.packing import PackedFlow
from sqe_chain.flow import Flow

NAMES = "module_of_globals", "settings_of_globals"

SETTINGS = """
RATE = 1
LIMITS = (1, "a", None)

def configure(rate):
    global RATE
    RATE = rate
"""

MODULE = """
import collections, decimal, enum, functools, os
from dataclasses import dataclass
from pathlib import Path
import settings_of_globals
import settings_of_globals as other_name

FACTOR = 1
NAME = "a"
CONTEXT = decimal.Context(prec=28)
PLACE = Path(__file__).parent / "data"
HERE = os.path.dirname(__file__)
API_KEY = "a"
CONFIG = {}
CACHE = {}
SEEN = 0
CLIENT = None
EVENTS = []
Point = collections.namedtuple("Point", "x")
POINT = Point(1)

class Colour(enum.Enum):
    RED = 1
    BLUE = 2

COLOUR = Colour.RED

@dataclass(frozen=True)
class Fixed:
    rate: int = 1

FIXED = Fixed()

class Rates:
    RATE = 1
    CALLS = 0

    def __init__(self): self.rate = 1
    @classmethod
    def call(cls): cls.CALLS += 1

RATES = Rates()

def of_global(value): return value * FACTOR
def of_inner(value): return [part * FACTOR for part in range(value)]
def of_lambda(value): return (lambda: FACTOR)()
def of_called(value): return of_global(value)
def of_module(value): return value * settings_of_globals.RATE
def of_alias(value): return value * other_name.RATE
def of_import(value):
    import settings_of_globals as late
    return value * late.RATE
def of_import_from(value):
    from settings_of_globals import RATE
    return value * RATE
def of_tuple(value): return settings_of_globals.LIMITS[0]
def of_point(value): return POINT.x
def of_point_whole(value): return POINT
def of_enum(value): return COLOUR
def of_frozen(value): return FIXED.rate
def of_frozen_whole(value): return FIXED
def of_class(value): return Rates.RATE
def of_object(value): return RATES.rate
def of_key(value): return CONFIG["rate"]
def of_get(value): return CONFIG.get("rate", 1)
def of_context(value): return CONTEXT.divide(1, 7)
def of_name(value): return NAME
def of_secret(value): return API_KEY
@functools.cache
def of_cached(value): return FACTOR
@functools.wraps(of_name)
def of_wrapped(value): return of_name(value)

def counts(value):
    global SEEN
    SEEN += 1
    return SEEN and value
def opens(value):
    global CLIENT
    if CLIENT is None: CLIENT = "opened"
    return CLIENT
def remembers(value):
    if "rate" not in CACHE: CACHE["rate"] = 3
    return CACHE["rate"]
def collects(value): EVENTS.append(value)
def counts_calls(value):
    Rates.call()
    return Rates.CALLS
def counts_in_class(value):
    Rates.CALLS += 1
    return Rates.CALLS
def of_place(value): return PLACE, HERE
def of_nothing(value): return value
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    for name, text in zip(NAMES, (MODULE, SETTINGS), strict=True):
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module(NAMES[0])
    forget()


def forget() -> None:
    for name in NAMES:
        sys.modules.pop(name, None)


def compare(module: ModuleType, function: str) -> list[Different]:
    """What differs where the module is only imported."""
    noted = globals_of([getattr(module, function)])
    forget()
    return differing_globals(noted)


def setting(name: str, value: object) -> Callable[[ModuleType], None]:
    """Sets a global of the module, or of the other one."""

    def set_it(module: ModuleType) -> None:
        *path, last = name.split(".")
        held: object = module
        for part in path:
            held = getattr(held, part)
        setattr(held, last, value)

    return set_it


RATE = setting("settings_of_globals.RATE", 3)
CASES: list[tuple[str, Callable[[ModuleType], object], str]] = [
    *[
        (function, setting("FACTOR", 3), "FACTOR")
        for function in ("of_global", "of_inner", "of_lambda", "of_called", "of_cached")
    ],
    ("of_module", RATE, "RATE"),
    ("of_alias", RATE, "RATE"),
    ("of_import", RATE, "RATE"),
    ("of_import_from", RATE, "RATE"),
    ("of_module", lambda module: module.settings_of_globals.configure(3), "RATE"),
    ("of_tuple", setting("settings_of_globals.LIMITS", (2, "a", None)), "LIMITS"),
    ("of_point", lambda module: setattr(module, "POINT", module.Point(2)), "POINT"),
    ("of_point_whole", lambda module: setattr(module, "POINT", module.Point(2)), "POINT"),
    ("of_enum", lambda module: setattr(module, "COLOUR", module.Colour.BLUE), "COLOUR"),
    ("of_frozen", lambda module: setattr(module, "FIXED", module.Fixed(2)), "FIXED"),
    ("of_frozen_whole", lambda module: setattr(module, "FIXED", module.Fixed(2)), "FIXED"),
    ("of_class", setting("Rates.RATE", 3), "Rates.RATE"),
    ("of_object", setting("RATES.rate", 3), "RATES.rate"),
    ("of_key", lambda module: module.CONFIG.update(rate=3), "CONFIG['rate']"),
    ("of_get", lambda module: module.CONFIG.update(rate=3), "CONFIG['rate']"),
    ("of_context", setting("CONTEXT.prec", 50), "CONTEXT"),
    ("of_name", setting("NAME", "b"), "NAME"),
    ("of_wrapped", setting("NAME", "b"), "NAME"),
]


@pytest.mark.parametrize(("function", "program", "place"), CASES)
def test_what_the_program_has_set_is_found(
    module: ModuleType, function: str, program: Callable[[ModuleType], object], place: str
) -> None:
    program(module)
    assert [str(each.place) for each in compare(module, function)] == [place]


def test_what_the_program_has_not_set_is_the_same(module: ModuleType) -> None:
    for function in [name for name in vars(module) if name.startswith("of_")]:
        assert compare(module, function) == [], function


@pytest.mark.parametrize(
    "function", ["counts", "opens", "remembers", "collects", "counts_calls", "counts_in_class"]
)
def test_caches_and_counters_of_the_functions_are_not_compared(module: ModuleType, function: str) -> None:
    for _ in range(3):
        getattr(module, function)(1)
    assert compare(module, function) == []


def test_another_directory_is_no_difference(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's processes on other machines have the modules in an archive."""
    noted = globals_of([module.of_place])
    assert {str(place) for place in noted} == {"PLACE", "HERE"}
    forget()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in NAMES:
        (tmp_path / f"{name}.py").rename(elsewhere / f"{name}.py")
    monkeypatch.syspath_prepend(elsewhere)
    assert differing_globals(noted) == []


def test_what_looks_like_a_secret_is_not_shown(module: ModuleType) -> None:
    setting("API_KEY", "hunter2")(module)
    (different,) = compare(module, "of_secret")
    assert different.service != different.here
    assert "hunter2" not in str(different)


def test_a_flow_is_refused_where_its_process_has_another_value(module: ModuleType) -> None:
    def flow() -> Flow:
        flow = Flow("rated")
        flow.source("t", dict).map(module.of_called).map(lambda value: value + module.FACTOR).to(
            "u", partitions=1
        )
        return flow

    assert unpacked_elsewhere(PackedFlow.of(flow().compile())) == "6"
    setting("FACTOR", 5)(module)
    packed = PackedFlow.of(flow().compile())
    text = (
        "ConfigurationError a global is not the same in all processes of the service: FACTOR of module 'module_of_globals', which "
        "of_global() names, is 5 in the service, and 1 in a process that only imports the module. Expected one value."
    )
    assert unpacked_elsewhere(packed).startswith(text)


def unpacked_elsewhere(packed: PackedFlow) -> str:
    code = (
        f"import pickle, sys; sys.path[:] = {sys.path!r}; packed = pickle.loads(sys.stdin.buffer.read())\n"
        "try: print(packed.unpack().nodes[1].function.function(6))\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    found = subprocess.run(
        [sys.executable, "-B", "-c", code], input=pickle.dumps(packed), capture_output=True, check=False
    )
    return (found.stdout or found.stderr).decode().strip()
