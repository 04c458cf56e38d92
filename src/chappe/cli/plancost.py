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
    Comparison,
    HostGroup,
    break_even_fleet,
    compare,
    egress_per_hour,
    hourly,
    largest_cheaper_fleet,
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


@dataclass(frozen=True, slots=True)
class Leaving:
    """Egress per hour: of the fleet as it is, and of one more worker (beyond one for each chain)."""

    per_hour: float = 0.0
    per_worker_hour: float = 0.0


@dataclass(frozen=True, slots=True)
class Fleets:
    """Both fleets by the hour. With n hosts of its last kind the candidate costs `fixed` + n * `each`'s price.

    Egress is in both. Without steps both take one second each: then only the hour counts.
    """

    baseline: list[HostGroup]
    candidate: list[HostGroup]
    leaving: Leaving
    step_before_s: float
    step_after_s: float

    @property
    def before(self) -> float:
        return hourly(self.baseline)

    @property
    def after(self) -> float:
        return hourly(self.candidate, egress_per_hour=self.leaving.per_hour)

    @property
    def each(self) -> HostGroup:
        last = self.candidate[-1]
        return HostGroup(last.name, last.count, last.price_per_hour + self.leaving.per_worker_hour)

    @property
    def fixed(self) -> float:
        return self.after - self.each.count * self.each.price_per_hour

    @property
    def affordable(self) -> float:
        """What an hour of the candidate may cost for its step to cost as much as the baseline's."""
        return self.before * self.step_before_s / self.step_after_s

    @property
    def compared(self) -> Comparison:
        return compare(self.before, self.step_before_s, self.after, self.step_after_s)


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
    candidate = kinds("--candidate", keys.candidate, prices)
    workers = candidate[-1].count
    leaving = _egress(
        scenario.merge(egress), scenario.merge(payload), scenario.merge(links), scenario.merge(period), workers
    )
    fleets = Fleets(
        kinds("--baseline", keys.baseline, prices),
        candidate,
        leaving,
        keys.baseline_step or 1.0,
        keys.candidate_step or 1.0,
    )
    for flag, price in (("--baseline", fleets.before), ("--candidate", fleets.after)):
        if price == 0:
            raise UsageError(f"{flag}: it costs nothing; there is nothing to compare with")
    found = _found(fleets, keys)
    slower = grid(
        ("candidate's step against the baseline's", *(f"+{s:.0%}" for s in SLOWER)),
        [("saving", *(f"{row['saving']:.1%}" for row in found["saving_by_step_ratio"]))],
    )

    def draw(path: Path) -> None:
        from chappe.cli.planplot import plot_cost

        even = found["break_even"]
        plot_cost(path, fleets.affordable, fleets.fixed, fleets.each, even["workers"] if even else None)

    return found, stack(facts(_rows(fleets, keys, found)), slower), draw


def _found(fleets: Fleets, keys: CostKeys) -> dict[str, Any]:
    found: dict[str, Any] = {
        "baseline_per_hour": fleets.before,
        "candidate_per_hour": fleets.after,
        "egress_per_hour": fleets.leaving.per_hour,
        "saving": fleets.compared.saving,
        "saving_by_step_ratio": [
            {"longer": s, "saving": compare(fleets.before, 1.0, fleets.after, 1.0 + s).saving} for s in SLOWER
        ],
        "break_even": _break_even(fleets.affordable, fleets.fixed, fleets.each),
    }
    if keys.baseline_step is not None:
        found |= {
            "baseline_per_step": fleets.compared.baseline_per_step,
            "candidate_per_step": fleets.compared.candidate_per_step,
            "step_ratio": fleets.compared.step_ratio,
            "break_even_step_s": fleets.compared.break_even_step_s,
        }
    if keys.hours is not None:
        found |= {"baseline_total": fleets.before * keys.hours, "candidate_total": fleets.after * keys.hours}
    return found


def _rows(fleets: Fleets, keys: CostKeys, found: dict[str, Any]) -> list[tuple[str, str]]:
    compared = fleets.compared
    leaves = f" ({fleets.leaving.per_hour:.2f} egress)" if fleets.leaving.per_hour else ""
    rows = [
        ("baseline", f"{_fleet(fleets.baseline)}: {fleets.before:.2f}/h"),
        ("candidate", f"{_fleet(fleets.candidate)}: {fleets.after:.2f}/h{leaves}"),
    ]
    if keys.baseline_step is not None:
        longer = f"{compared.step_ratio - 1:+.1%} time"
        rows += [
            ("per step", f"{compared.baseline_per_step:.2f} in {seconds(fleets.step_before_s)}"),
            ("", f"{compared.candidate_per_step:.2f} in {seconds(fleets.step_after_s)}, {longer}"),
            ("longest affordable step", seconds(compared.break_even_step_s)),
        ]
    if keys.hours is not None:
        totals = f"{found['baseline_total']:.0f} against {found['candidate_total']:.0f}"
        rows.append(("whole run", f"{totals} in {keys.hours:g} h"))
    rows.append(("saving", f"{compared.saving:.1%}"))
    if (even := found["break_even"]) is not None:
        most, over = max(0, even["largest_cheaper"]), even["next"]
        figure = f"{even['workers']:.2f} {even['kind']}"
        rows.append(
            ("break-even fleet", f"{figure}: {most} cost no more, {over['workers']} lose {-over['saving']:.1%}")
        )
    return rows


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
