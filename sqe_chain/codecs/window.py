"""The result of a window whose state is JSON: a value with a type of its own for each type of states.

Results that wait in a store are found again by the names of this module and its class: they stay as they are.

>>> hours = Window[dict]
>>> hours(key="robot-7", start_ms=0, end_ms=3_600_000, state={"screws": 7}).state
{'screws': 7}
>>> Window[dict] is hours, hours.__name__
(True, 'Window[dict]')
"""

from __future__ import annotations

from dataclasses import dataclass, fields, make_dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sqe_chain.codecs.codec import MadeClass

State = TypeVar("State")


@dataclass(frozen=True)
class Window(Generic[State], metaclass=MadeClass):
    """A window that has become final: what `windowed` emits where the state is JSON.

    ``Window[Total]`` is a class of its own, a dataclass whose state is a ``Total``. So a value knows the type of its
    state wherever it goes: through a shuffle, into a topic, and back with ``payload_as(Window[Total])``. As JSON it is
    ``{"key": "robot-7", "start_ms": 0, "end_ms": 3600000, "state": {...}}``.

    Attributes:
        key: its key as text; one that is not UTF-8 as hexadecimal digits after ``0x``. The key of the stream, and of the
            record that is published, is the one in bytes.
        start_ms: its first millisecond.
        end_ms: the first millisecond after it; of a session: the time of its last record.
        state: what its records were folded into.
    """

    key: str
    start_ms: int
    end_ms: int
    state: State

    if not TYPE_CHECKING:

        @classmethod
        def __class_getitem__(cls, state: object) -> object:
            """The class for a type of states; for anything else, such as a type variable, what `Generic` gives."""
            if cls is not Window or not isinstance(state, type):
                return super().__class_getitem__(state)
            return window_of(state)


_types: dict[type, type[Window[Any]]] = {}


def window_of(state: type) -> type[Window[Any]]:
    """The class of windows with such states: ``Window[state]``, where type checkers do not know the type."""
    if state not in _types:
        name = f"{Window.__name__}[{state.__name__}]"
        window: Any = make_dataclass(name, [("state", state)], bases=(Window,), frozen=True)
        window.__module__, window.__doc__ = Window.__module__, Window.__doc__
        window.made_by = window_of, (state,)
        _types[state] = window
    return _types[state]


def state_type(python_type: type) -> type | None:
    """The type of the state in a class of windows: `object` in `Window` alone; None for any other class."""
    if python_type is Window:
        return object
    if not issubclass(python_type, Window):
        return None
    # Not from `__annotations__`: since Python 3.14 a class that was made has those of its base.
    state: type = next(known.type for known in fields(python_type) if known.name == "state")  # type: ignore[assignment]
    return state


def key_text(key: bytes) -> str:
    """A key as `Window.key` has it.

    >>> key_text("Schraube №7".encode()), key_text(bytes([0, 255]))
    ('Schraube №7', '0x00ff')
    """
    try:
        return key.decode()
    except UnicodeDecodeError:
        return f"0x{key.hex()}"
