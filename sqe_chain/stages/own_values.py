"""Values in rows, as bytes: a reader shares the value that it gets with nobody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from sqe_chain.codecs import Codec
from sqe_chain.codecs.registry import codec_of_tag, encode_with_tag
from sqe_chain.errors import PoisonError, text_of
from sqe_chain.errors.outage import raise_outage
from sqe_chain.flow.stored import named_key, unreadable


def state_left(codec: Codec[Any], state: Any, maker: str, key: bytes | None = None) -> Any:  # noqa: ANN401 - of any type
    """The state that a function has left, as a store would give it back: it shares nothing with another, nor with the function.

    Raises:
        PoisonError: it cannot be stored as it is.
    """
    try:
        if codec.settle is not None:
            codec.settle(state)
        return state if codec.self_checking else codec.decode(codec.encode_state(state))
    except Exception as error:
        raise unstorable(maker, key, error) from error


def unstorable(maker: str, key: bytes | None, error: Exception) -> PoisonError:
    """The error for a state of a key that its maker, a stage and a function, has left so that it cannot be stored.

    Raises:
        Unavailable: its codec could not reach what it needs.
    """
    of_key = "" if key is None else f" of {named_key(key)}"
    raise_outage(error, f"the state{of_key} that {maker} left")
    return PoisonError(f"{maker} left a state{of_key} that cannot be stored as it is: {text_of(error)}")


class Stored(NamedTuple):
    """A value in a row: the tag of its codec (`sqe_chain.codecs.registry.tag_of`), and its bytes."""

    type: str
    data: bytes


class OwnValues:
    """Stores and reads the values of one stage in one batch.

    Args:
        maker: what has made the values, for error texts.
    """

    def __init__(self, maker: str) -> None:
        self._maker = maker
        self._decoders: dict[str, Callable[[bytes], Any]] = {}

    def store(self, value: object) -> Stored:
        """A value as bytes.

        Raises:
            PoisonError: there is no codec for it, or that does not take it.
        """
        try:
            return Stored(*encode_with_tag(value))
        except Exception as error:
            raise self._refused(value, error) from error

    def read(self, stored: Stored) -> Any:  # noqa: ANN401 - of any type
        """The value, which nobody else has.

        Raises:
            ChangedType: its type does not read it any more.
        """
        try:
            return self._decoded(stored)
        except Exception as error:
            raise unreadable(f"a value of {stored.type}", error) from error

    def _decoded(self, stored: Stored) -> Any:  # noqa: ANN401 - of any type
        decode = self._decoders.get(stored.type)
        if decode is None:
            decode = self._decoders[stored.type] = codec_of_tag(stored.type).decode_own
        return decode(stored.data)

    def read_back(self, value: object) -> Any:  # noqa: ANN401 - of any type
        """A value as its codec reads it; None for None.

        Raises:
            PoisonError: see `store`; or the codec does not read what it has written.
        """
        if value is None:
            return None
        stored = self.store(value)
        try:
            return self._decoded(stored)
        except Exception as error:
            raise self._refused(value, error) from error

    def _refused(self, value: object, error: Exception) -> PoisonError:
        raise_outage(error, f"a {type(value).__qualname__} that {self._maker} gave")
        return PoisonError(
            f"{self._maker} gave a {type(value).__qualname__} that its codec does not take: "
            f"{type(error).__name__}: {text_of(error)}"
        )
