"""What moving gains where links are not what was declared, and what it costs: the figures of `bench adapting`."""

from __future__ import annotations

import statistics

from bench.adapting import KINDS, compare
from bench.unequal import KNOWN


def test_moving_gains_where_links_differ_and_costs_nothing_where_they_do_not() -> None:
    rows = [compare(fleet, kind, 1) for fleet in KNOWN[1:4:2] for kind in KINDS]
    for kind in KINDS:
        mine = [row for row in rows if row["links"] == kind]
        static, adaptive = (statistics.mean(float(r[f"{k}_to_bound"]) for r in mine) for k in ("static", "adaptive"))
        if kind == "exact":
            assert adaptive <= 1.02 * static
        else:
            assert adaptive <= 0.95 * static
    assert max(float(row["twice_share"]) for row in rows) <= 0.01
