"""`chappe plan cost`: two fleets by the hour and by the step, and where the cheaper one stops being it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from chappe.cli.planbroadcast import kappa_of_period, seconds, sent
from chappe.cli.plancapacity import NO_LINKS, NO_PAYLOAD, NO_PERIOD
from chappe.cli.planfleet import kinds, price_list
from chappe.cli.plankeys import (
    CostKeys,
    EgressKeys,
    LinkKeys,
    PayloadKeys,
    PeriodKeys,
    Scenario,
    needed,
)
from chappe.cli.planshow import DEFAULT_OUTPUT, Answer, Output, answer, facts, grid, stack
from chappe.cli.settings import Flat
from chappe.errors import UsageError
from chappe.planning.cost import (
    HostGroup,
    break_even_fleet,
    compare,
    egress_per_hour,
    hourly,
    largest_cheaper_fleet,
    per_step,
)
from chappe.planning.objectstore import Dissemination, Prices, chains_per_hour
from chappe.planning.topology import chain_count

SLOWER = (0.0, 0.02, 0.05, 0.1, 0.2)
NO_COST, NO_EGRESS = CostKeys(), EgressKeys()


def cost(
    *,
    cost: Annotated[CostKeys, Flat] = NO_COST,
    egress: Annotated[EgressKeys, Flat] = NO_EGRESS,
    payload: Annotated[PayloadKeys, Flat] = NO_PAYLOAD,
    links: Annotated[LinkKeys, Flat] = NO_LINKS,
    period: Annotated[PeriodKeys, Flat] = NO_PERIOD,
    output: Annotated[Output, Flat] = DEFAULT_OUTPUT,
) -> int:
    """Compare two fleets: per hour, per step, the longest affordable step, and the number of hosts that breaks even.

    All prices are yours, in any one currency. Egress counts for the candidate when it is priced: its last kind are
    the workers, fed by --chains chains, or by as many as their links suggest.
    """
    return answer(output, lambda scenario: _cost(cost, egress, payload, links, period, scenario))


def _cost(
    cost: CostKeys,
    egress: EgressKeys,
    payload: PayloadKeys,
    links: LinkKeys,
    period: PeriodKeys,
    scenario: Scenario,
) -> Answer:
    keys = scenario.merge(cost)
    needed("cost", baseline=keys.baseline, candidate=keys.candidate)
    if (keys.baseline_step is None) != (keys.candidate_step is None):
        needed("cost per step", baseline_step=keys.baseline_step, candidate_step=keys.candidate_step)
    prices = price_list(keys.price)
    baseline = kinds("--baseline", keys.baseline, prices)
    candidate = kinds("--candidate", keys.candidate, prices)
    before, fixed, kind = hourly(baseline), hourly(candidate[:-1]), candidate[-1]
    if before == 0:
        raise UsageError("--baseline: it costs nothing; there is nothing to compare with")
    leaving = _egress(
        scenario.merge(egress), scenario.merge(payload), scenario.merge(links), scenario.merge(period), kind.count
    )
    after = hourly(candidate, egress_per_hour=leaving.per_hour)
    each = HostGroup(kind.name, kind.count, kind.price_per_hour + leaving.per_worker_hour)
    fixed += leaving.per_hour - kind.count * leaving.per_worker_hour
    if after == 0:
        raise UsageError("--candidate: it costs nothing; there is nothing to compare with")
    step_before, step_after = keys.baseline_step or 1.0, keys.candidate_step or 1.0
    compared = compare(before, step_before, after, step_after)
    affordable = before * step_before / step_after
    found: dict[str, Any] = {
        "baseline_per_hour": before,
        "candidate_per_hour": after,
        "egress_per_hour": leaving.per_hour,
        "saving": compared.saving,
        "saving_by_step_ratio": [
            {"longer": slower, "saving": compare(before, 1.0, after, 1.0 + slower).saving} for slower in SLOWER
        ],
        "break_even": _break_even(affordable, fixed, each),
    }
    leaves = f" ({leaving.per_hour:.2f} egress)" if leaving.per_hour else ""
    rows = [
        ("baseline", f"{_fleet(baseline)}: {before:.2f}/h"),
        ("candidate", f"{_fleet(candidate)}: {after:.2f}/h{leaves}"),
    ]
    if keys.baseline_step is not None:
        found |= {
            "baseline_per_step": per_step(before, step_before),
            "candidate_per_step": per_step(after, step_after),
            "step_ratio": compared.step_ratio,
            "break_even_step_s": compared.break_even_step_s,
        }
        rows += [
            ("per step", f"{compared.baseline_per_step:.2f} in {seconds(step_before)}"),
            ("", f"{compared.candidate_per_step:.2f} in {seconds(step_after)}, {compared.step_ratio - 1:+.1%} time"),
            ("longest affordable step", seconds(compared.break_even_step_s)),
        ]
    if keys.hours is not None:
        found |= {"baseline_total": before * keys.hours, "candidate_total": after * keys.hours}
        rows.append(("whole run", f"{before * keys.hours:.0f} against {after * keys.hours:.0f} in {keys.hours:g} h"))
    rows.append(("saving", f"{compared.saving:.1%}"))
    even = found["break_even"]
    if even is not None:
        rows.append(
            (
                "break-even fleet",
                f"{even['workers']:.2f} {kind.name}: {max(0, even['largest_cheaper'])} cost no more, "
                f"{even['next']['workers']} lose {-even['next']['saving']:.1%}",
            )
        )
    slower = grid(
        ("candidate's step against the baseline's", *(f"+{s:.0%}" for s in SLOWER)),
        [("saving", *(f"{row['saving']:.1%}" for row in found["saving_by_step_ratio"]))],
    )

    def draw(path: Path) -> None:
        from chappe.cli.planplot import plot_cost

        plot_cost(path, affordable, fixed, each, even["workers"] if even else None)

    return found, stack(facts(rows), slower), draw


def _break_even(affordable: float, fixed: float, kind: HostGroup) -> dict[str, Any] | None:
    """How many of the last kind cost as much per step as the baseline; None for a kind that costs nothing."""
    if kind.price_per_hour == 0:
        return None
    most = largest_cheaper_fleet(affordable, fixed, kind.price_per_hour)
    over = max(0, most + 1)
    return {
        "kind": kind.name,
        "workers": break_even_fleet(affordable, fixed, kind.price_per_hour),
        "largest_cheaper": most,
        "next": {"workers": over, "saving": 1 - (fixed + over * kind.price_per_hour) / affordable},
    }


@dataclass(frozen=True, slots=True)
class Leaving:
    """Egress per hour: of the fleet as it is, and of one more worker (beyond one for each chain)."""

    per_hour: float = 0.0
    per_worker_hour: float = 0.0


def _egress(egress: EgressKeys, payload: PayloadKeys, links: LinkKeys, period: PeriodKeys, workers: int) -> Leaving:
    if not workers or not (egress.origin_egress_price or egress.worker_egress_price):
        return Leaving()
    chains = _chains(links, workers)
    what = Dissemination(sent(payload).size_bytes, workers, chains, publication_period_s(egress, period))
    prices = Prices(0.0, egress.origin_egress_price, egress.worker_egress_price)
    return Leaving(
        chains_per_hour(what, prices),
        egress_per_hour(what.payload_bytes, 1.0, what.period_s, egress.worker_egress_price),
    )


def _chains(links: LinkKeys, workers: int) -> int:
    """As told, else as the coordinator would make them of equal links."""
    if links.chains:
        return links.chains
    if links.uplink is None or links.worker_downlink is None:
        raise UsageError("egress needs the number of chains: --chains, or --uplink and --worker-downlink")
    worker = min(links.worker_downlink, links.worker_uplink or links.worker_downlink)
    return chain_count(links.uplink, worker, workers)


def publication_period_s(egress: EgressKeys, period: PeriodKeys) -> float:
    """--period, else kappa * T_train. Raises UsageError."""
    if egress.period is not None:
        return egress.period
    kappa = kappa_of_period(period)
    if kappa is None or period.t_train is None:
        raise UsageError("the time between publications is missing: --period, or --kappa and --t-train")
    return kappa * period.t_train


def _fleet(groups: Sequence[HostGroup]) -> str:
    return ", ".join(f"{g.count} {g.name} at {g.price_per_hour:g}" for g in groups)
