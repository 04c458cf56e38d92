"""`python -m bench adapting`: striped broadcasts whose links are not what was declared, as planned, and adapted.

The real fleet machine decides, over the fluid of `bench.fleetfluid`. `exact`: links carry what was declared; `half`:
the best uplink carries half of it; `noise`: each uplink between 0.6 and 1.2 of it. The bound is that of the links as
they are, of whole rates: headers take 4.6 % of them.
"""

from __future__ import annotations

import json as jsonlib
import random
import statistics
from pathlib import Path
from typing import Annotated
from unittest.mock import patch

from cyclopts import Parameter

from bench.fleetfluid import FleetFluid, Line
from bench.results import RESULTS, write_results
from bench.unequal import KNOWN, MBIT, Fleet, drawn
from chappe.core.rebalance import Rebalance
from chappe.core.restriping import Restriping
from chappe.planning.topology import broadcast_floor

RATIOS = ("static_to_bound", "moving_to_bound", "adaptive_to_bound")
KINDS = ("exact", "half", "noise")
LARGER = 3
"""Times the payload of `bench unequal`: what is measured in a broadcast takes seconds to be known."""


def lines_of(fleet: Fleet, kind: str, seed: int) -> list[Line]:
    dice = random.Random(f"{seed} {fleet.name}")
    best = max(range(len(fleet.up)), key=lambda i: fleet.up[i])
    lines = []
    for i, up in enumerate(fleet.up):
        share = {"exact": 1.0, "half": 0.5 if i == best else 1.0, "noise": dice.uniform(0.6, 1.2)}[kind]
        lines.append(Line(f"w{i}", up * share * MBIT, fleet.down * MBIT, up * MBIT, fleet.down * MBIT))
    return lines


def compare(fleet: Fleet, kind: str, seed: int) -> dict[str, float | str]:
    """T(1.0) of one fleet: static, with segments moved, and with the rest laid anew, too."""
    size_bytes, b0, lines = LARGER * fleet.size_bytes, fleet.b0 * MBIT, lines_of(fleet, kind, seed)
    bound_s = broadcast_floor(size_bytes, b0, [line.up for line in lines], [line.down for line in lines], 1.0)
    with patch.object(Rebalance, "look", lambda _: None):
        static = FleetFluid(size_bytes, b0, lines).run()
    with patch.object(Restriping, "look", lambda *_: False):
        moving = FleetFluid(size_bytes, b0, lines).run()
    adaptive = FleetFluid(size_bytes, b0, lines).run()
    return {
        "fleet": fleet.name,
        "links": kind,
        "bound_s": bound_s,
        "static_s": static.t_all_s,
        "moving_s": moving.t_all_s,
        "adaptive_s": adaptive.t_all_s,
        "static_to_bound": static.t_all_s / bound_s,
        "moving_to_bound": moving.t_all_s / bound_s,
        "adaptive_to_bound": adaptive.t_all_s / bound_s,
        "restriped": adaptive.logs["restriped"],
        "moved": adaptive.logs["segment_moved"],
        "twice_share": adaptive.twice_bytes / size_bytes / len(lines),
    }


def adapting(
    *,
    fleets: int = 8,
    seed: int = 1,
    output: Path = RESULTS / "adapting.json",
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Striped broadcasts over links that are not what was declared, as planned, with segments moved, and laid anew.

    Parameters
    ----------
    fleets
        How many random ones, beside the known ones of `bench unequal`.
    seed
        The same seed draws the same fleets and links.
    output
        Where the results are written.
    json
        Print JSON instead of a table.
    """
    rows = [compare(fleet, kind, seed) for fleet in (*KNOWN[:5], *drawn(fleets, seed)) for kind in KINDS]
    write_results(output, "adapting", {"fleets": fleets, "seed": seed}, rows)
    if json:
        print(jsonlib.dumps(rows, indent=2))
        return 0
    print(
        f"{'':24} {'links':6} {'bound':>8} {'T(1.0) over it: static':>23} {'moving':>8} {'both':>8} moved anew  twice"
    )
    for row in rows:
        ratios = "".join(f" {row[key]:{width}.2f}" for key, width in zip(RATIOS, (23, 8, 8), strict=True))
        counts = f"{row['moved']:5} {row['restriped']:4} {row['twice_share']:6.2%}"
        print(f"{row['fleet']:24} {row['links']:6} {row['bound_s']:6.2f} s{ratios} {counts}")
    for kind in KINDS:
        mine = [row for row in rows if row["links"] == kind]
        for key in RATIOS:
            ratios_of = [float(row[key]) for row in mine]
            print(f"{kind:6} {key:18} mean {statistics.mean(ratios_of):.3f}, worst {max(ratios_of):.2f}")
    return 0
