"""Types of the user's functions: with and without the context as their last argument."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Never, Protocol

from google.protobuf.message import Message

from sqe_chain.flow.context import Context
from sqe_chain.flow.timers import Timer

if TYPE_CHECKING:
    # Checkers know defaults of type variables; Python does not before 3.13.
    from typing_extensions import TypeVar

    Emitted = TypeVar("Emitted", default=Never)
else:
    from typing import TypeVar

    Emitted = TypeVar("Emitted")

_Value_contra = TypeVar("_Value_contra", contravariant=True)
_State_contra = TypeVar("_State_contra", contravariant=True)

Value = TypeVar("Value")
Made = TypeVar("Made")
State = TypeVar("State")
MessageState = TypeVar("MessageState", bound=Message)
Payload = TypeVar("Payload")

Key = str | bytes
KeyOf = Callable[[Value], Key]
KeyInContext = Callable[[Value, Context], Key]
OutputKeyOf = Callable[[Value], Key | None]
OutputKeyInContext = Callable[[Value, Context], Key | None]
IdOf = Callable[[Value], Key | None] | Callable[[Value, Context], Key | None]
NumberOf = Callable[[Value], int | None] | Callable[[Value, Context], int | None]
Time = int | str | datetime | None
TimeOf = str | Callable[[Value], Time] | Callable[[Value, Context], Time]
Condition = Callable[[Value], bool] | Callable[[Value, Context], bool]
Fold = Callable[[State, Value], Iterable[Emitted] | None]
FoldInContext = Callable[[State, Value, Context], Iterable[Emitted] | None]
WindowFold = Callable[[State, Value], None]
WindowFoldInContext = Callable[[State, Value, Context], None]


class WindowFoldWithContext(Protocol[_State_contra, _Value_contra]):
    """`WindowFoldInContext`, in a form beside which mypy infers the parameters of a lambda for `WindowFold`."""

    def __call__(self, state: _State_contra, value: _Value_contra, context: Context, /) -> None: ...


OnTimer = Callable[[State, Timer], Iterable[Emitted] | None]
OnTimerInContext = Callable[[State, Timer, Context], Iterable[Emitted] | None]
