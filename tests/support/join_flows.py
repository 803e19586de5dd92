"""A join with a table and a join of two streams in one flow, as chaos tests run it.

    {prefix}.orders -relay-> {prefix}.relayed
    {prefix}.relayed, {prefix}.customers -joins-> {prefix}.named
    {prefix}.relayed, {prefix}.payments -joins-> {prefix}.paid

Environment variables: see `chaos_flows`.
"""

from __future__ import annotations

import os
from typing import Any

from sqe_chain.flow import Flow

BEFORE_MS, AFTER_MS = 500, 2_000
"""How much earlier or later than its order a payment may be."""
OUTPUTS = ("named", "paid")

_PREFIX = os.environ.get("CHAOS_PREFIX", "chaos")
Fact = dict[str, Any]


def at_ms(fact: Fact) -> int:
    return int(fact["at_ms"])


def key_of(fact: Fact) -> str:
    return str(fact["key"])


def both(order: Fact, other: Fact | None) -> Fact:
    return {"key": order["key"], "order": order["number"], "other": other and other["number"]}


relay = Flow(f"{_PREFIX}-relay")
relay.source(f"{_PREFIX}.orders", dict, raw=True, timestamp=at_ms).to(
    f"{_PREFIX}.relayed", key=key_of, partitions=2
)

joins = Flow(f"{_PREFIX}-joins", state_partitions=2)
_orders = joins.source(f"{_PREFIX}.relayed", dict).key_by(key_of)
_customers, _payments = (
    joins.source(f"{_PREFIX}.{topic}", dict, raw=True, timestamp=at_ms).key_by(key_of)
    for topic in ("customers", "payments")
)
_orders.join_table("named", _customers, both, how="left").to(f"{_PREFIX}.named", partitions=2)
_orders.join_stream("paid", _payments, both, before_ms=BEFORE_MS, after_ms=AFTER_MS, how="left").to(
    f"{_PREFIX}.paid", partitions=2
)

if "CHAOS_SIGNAL" in os.environ:
    from tests.support.signal_at_event import install_signal

    install_signal(os.environ["CHAOS_SIGNAL"])
