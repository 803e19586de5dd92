"""Totals of a table's changes: what each customer of the orders has spent, as a flow's declarations and as a service has them."""

from __future__ import annotations

from dataclasses import dataclass

from sqe_chain.flow import Change
from sqe_chain.testing import Rehearsal

TOPIC = "shop.public.orders"


@dataclass
class Order:
    """A row."""

    id: int
    customer: str
    amount: int


@dataclass
class Spent:
    """Of one customer."""

    amount: int = 0


def add(spent: Spent, part: Change[Order]) -> None:
    assert part.row is not None
    spent.amount += part.sign * part.row.amount


def customer_of(part: Change[Order]) -> str:
    assert part.row is not None
    return part.row.customer


def spent(service: Rehearsal) -> dict[str, int]:
    """Customer -> what the service has counted, without those who have spent nothing."""
    states = service.states("spent").items()
    return {key.decode(): state.amount for key, state in states if state.amount}
