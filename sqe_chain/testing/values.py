"""What happens to values between functions, as rehearsals see it."""

from __future__ import annotations

import warnings
from typing import Any

from sqe_chain.codecs import codec_for
from sqe_chain.errors import NotDeterministic
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.nodes import Node
from sqe_chain.flow.shapes import title_of
from sqe_chain.task.compiler import way_into


class ValueChanged(UserWarning):
    """A value is something else once its codec has read it: a tuple in a `dict` is a list then, a time is text.

    It is the same on every layout, but perhaps not what the function that takes it expects.
    """


class ValueWatch:
    """Watches the values of a flow, and reports what it has seen once for each place."""

    def __init__(self, flow: CompiledFlow) -> None:
        self._flow = flow
        self._warned = set[str]()
        self._found: list[str] = []
        self._errors: list[str] = []

    def passed(self, node: Node, value: object, read: object) -> None:
        if value is read or codec_for(type(value)).name != "json":
            return
        from sqe_chain.codecs.exact_states import find_changes  # noqa: PLC0415 - it needs msgspec

        for change in find_changes(value, read):
            text = f"{way_into(self._flow, node)}: {change}"
            if text not in self._warned:
                self._warned.add(text)
                self._found.append(text)

    def changed(self, node: Node, function: Any) -> None:  # noqa: ANN401 - of the user
        self._errors.append(
            f"flow {self._flow.name!r}: {node.called}, declared at {node.declared_at}, calls {title_of(function)}, which changes the "
            "value that it is given, and others get that value. Expected that it only looks at it. Copy what it changes"
        )

    def tell(self) -> None:
        """Warn of values that were changed.

        Raises:
            NotDeterministic: a function has changed what it only looks at.
        """
        changes, self._found = self._found, []
        errors, self._errors = self._errors, []
        if errors:
            raise NotDeterministic(errors[0])
        for text in changes:
            warnings.warn(text, ValueChanged, stacklevel=4)
