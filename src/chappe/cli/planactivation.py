"""`chappe plan activation`: which workers to activate, beside the exact cheapest set and choosing at random."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from chappe.cli.plancapacity import NO_LINKS, NO_PAYLOAD, NO_PERIOD, NO_POOL, Loop, read_loop
from chappe.cli.planfleet import candidates_of, offered, read_hosts
from chappe.cli.plankeys import ActivationKeys, LinkKeys, PayloadKeys, PeriodKeys, PoolKeys, Scenario
from chappe.cli.planshow import DEFAULT_OUTPUT, Answer, Output, answer, facts, grid, stack
from chappe.cli.settings import Flat
from chappe.errors import UsageError
from chappe.planning.activation import Activation, Candidate, by_rho, cheapest_prefix, exact_set, gap, order_prices
from chappe.planning.capacity import smallest_kappa
from chappe.planning.errors import Infeasible

NO_ACTIVATION = ActivationKeys()


def activation(
    *,
    activation: Annotated[ActivationKeys, Flat] = NO_ACTIVATION,
    payload: Annotated[PayloadKeys, Flat] = NO_PAYLOAD,
    links: Annotated[LinkKeys, Flat] = NO_LINKS,
    period: Annotated[PeriodKeys, Flat] = NO_PERIOD,
    pool: Annotated[PoolKeys, Flat] = NO_POOL,
    output: Annotated[Output, Flat] = DEFAULT_OUTPUT,
) -> int:
    """Choose the cheapest workers that together clear gamma times the requirement (by price per rollout).

    Exit code 1: all of them together fall short; the remedy is on stderr.
    """
    return answer(output, lambda scenario: _activation(activation, payload, links, period, pool, scenario))


def _activation(
    activation: ActivationKeys,
    payload: PayloadKeys,
    links: LinkKeys,
    period: PeriodKeys,
    pool: PoolKeys,
    scenario: Scenario,
) -> Answer:
    keys, workers = scenario.merge(activation), scenario.merge(pool)
    gamma = workers.gamma
    by_fleet = "fleet" in links.model_fields_set and "offers" not in activation.model_fields_set
    hosts = offered(keys.offers, workers.rollouts_per_s) if keys.offers and not by_fleet else None
    candidates = candidates_of(read_hosts(scenario.merge(links), scenario) if hosts is None else hosts)
    if not candidates:
        raise UsageError(
            "activation needs workers: --offers 8xRTX-5090@0.35/0.33 for kinds of hosts, or [[hosts]] with "
            "price_per_hour and rollouts_per_s, by --fleet or in the scenario"
        )
    loop = None
    if keys.required_rollouts_per_s is None:
        loop = read_loop(payload, links, period, scenario)
    required = loop.required() if loop else keys.required_rollouts_per_s
    assert required is not None
    try:
        chosen = cheapest_prefix(candidates, required, gamma=gamma)
    except Infeasible as no:
        raise _with_remedy(no, candidates, loop, gamma) from no
    best = exact_set(candidates, required, gamma=gamma)
    random_prices = order_prices(_orders(candidates, keys.draws, keys.seed), required, gamma=gamma)
    mean = statistics.fmean(random_prices)
    found: dict[str, Any] = {
        "required_rollouts_per_s": required,
        "gamma": gamma,
        "activate": list(chosen.names),
        "price_per_hour": chosen.price_per_hour,
        "rollouts_per_s": chosen.rollouts_per_s,
        "exact": {"activate": list(best.names), "price_per_hour": best.price_per_hour, "gap": gap(chosen, best)},
        "random": {
            "draws": keys.draws,
            "price_per_hour": mean,
            "dearer": mean / chosen.price_per_hour - 1 if chosen.price_per_hour else None,
        },
        "standby": [c.name for c in by_rho(candidates) if c.name not in chosen.names],
    }
    rows = [
        ("required", f"{required:.3f} rollouts/s, times gamma {gamma:g}: {gamma * required:.3f}"),
        ("activate", _summary(chosen)),
        ("exact cheapest set", f"{_summary(best)}: the ranking is {_percent(gap(chosen, best))} dearer"),
        ("at random", f"{mean:.2f}/h in the mean of {keys.draws} draws: {_percent(found['random']['dearer'])} dearer"),
    ]
    table = grid(
        ("worker", "price/h", "rollouts/s", "price of 1000 rollouts", ""),
        (
            (
                c.name,
                f"{c.price_per_hour:.2f}",
                f"{c.rollouts_per_s:.3f}",
                f"{c.rho / 3.6:.3f}",
                "active" if c.name in chosen.names else "standby",
            )
            for c in by_rho(candidates)
        ),
    )

    def draw(path: Path) -> None:
        from chappe.cli.planplot import plot_activation

        plot_activation(path, by_rho(candidates), gamma * required, chosen, best, random_prices)

    return found, stack(facts(rows), table), draw


def _orders(candidates: Sequence[Candidate], draws: int, seed: int) -> list[list[Candidate]]:
    dice = random.Random(seed)  # noqa: S311  not a secret
    return [dice.sample(list(candidates), len(candidates)) for _ in range(draws)]


def _summary(found: Activation) -> str:
    return f"{len(found.names)} workers, {found.rollouts_per_s:.3f} rollouts/s, {found.price_per_hour:.2f}/h"


def _percent(share: float | None) -> str:
    return "n/a" if share is None or not math.isfinite(share) else f"{share:.1%}"


def _with_remedy(no: Infeasible, candidates: Sequence[Candidate], loop: Loop | None, gamma: float) -> Infeasible:
    """With the training loop known, the kappa with which these workers suffice."""
    if loop is None:
        return no
    whole = math.fsum(c.rollouts_per_s for c in candidates)
    kappa = smallest_kappa(loop.t_train_s, loop.t_bcast_s, loop.batch, mu_pool=whole / gamma)
    if kappa is None:
        return Infeasible(f"{no}; no kappa is enough for these workers: {loop.batch / loop.t_train_s:.3f} at least")
    return Infeasible(f"{no}; kappa {kappa} is enough for these workers", kappa_min=kappa)
