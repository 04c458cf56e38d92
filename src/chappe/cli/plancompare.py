"""`chappe plan compare`: peer chains against object storage, in time and in money."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from rich.table import Table

from chappe.cli.planbroadcast import Broadcast, Payload, figure_s, forecast, kappa_of_period, seconds, sent
from chappe.cli.plancapacity import NO_LINKS, NO_PAYLOAD, NO_PERIOD, NO_POOL, Loop
from chappe.cli.plancost import NO_EGRESS, publication_period_s
from chappe.cli.planfleet import Fleet, fleet_of
from chappe.cli.plankeys import (
    EgressKeys,
    LinkKeys,
    PayloadKeys,
    PeriodKeys,
    PoolKeys,
    Scenario,
    StoreKeys,
    needed,
)
from chappe.cli.planshow import DEFAULT_OUTPUT, Answer, Output, answer, facts, grid, stack
from chappe.cli.settings import Flat
from chappe.planning import objectstore as model
from chappe.planning.errors import Infeasible
from chappe.planning.fluid import quantile_time
from chappe.units import format_rate, format_size

NO_STORE = StoreKeys()
FRACTIONS = (0.5, 0.9, 1.0)


def compare(
    *,
    store: Annotated[StoreKeys, Flat] = NO_STORE,
    egress: Annotated[EgressKeys, Flat] = NO_EGRESS,
    payload: Annotated[PayloadKeys, Flat] = NO_PAYLOAD,
    links: Annotated[LinkKeys, Flat] = NO_LINKS,
    period: Annotated[PeriodKeys, Flat] = NO_PERIOD,
    pool: Annotated[PoolKeys, Flat] = NO_POOL,
    output: Annotated[Output, Flat] = DEFAULT_OUTPUT,
) -> int:
    """Compare chains of peers with object storage: T(f), price per publication and per hour, and where they cross.

    With the training loop and --worker-price the workers that each way needs are priced too. Exit code 1: neither
    leaves the loop any time for rollouts.
    """
    return answer(output, lambda scenario: _compare(store, egress, payload, links, period, pool, scenario))


@dataclass(frozen=True, slots=True)
class Way:
    """One way to spread a version. `workers` are those that the training loop needs with this T_bcast: None when it is
    not known, infinite when the broadcast leaves no time for rollouts."""

    t_bcast_s: dict[str, float]
    per_publication: float
    per_hour: float
    workers: float | None
    workers_per_hour: float | None

    @property
    def whole_per_hour(self) -> float:
        """Egress and, where they are priced, workers."""
        return math.inf if self.workers == math.inf else self.per_hour + (self.workers_per_hour or 0.0)


def _compare(
    store: StoreKeys,
    egress: EgressKeys,
    payload: PayloadKeys,
    links: LinkKeys,
    period: PeriodKeys,
    pool: PoolKeys,
    scenario: Scenario,
) -> Answer:
    keys, leaving, merged = scenario.merge(store), scenario.merge(egress), scenario.merge(links)
    loop_keys, pool = scenario.merge(period), scenario.merge(pool)
    needed("compare", store_egress_price=keys.store_egress_price)
    assert keys.store_egress_price is not None
    what, fleet = sent(scenario.merge(payload)), fleet_of(links, scenario)
    planned = forecast(what, fleet, merged)
    spread = model.Dissemination(
        what.size_bytes, fleet.workers, len(planned.chains), publication_period_s(leaving, loop_keys)
    )
    prices = model.Prices(
        keys.store_egress_price,
        leaving.origin_egress_price,
        leaving.worker_egress_price,
        model.storage_per_hour(what.size_bytes, keys.versions_kept, keys.storage_price),
        keys.coordinator_price,
    )
    upload = keys.store_uplink or fleet.b0_bytes_per_s
    arrivals = [
        model.store_time_s(what.size_bytes, upload, link.downlink_bytes_per_s, part_bytes=keys.store_part)
        for link in fleet.links
    ]
    fractions, target = tuple(sorted({*FRACTIONS, merged.fraction})), str(merged.fraction)

    def way(times: dict[str, float], per_publication: float, per_hour: float) -> Way:
        workers = _workers(times[target], loop_keys, pool, keys)
        priced = None if workers is None or keys.worker_price is None else workers * keys.worker_price
        return Way(times, per_publication, per_hour, workers, priced)

    ways = {
        "chains": way(
            {str(q): planned.at(q) for q in fractions},
            model.chains_per_publication(spread, prices),
            model.chains_per_hour(spread, prices),
        ),
        "store": way(
            {str(q): quantile_time([arrivals], q) for q in fractions},
            model.store_per_publication(spread, prices),
            model.store_per_hour(spread, prices),
        ),
    }
    _check_feasible(ways, target, loop_keys, what)
    faster = _less({name: w.t_bcast_s[target] for name, w in ways.items()})
    cheaper = _less({name: w.per_hour for name, w in ways.items()})
    crossing = _crossover(spread, prices, ways["chains"].t_bcast_s[target], slowest_needed(fleet, merged.fraction))
    found: dict[str, Any] = {
        "payload_bytes": round(what.size_bytes),
        "workers": fleet.workers,
        "chains": spread.chains,
        "period_s": spread.period_s,
        "ways": {name: way_json(w) for name, w in ways.items()},
        "faster": faster,
        "cheaper": cheaper,
        "wins": _winner(ways, faster, cheaper),
        "crossover": crossing,
    }
    introduction = facts(
        [
            ("payload", f"{format_size(what.size_bytes)} ({what.kind}) every {seconds(spread.period_s)}"),
            ("to", f"{fleet.workers} workers: {spread.chains} chains, or an upload at {format_rate(upload)}"),
        ]
    )
    shown = stack(
        introduction,
        _table(ways),
        facts(_verdict(found, ways, target)),
        facts(_crossings(crossing, ways["chains"].t_bcast_s[target])),
    )

    def draw(path: Path) -> None:
        from chappe.cli.planplot import plot_compare

        plot_compare(path, spread, prices, planned.times_s, arrivals)

    return found, shown, draw


def _check_feasible(ways: dict[str, Way], target: str, period: PeriodKeys, payload: Payload) -> None:
    """Raises Infeasible with the remedies of the quicker way when both take the whole period."""
    if all(way.workers == math.inf for way in ways.values()):
        quicker = min(way.t_bcast_s[target] for way in ways.values())
        Loop(period, Broadcast(quicker, "the quicker way", payload), kappa_of_period(period) or 1).required()


def slowest_needed(fleet: Fleet, fraction: float) -> float:
    """The downlink of the slowest worker that the fraction still needs, in bytes per second."""
    fastest_first = sorted((link.downlink_bytes_per_s for link in fleet.links), reverse=True)
    return fastest_first[max(0, math.ceil(fraction * fleet.workers - 1e-9) - 1)]


def _crossover(
    spread: model.Dissemination, prices: model.Prices, chains_s: float, downlink_bytes_per_s: float
) -> dict[str, Any]:
    return {
        "store_egress_price": model.break_even_store_price(spread, prices),
        "period_s": model.break_even_period_s(spread, prices),
        "fleet": [asdict(c) for c in model.fleet_crossovers(spread, prices)],
        "store_uplink_bytes_per_s": None
        if chains_s == math.inf
        else model.upload_that_ties_bytes_per_s(spread.payload_bytes, chains_s, downlink_bytes_per_s),
    }


def way_json(way: Way) -> dict[str, Any]:
    """`feasible` is null when the training loop is not known, and then `workers` is too."""
    feasible = None if way.workers is None else way.workers != math.inf
    return asdict(way) | {"whole_per_hour": way.whole_per_hour, "feasible": feasible}


def _workers(t_bcast_s: float, period: PeriodKeys, pool: PoolKeys, keys: StoreKeys) -> float | None:
    """Raises UsageError when workers are to be priced and the training loop is not known."""
    kappa = kappa_of_period(period)
    loop = {
        "kappa": kappa,
        "t_train": period.t_train,
        "batch": period.batch,
        "rollouts_per_s": pool.rollouts_per_s,
    }
    if None in loop.values():
        if keys.worker_price is not None:
            needed("--worker-price", **loop)
        return None
    if t_bcast_s == math.inf:
        return math.inf
    try:
        return Loop(period, Broadcast(t_bcast_s, ""), kappa or 1).workers(pool)
    except Infeasible:
        return math.inf


def _less(values: dict[str, float]) -> str | None:
    """Whose value is less; None when they are the same to a thousandth."""
    (one, a), (other, b) = values.items()
    if a == b or math.isclose(a, b, rel_tol=1e-3):
        return None
    return one if a < b else other


def _winner(ways: dict[str, Way], faster: str | None, cheaper: str | None) -> str | None:
    """With priced workers, or one way infeasible: the less dear one; else the one that is not beaten in either."""
    if all(w.workers_per_hour is not None for w in ways.values()) or any(w.workers == math.inf for w in ways.values()):
        return _less({name: w.whole_per_hour for name, w in ways.items()})
    if faster is None or cheaper is None or faster == cheaper:
        return cheaper or faster
    return None


_LABELS = {"chains": "peer chains", "store": "object storage"}


def _table(ways: dict[str, Way]) -> Table:
    fractions = list(ways["chains"].t_bcast_s)
    loop = any(w.workers is not None for w in ways.values())
    priced = any(w.workers_per_hour is not None for w in ways.values())
    columns = ["", *(f"T({q})" for q in fractions), "a publication", "an hour"]
    columns += ["workers needed"] if loop else []
    columns += ["with workers, an hour"] if priced else []
    rows = []
    for name, way in ways.items():
        row = [_LABELS[name], *(figure_s(way.t_bcast_s[q]) for q in fractions)]
        row += [f"{way.per_publication:.2f}", f"{way.per_hour:.2f}"]
        row += [] if not loop else ["infeasible" if way.workers == math.inf else f"{way.workers}"]
        row += [] if not priced else ["" if way.workers == math.inf else f"{way.whole_per_hour:.2f}"]
        rows.append(row)
    return grid(columns, rows)


def _verdict(found: dict[str, Any], ways: dict[str, Way], target: str) -> list[tuple[str, str]]:
    def said(key: str, more: str) -> str:
        return f"{_LABELS[found[key]]}, by {more}" if found[key] else "the same"

    times = [w.t_bcast_s[target] for w in ways.values()]
    hours = [w.per_hour for w in ways.values()]
    wins = found["wins"]
    if wins is None and found["faster"] and found["cheaper"] and found["faster"] != found["cheaper"]:
        wins = "open: the faster one is dearer; --worker-price and the training loop weigh the one against the other"
    return [
        ("faster", said("faster", seconds(abs(times[0] - times[1])))),
        ("cheaper", said("cheaper", f"{abs(hours[0] - hours[1]):.2f} an hour")),
        ("wins", _LABELS.get(wins, wins) if wins else "neither"),
    ]


def _crossings(crossing: dict[str, Any], chains_s: float) -> list[tuple[str, str]]:
    price, period, tie = crossing["store_egress_price"], crossing["period_s"], crossing["store_uplink_bytes_per_s"]
    fleet = "; ".join(f"{_LABELS[c['winner']]} cheaper from {c['workers']:.1f} workers on" for c in crossing["fleet"])
    if price > 0:
        tied = f"the same at {price:.4f} per GB"
    else:
        tied = "the same only if it is free" if price == 0 else "the chains are dearer even if it is free"
    if chains_s == math.inf:
        upload = "any is enough: the chains cannot reach that many workers"
    elif tie is None:
        upload = "none makes the store as fast as the chains"
    else:
        upload = f"the store takes as long at {format_rate(tie)} (whole objects)"
    return [
        ("store's egress price", tied),
        ("fleet", fleet or "the same one is cheaper for any number of workers"),
        ("period", f"the same at {seconds(period)}" if period else "the same one is cheaper whatever the period"),
        ("upload to the store", upload),
    ]
