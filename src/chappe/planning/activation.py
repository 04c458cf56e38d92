"""Which workers to activate: the cheapest that together clear the target.

rho_i = c_i / mu_i is the price of one rollout at worker i (ECHO-2): sort ascending and take the shortest prefix that
clears gamma times the required throughput. The prefix is optimal up to its last member; `exact_set` solves the covering
knapsack (minimise sum c_i x_i with sum mu_i x_i >= target, x binary) so that the gap can be shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from chappe.errors import UsageError
from chappe.planning.errors import Infeasible, not_negative, positive


@dataclass(frozen=True, slots=True)
class Candidate:
    """One worker: price per hour and rollouts per second."""

    name: str
    price_per_hour: float
    rollouts_per_s: float

    def __post_init__(self) -> None:
        not_negative(f"price_per_hour of {self.name!r}", self.price_per_hour)
        positive(f"rollouts_per_s of {self.name!r}", self.rollouts_per_s)

    @property
    def rho(self) -> float:
        """Price per rollout, in price per hour over rollouts per second."""
        return self.price_per_hour / self.rollouts_per_s


@dataclass(frozen=True, slots=True)
class Activation:
    """`names` in the order of activation."""

    names: tuple[str, ...]
    price_per_hour: float
    rollouts_per_s: float


def _activation(chosen: Sequence[Candidate]) -> Activation:
    return Activation(
        tuple(c.name for c in chosen),
        math.fsum(c.price_per_hour for c in chosen),
        math.fsum(c.rollouts_per_s for c in chosen),
    )


def _target(candidates: Sequence[Candidate], required_rollouts_per_s: float, gamma: float) -> float:
    target = positive("gamma", gamma) * not_negative("required_rollouts_per_s", required_rollouts_per_s)
    whole = math.fsum(c.rollouts_per_s for c in candidates)
    if whole < target * (1 - 1e-12):
        raise Infeasible(
            f"all {len(candidates)} workers together make {whole:g} rollouts/s, {target:g} are needed: "
            "add workers, lower gamma, or raise kappa"
        )
    return target * (1 - 1e-12)


def prefix_in_order(
    candidates: Sequence[Candidate], required_rollouts_per_s: float, *, gamma: float = 1.1
) -> Activation:
    """The shortest prefix of the given order that clears the target; the order is the caller's (random choice, say)."""
    target = _target(candidates, required_rollouts_per_s, gamma)
    chosen: list[Candidate] = []
    clears = 0.0
    for candidate in candidates:
        if clears >= target:
            break
        chosen.append(candidate)
        clears += candidate.rollouts_per_s
    return _activation(chosen)


def by_rho(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Ascending rho, ties to the faster, then by name."""
    return sorted(candidates, key=lambda c: (c.rho, -c.rollouts_per_s, c.name))


def cheapest_prefix(
    candidates: Sequence[Candidate], required_rollouts_per_s: float, *, gamma: float = 1.1
) -> Activation:
    """The first workers by rho that clear the target. Raises Infeasible when all together fall short."""
    return prefix_in_order(by_rho(candidates), required_rollouts_per_s, gamma=gamma)


def exact_set(candidates: Sequence[Candidate], required_rollouts_per_s: float, *, gamma: float = 1.1) -> Activation:
    """The cheapest set, by SciPy's mixed-integer solver. Raises Infeasible, and UsageError without SciPy."""
    try:
        import numpy as np
        from scipy import optimize  # an extra: daemons run without it
    except ImportError:
        raise UsageError("the exact set needs scipy: pip install 'chappe[plan]'") from None

    target = _target(candidates, required_rollouts_per_s, gamma)
    if target <= 0:
        return _activation([])
    prices = np.array([c.price_per_hour for c in candidates])
    rates = np.array([c.rollouts_per_s for c in candidates]) / target  # the solver's tolerance is absolute
    solved = optimize.milp(
        prices,
        constraints=optimize.LinearConstraint(rates[np.newaxis, :], lb=1.0),
        integrality=np.ones(len(candidates)),
        bounds=optimize.Bounds(0, 1),
    )
    chosen = [c for c, taken in zip(candidates, solved.x, strict=True) if taken > 0.5]
    return _activation(by_rho(chosen))


def order_prices(
    orders: Iterable[Sequence[Candidate]], required_rollouts_per_s: float, *, gamma: float = 1.1
) -> list[float]:
    """The price per hour of the prefix of each order: with shuffled ones, what choosing at random costs.

    ECHO-2 publishes random choice as 15 % dearer than rho for its own fleet; the orders are the caller's.
    """
    return [prefix_in_order(order, required_rollouts_per_s, gamma=gamma).price_per_hour for order in orders]


def gap(found: Activation, best: Activation) -> float:
    """How much dearer `found` is than `best`, as a fraction of `best`."""
    if best.price_per_hour == 0:
        return 0.0 if found.price_per_hour == 0 else math.inf
    return found.price_per_hour / best.price_per_hour - 1
