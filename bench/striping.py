"""`python -m bench striping`: what stripes promise, by calculation: the bound, striped and plain chains beside it.

The planner's own time is a formula. This plays its plan as a fluid that shares code with nothing of it: every node's
uplink is shared by the hops that have something to send, as their stripes' weights say (turns do that), every downlink
too, a hop passes on no more than its parent has, the ACKs of what a node receives take a part of its uplink.

Headers are counted: nobody gets below 1.046 of the bound, which is of whole link rates. `1 child` is the bound for one
child in each stripe, of whole rates and without ACKs: it is above the other one where uplinks are above R, which only
a second child could use.
"""

from __future__ import annotations

import json as jsonlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from bench.results import RESULTS, write_results
from bench.unequal import KNOWN, MBIT, Fleet, drawn
from chappe.planning.fluid import Host
from chappe.planning.layout import plan_layout
from chappe.planning.stripes import ACK_SHARE, HEADER_SHARE, Stripe, plan_stripes, striped_rate

CHUNK_BYTES = 1 << 16
STEPS = 400
"""Of the time that the bound says: a step is about as long as a chunk takes."""


@dataclass(slots=True)
class _Hop:
    sender: str  # "" for the origin
    receiver: str
    above: _Hop | None
    size_bytes: float
    weight: int
    held_bytes: float = 0.0
    rate: float = 0.0


def _fair(
    hops: Sequence[_Hop], limits: Mapping[int, float], uplinks: Mapping[str, float], downs: Mapping[str, float]
) -> None:
    """Max-min fair rates: all grow by their weights until a link or a hop's own limit is full; there they stay."""
    room_up, room_down = dict(uplinks), dict(downs)
    for hop in hops:
        hop.rate = 0.0
    growing = list(hops)
    while growing:
        at_up: dict[str, int] = {}
        at_down: dict[str, int] = {}
        for hop in growing:
            at_up[hop.sender] = at_up.get(hop.sender, 0) + hop.weight
            at_down[hop.receiver] = at_down.get(hop.receiver, 0) + hop.weight
        step = min(
            min(room_up[n] / count for n, count in at_up.items()),
            min(room_down[n] / count for n, count in at_down.items()),
            min((limits[id(hop)] - hop.rate) / hop.weight for hop in growing),
        )
        step = max(0.0, step)
        for hop in growing:
            hop.rate += step * hop.weight
        for n, count in at_up.items():
            room_up[n] -= step * count
        for n, count in at_down.items():
            room_down[n] -= step * count
        growing = [
            hop
            for hop in growing
            if min(room_up[hop.sender], room_down[hop.receiver], limits[id(hop)] - hop.rate) > 1.0  # byte/s
        ]


def played(payload_bytes: float, b0: float, hosts: Sequence[Host], stripes: Sequence[Stripe]) -> dict[str, float]:
    """Seconds until each worker holds everything."""
    payload = payload_bytes * (1 + HEADER_SHARE)
    whole = sum(stripe.weight for stripe in stripes)
    hops: list[_Hop] = []
    for stripe in stripes:
        for chain in stripe.chains:
            above: _Hop | None = None
            for sender, receiver in zip(("", *chain[:-1]), chain, strict=True):
                above = _Hop(sender, receiver, above, payload * stripe.weight / whole, stripe.weight)
                hops.append(above)
    downs = {h.name: h.downlink_bytes_per_s for h in hosts}
    supply = b0 + sum(h.uplink_bytes_per_s for h in hosts)
    tick = max(payload / b0, payload / min(downs.values()), len(hosts) * payload / supply) / STEPS
    done: dict[str, float] = {}
    left = {h.name: sum(hop.receiver == h.name for hop in hops) for h in hosts}
    now = 0.0
    received = dict.fromkeys(downs, 0.0)
    while len(done) < len(hosts):
        going = [hop for hop in hops if hop.held_bytes < hop.size_bytes]
        limits: dict[int, float] = {}
        for hop in going:  # heads first: a child behind an empty parent gets what that one gets
            held = math.inf if hop.above is None else hop.above.held_bytes
            # A chunk must be whole before it is passed on.
            ahead = held - hop.held_bytes - (0 if held >= hop.size_bytes else CHUNK_BYTES)
            limits[id(hop)] = max(0.0, min(ahead, hop.size_bytes - hop.held_bytes) / tick)
        uplinks = {"": b0} | {h.name: max(1.0, h.uplink_bytes_per_s - ACK_SHARE * received[h.name]) for h in hosts}
        _fair([hop for hop in going if limits[id(hop)] > 0], limits, uplinks, downs)
        received = dict.fromkeys(downs, 0.0)
        now += tick
        for hop in going:
            if limits[id(hop)] <= 0:
                continue
            hop.held_bytes += hop.rate * tick
            received[hop.receiver] += hop.rate
            if hop.held_bytes >= hop.size_bytes - 1.0:
                hop.held_bytes = hop.size_bytes
                left[hop.receiver] -= 1
                if left[hop.receiver] == 0:
                    done[hop.receiver] = now
    return done


def compare(fleet: Fleet) -> dict[str, float | str]:
    """One fleet: T(1.0) of both, over the bound."""
    b0 = fleet.b0 * MBIT
    hosts = [Host(f"w{i}", up * MBIT, fleet.down * MBIT) for i, up in enumerate(fleet.up)]
    plain = plan_layout(fleet.size_bytes, b0, hosts)
    plain_s = max(played(fleet.size_bytes, b0, hosts, [Stripe(1, plain.chains)]).values())
    striped = plan_stripes(fleet.size_bytes, b0, hosts, chunk_bytes=CHUNK_BYTES)
    assert striped is not None
    striped_s = max(played(fleet.size_bytes, b0, hosts, striped.stripes).values())
    bound_s = fleet.bound_s(1.0)
    return {
        "fleet": fleet.name,
        "bound_s": bound_s,
        "one_child_s": fleet.size_bytes / striped_rate(b0, hosts, ack_share=0.0),
        "stripes": len(striped.stripes),
        "expected_s": striped.t_all_s,
        "striped_s": striped_s,
        "plain_s": plain_s,
        "striped_to_bound": striped_s / bound_s,
        "plain_to_bound": plain_s / bound_s,
    }


def striping(
    *,
    fleets: int = 20,
    seed: int = 1,
    output: Path = RESULTS / "striping.json",
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Striped plans of the fleets of `bench unequal`, played as a fluid, beside plain chains and the physical bound.

    Parameters
    ----------
    fleets
        How many random ones.
    seed
        The same seed draws the same fleets.
    output
        Where the results are written.
    json
        Print JSON instead of a table.
    """
    rows = [compare(fleet) for fleet in (*KNOWN, *drawn(fleets, seed))]
    write_results(output, "striping", {"fleets": fleets, "seed": seed}, rows)
    if json:
        print(jsonlib.dumps(rows, indent=2))
        return 0
    shown = {"bound_s": "bound", "one_child_s": "1 child", "expected_s": "formula", "striped_s": "striped"}
    shown |= {"plain_s": "plain", "striped_to_bound": "/ bound", "plain_to_bound": "/ bound"}
    print(f"{'':24} {'K':>3}" + "".join(f" {title:>8}" for title in shown.values()))
    for row in rows:
        print(f"{row['fleet']:24} {row['stripes']:3}" + "".join(f" {row[key]:8.2f}" for key in shown))
    return 0
