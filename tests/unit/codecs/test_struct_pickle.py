"""Goal: structs that a script defines arrive on workers unchanged, although cloudpickle alone loses their fields.

Method: a script pickles its structs and a function that uses them; another process, which cannot import the script,
decodes, folds and encodes with them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import io
import sys
import threading
from dataclasses import dataclass

import msgspec

from sqe_chain.codecs.registry import classes_of_script
from sqe_chain.engines.packing import _can_be_sent, _FlowPickler


class Part(msgspec.Struct, frozen=True, rename="camel"):
    part_name: str
    weight: float = 1.5


class Base(msgspec.Struct, tag="base"):
    robot: str


class Order(Base, kw_only=True, tag="order"):
    '''An order.'''

    parts: list[Part] = []
    below: "list[Order]" = []
    note: str | None = None

    def __post_init__(self) -> None:
        self.note = self.note or "none"

    def heavy(self) -> "Order":
        return Order(robot=self.robot, parts=[part for part in self.parts if part.weight > 1])

    @property
    def size(self) -> int:
        return len(self.parts)


class Mixed(Base, kw_only=True):
    a: int = 0


def fold(order: Order) -> bytes:
    heavy = order.heavy()
    return msgspec.json.encode([heavy, heavy.size, Part("x")])


@dataclass
class Unrelated:
    '''No flow uses it, and it cannot be pickled.'''

    a: int = 0
    lock = threading.Lock()


assert Unrelated not in filter(_can_be_sent, classes_of_script())
assert Order in filter(_can_be_sent, classes_of_script())
file = io.BytesIO()
_FlowPickler(file).dump((Order, Part, fold))
sys.stdout.buffer.write(file.getvalue())
"""
READER = """
import sys

import msgspec
import cloudpickle

Order, Part, fold = cloudpickle.loads(sys.stdin.buffer.read())
text = b'{"type":"order","robot":"r","parts":[{"partName":"a","weight":3},{"partName":"b","weight":0.5}],"below":[{"type":"order","robot":"s"}]}'
order = msgspec.json.decode(text, type=Order)
print(fold(order).decode())
print(type(order.below[0]) is Order, order.below[0].note, Order.__doc__, Order.__module__, Order.__qualname__)
try:
    msgspec.json.decode(b'{"type":"order","robot":"r","parts":[{"weight":3}]}', type=Order)
except msgspec.ValidationError as error:
    print(error)
try:
    order.parts[0].weight = 5
except AttributeError as error:
    print(error)
"""


def test_structs_of_a_script_are_the_same_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    sent = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, check=False)
    assert sent.returncode == 0, sent.stderr
    done = subprocess.run([sys.executable, "-c", READER], input=sent.stdout, capture_output=True, check=False)
    assert done.stdout.decode().splitlines() == [
        '[{"type":"order","robot":"r","parts":[{"partName":"a","weight":3.0}],"below":[],"note":"none"},1,{"partName":"x","weight":1.5}]',
        "True none An order. __main__ Order",
        "Object missing required field `partName` - at `$.parts[0]`",
        "immutable type: 'Part'",
    ], done.stderr.decode()
