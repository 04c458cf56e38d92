"""`python -m bench layout`: planned chains against every possible set of chains, and against the physical bound."""

from __future__ import annotations

import json as jsonlib
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from bench.oracle import Worker, best_time, bound
from bench.results import RESULTS, write_results
from chappe.planning.fluid import Host, completion_times, quantile_time
from chappe.planning.topology import Link, plan_chains

PAYLOAD = 1e9
FRACTIONS = (1.0, 0.9, 0.5)


@dataclass(frozen=True, slots=True)
class Fleet:
    b0: float
    workers: tuple[Worker, ...]


def draw(dice: random.Random, n: int) -> Fleet:
    """Uplinks, downlinks and reachability at random: rates spread over a factor of 20, one in five behind NAT."""

    def rate() -> float:
        return float(dice.choice([5, 10, 20, 30, 50, 100])) * dice.uniform(0.9, 1.1) * 1e6

    workers = tuple(Worker(rate(), rate(), dialable=dice.random() > 0.2) for _ in range(n))
    return Fleet(float(dice.choice([20, 60, 100, 300])) * 1e6, workers)


def planned_time(fleet: Fleet, fraction: float) -> float:
    """T(fraction) of what the coordinator would lay."""
    links = [Link(f"w{i}", f"w{i}", w.up, w.down, "measured", dialable=w.dialable) for i, w in enumerate(fleet.workers)]
    plan = plan_chains(fleet.b0, links, payload_bytes=PAYLOAD, fraction=fraction)
    chains: list[list[Host]] = [[] for _ in range(plan.chains)]
    by_id = {k.worker_id: k for k in links}
    for placement in plan.placements:
        k = by_id[placement.worker_id]
        chains[placement.slot].append(Host(k.worker_id, k.uplink_bytes_per_s, k.downlink_bytes_per_s, k.dialable))
    return quantile_time(completion_times(PAYLOAD, fleet.b0, [c for c in chains if c]), fraction)


Reference = Callable[[float, float, Sequence[Worker], float], float]


def compare(fleets: Sequence[Fleet], fraction: float, reference: Reference) -> dict[str, float]:
    """Planned over reference: mean, 90th percentile, largest, share within 1 %."""
    ratios = sorted(planned_time(f, fraction) / reference(PAYLOAD, f.b0, f.workers, fraction) for f in fleets)
    return {
        "smallest": ratios[0],
        "mean": statistics.fmean(ratios),
        "p90": ratios[round(0.9 * (len(ratios) - 1))],
        "largest": ratios[-1],
        "within_1_percent": sum(r <= 1.01 for r in ratios) / len(ratios),
    }


def run(fleets: int, seed: int) -> dict[str, dict[str, float]]:
    dice = random.Random(seed)
    small = [draw(dice, dice.randint(1, 7)) for _ in range(fleets)]
    large = [draw(dice, dice.randint(8, 64)) for _ in range(fleets)]
    rows: dict[str, dict[str, float]] = {}
    for f in FRACTIONS:
        rows[f"T({f}) / best of all chains, N <= 7"] = compare(small, f, best_time)
        rows[f"T({f}) / physical bound, N <= 7"] = compare(small, f, bound)
        rows[f"T({f}) / physical bound, N 8..64"] = compare(large, f, bound)
    return rows


def layout(
    *,
    fleets: int = 1000,
    seed: int = 1,
    output: Path = RESULTS / "layout.json",
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Plan random fleets and compare with brute force and with the bound that no topology beats.

    Parameters
    ----------
    fleets
        How many of each size.
    seed
        The same seed draws the same fleets.
    output
        Where the results are written.
    json
        Print JSON instead of a table.
    """
    rows = run(fleets, seed)
    parameters = {"fleets": fleets, "seed": seed}
    write_results(output, "layout", parameters, [{"name": name} | row for name, row in rows.items()])
    if json:
        print(jsonlib.dumps({"fleets": fleets, "seed": seed, "ratios": rows}, indent=2))
        return 0
    print(f"{fleets} random fleets of each size, seed {seed}\n")
    print(f"{'':40} {'mean':>7} {'p90':>7} {'max':>7} {'<= 1.01':>8}")
    for name, row in rows.items():
        print(f"{name:40} {row['mean']:7.4f} {row['p90']:7.3f} {row['largest']:7.3f} {row['within_1_percent']:8.1%}")
    return 0
