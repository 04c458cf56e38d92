"""How much rollout throughput a run needs so that the learner never waits.

One publication period of kappa training steps must cover the broadcast and the rollouts consumed in it (ECHO-2, overlap
condition):

    kappa * T_train >= T_bcast + kappa * R / mu_pool

All times in seconds, throughput in rollouts per second, `batch` (R) in rollouts per training step.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from chappe.planning.errors import Infeasible, at_least, not_negative, positive


def slack_s(t_train_s: float, t_bcast_s: float, kappa: int) -> float:
    """What a period leaves for generating: kappa * T_train - T_bcast. Negative when the broadcast alone is too long."""
    return at_least("kappa", kappa, 1) * positive("t_train_s", t_train_s) - not_negative("t_bcast_s", t_bcast_s)


def min_pool_throughput(t_train_s: float, t_bcast_s: float, kappa: int, batch: float) -> float:
    """The least mu_pool that meets the overlap condition: kappa * R / (kappa * T_train - T_bcast).

    Raises Infeasible when the broadcast takes the whole period, with the smallest kappa and the largest payload (as a
    fraction of the present one) that would leave room.
    """
    positive("batch", batch)
    slack = slack_s(t_train_s, t_bcast_s, kappa)
    if slack <= 0:
        kappa_min = math.floor(t_bcast_s / t_train_s) + 1
        fraction = kappa * t_train_s / t_bcast_s
        raise Infeasible(
            f"the broadcast ({t_bcast_s:g} s) fills the whole period of {kappa} steps ({kappa * t_train_s:g} s): "
            f"raise kappa to {kappa_min} or more, or send less than {fraction:.1%} of the payload (a delta)",
            kappa_min=kappa_min,
            payload_fraction_max=fraction,
        )
    return kappa * batch / slack


def workers_needed(
    t_train_s: float, t_bcast_s: float, kappa: int, batch: float, *, mu_worker: float, gamma: float = 1.1
) -> int:
    """Workers of `mu_worker` rollouts/s each that clear `gamma` times the requirement (gamma absorbs single faults)."""
    required = min_pool_throughput(t_train_s, t_bcast_s, kappa, batch)
    exact = positive("gamma", gamma) * required / positive("mu_worker", mu_worker)
    return math.ceil(exact - 1e-9)  # 8.000000001 workers are 8: the inputs are measurements


def bubble_ratio(t_train_s: float, t_bcast_s: float, kappa: int, batch: float, *, mu_pool: float) -> float:
    """The share of wall time in which the learner waits, 0 to 1.

    A period takes max(kappa * T_train, T_bcast + kappa * R / mu_pool); training fills kappa * T_train of it.
    """
    slack_s(t_train_s, t_bcast_s, kappa)
    supply_s = t_bcast_s + kappa * positive("batch", batch) / positive("mu_pool", mu_pool)
    period_s = max(kappa * t_train_s, supply_s)
    return 1 - kappa * t_train_s / period_s


def largest_t_bcast_s(t_train_s: float, kappa: int, batch: float, *, mu_pool: float) -> float:
    """The longest broadcast that a pool of this throughput can hide: kappa * (T_train - R / mu_pool).

    The overlap condition solved for T_bcast. Negative or zero when the pool is too slow for any broadcast.
    """
    at_least("kappa", kappa, 1)
    return kappa * (positive("t_train_s", t_train_s) - positive("batch", batch) / positive("mu_pool", mu_pool))


def smallest_kappa(t_train_s: float, t_bcast_s: float, batch: float, *, mu_pool: float) -> int | None:
    """The smallest kappa with which a pool of this throughput suffices; None when none does.

    The overlap condition solved for kappa: T_bcast / (T_train - R / mu_pool), rounded up. A pool that makes no more
    than R / T_train never catches up, whatever the period.
    """
    spare_s = largest_t_bcast_s(t_train_s, 1, batch, mu_pool=mu_pool)
    if spare_s <= 0:
        return None
    return max(1, math.ceil(not_negative("t_bcast_s", t_bcast_s) / spare_s - 1e-9))


def smallest_fleet(
    t_train_s: float,
    t_bcast_of: Callable[[int], float],
    kappa: int,
    batch: float,
    *,
    mu_worker: float,
    gamma: float = 1.1,
    workers_max: int = 100_000,
) -> int:
    """The fewest workers N that suffice for the broadcast to N workers, where T_bcast grows with the fleet.

    `t_bcast_of(N)` in seconds, never falling with N. The requirement never falls either, so going from N to what N's
    broadcast asks for, beginning with one worker, ends at the least N that asks for no more than itself. Raises
    Infeasible when the broadcast outgrows the period, or the fleet `workers_max`, first.
    """
    workers = 1
    while True:
        needed = workers_needed(t_train_s, t_bcast_of(workers), kappa, batch, mu_worker=mu_worker, gamma=gamma)
        if needed <= workers:
            return workers
        if needed > workers_max:
            raise Infeasible(f"more than {workers_max} workers would be needed for the broadcast to them")
        workers = needed
