"""Making what shows a defect as small as it can be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def smallest(
    item: Item, smaller: Callable[[Item], Iterator[Item]], shows: Callable[[Item], bool], most_attempts: int
) -> Item:
    """The smallest item that still shows something: the first smaller one that does is taken, again and again.

    Args:
        item: shows it.
        smaller: gives the items that are a little smaller, the smallest first.
        shows: whether an item shows it.
        most_attempts: items to try.
    """
    left = most_attempts
    while left > 0:
        for candidate in smaller(item):
            left -= 1
            if shows(candidate):
                item = candidate
                break
            if left <= 0:
                return item
        else:
            return item
    return item
