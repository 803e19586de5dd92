"""How long the oldest record has waited, in little memory whatever waits."""

from __future__ import annotations

from typing import Final

_MOST: Final = 512
_TOGETHER_S: Final = 0.1


class Ages:
    """When records were appended, in spans of offsets. Plain: the time is an argument.

    >>> ages = Ages()
    >>> ages.appended(end=10, now_s=100.0)
    >>> ages.appended(end=25, now_s=160.0)
    >>> ages.oldest_s(position=4, now_s=170.0), ages.oldest_s(position=10, now_s=170.0), ages.oldest_s(position=25, now_s=170.0)
    (70.0, 10.0, 0.0)
    """

    def __init__(self) -> None:
        self._spans: list[tuple[int, float]] = []

    def appended(self, end: int, now_s: float) -> None:
        """Note that everything before an offset was appended by now.

        Args:
            end: the offset.
            now_s: seconds of a clock that does not go back.
        """
        spans = self._spans
        if spans and end <= spans[-1][0]:
            return
        if spans and now_s - spans[-1][1] < _TOGETHER_S:
            spans[-1] = end, spans[-1][1]
            return
        spans.append((end, now_s))
        if (
            len(spans) > _MOST
        ):  # two become one, as old as the older: then a record may seem older than it is, never younger
            self._spans = [(spans[at + 1][0], spans[at][1]) for at in range(0, len(spans) - 1, 2)]
            if len(spans) % 2:
                self._spans.append(spans[-1])

    def oldest_s(self, position: int, now_s: float) -> float:
        """How long the record at an offset has waited, in seconds; 0: there is none.

        Args:
            position: offset of the oldest record that waits.
            now_s: see `appended`.
        """
        while self._spans and self._spans[0][0] <= position:
            del self._spans[0]
        return max(0.0, now_s - self._spans[0][1]) if self._spans else 0.0
