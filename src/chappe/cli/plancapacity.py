"""`chappe plan capacity`: how much rollout throughput, how many workers, and what kappa changes about it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from chappe.cli.planbroadcast import NOT_LIVING, Broadcast, Living, broadcast_of, forecast, kappa_of_period, seconds
from chappe.cli.planfleet import Fleet
from chappe.cli.plankeys import LinkKeys, PayloadKeys, PeriodKeys, PoolKeys, Scenario, needed
from chappe.cli.planshow import DEFAULT_OUTPUT, Answer, Output, answer, facts, grid, stack
from chappe.cli.settings import Flat
from chappe.errors import UsageError
from chappe.planning.capacity import (
    bubble_ratio,
    largest_t_bcast_s,
    min_pool_throughput,
    slack_s,
    smallest_fleet,
    smallest_kappa,
    workers_needed,
)
from chappe.planning.errors import Infeasible
from chappe.planning.forecast import equal_links
from chappe.units import format_size

KAPPAS = (2, 3, 4, 5, 8)
SHARES = (0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5)
NO_PAYLOAD, NO_LINKS, NO_PERIOD, NO_POOL = PayloadKeys(), LinkKeys(), PeriodKeys(), PoolKeys()


class Loop:
    """One training loop with its broadcast: what `capacity` and `staleness` both start from."""

    def __init__(self, period: PeriodKeys, broadcast: Broadcast, kappa: int) -> None:
        needed("capacity", t_train=period.t_train, batch=period.batch)
        assert period.t_train is not None
        assert period.batch is not None
        self.t_train_s, self.batch, self.kappa = period.t_train, period.batch, kappa
        self.broadcast = broadcast

    @property
    def t_bcast_s(self) -> float:
        return self.broadcast.t_bcast_s

    def required(self, kappa: int | None = None) -> float:
        """Rollouts per second. Raises Infeasible, with the largest payload in bytes where it is known."""
        try:
            return min_pool_throughput(self.t_train_s, self.t_bcast_s, kappa or self.kappa, self.batch)
        except Infeasible as no:
            payload = self.broadcast.payload
            if payload is None or no.payload_fraction_max is None:
                raise
            most = format_size(payload.size_bytes * no.payload_fraction_max)
            raise Infeasible(
                f"{no}; that is less than {most} of {format_size(payload.size_bytes)}",
                kappa_min=no.kappa_min,
                payload_fraction_max=no.payload_fraction_max,
            ) from no

    def workers(self, pool: PoolKeys, kappa: int | None = None) -> int | None:
        if pool.rollouts_per_s is None:
            return None
        return workers_needed(
            self.t_train_s,
            self.t_bcast_s,
            kappa or self.kappa,
            self.batch,
            mu_worker=pool.rollouts_per_s,
            gamma=pool.gamma,
        )

    def bubble(self, mu_pool: float, kappa: int | None = None) -> float:
        return bubble_ratio(self.t_train_s, self.t_bcast_s, kappa or self.kappa, self.batch, mu_pool=mu_pool)

    def by_kappa(self, pool: PoolKeys, kappas: tuple[int, ...]) -> list[dict[str, Any]]:
        """What each kappa asks for; nulls where the broadcast alone takes the period."""
        rows = []
        for kappa in kappas:
            slack = slack_s(self.t_train_s, self.t_bcast_s, kappa)
            feasible = slack > 0
            rows.append(
                {
                    "kappa": kappa,
                    "slack_s": slack,
                    "required_rollouts_per_s": self.required(kappa) if feasible else None,
                    "workers": self.workers(pool, kappa) if feasible else None,
                }
            )
        return rows


def read_loop(
    payload: PayloadKeys,
    links: LinkKeys,
    period: PeriodKeys,
    scenario: Scenario,
    *,
    kappa: int | None = None,
    living: Living = NOT_LIVING,
) -> Loop:
    """Raises UsageError that names what is missing."""
    keys = scenario.merge(period)
    found = kappa_of_period(keys) if kappa is None else kappa
    needed("capacity", t_train=keys.t_train, kappa=found, batch=keys.batch)
    assert found is not None
    if living.coordinator is None:
        return Loop(keys, broadcast_of(keys, scenario.merge(payload), links, scenario), found)
    if period.t_bcast is not None:
        raise UsageError("--t-bcast and --coordinator say the same twice: leave one out")
    from chappe.cli.planlive import living_broadcast, status_of

    return Loop(keys, living_broadcast(status_of(living.coordinator, living), payload, links, scenario), found)


def capacity(
    *,
    payload: Annotated[PayloadKeys, Flat] = NO_PAYLOAD,
    links: Annotated[LinkKeys, Flat] = NO_LINKS,
    period: Annotated[PeriodKeys, Flat] = NO_PERIOD,
    pool: Annotated[PoolKeys, Flat] = NO_POOL,
    living: Annotated[Living, Flat] = NOT_LIVING,
    output: Annotated[Output, Flat] = DEFAULT_OUTPUT,
) -> int:
    """Say how much rollout throughput a run needs so that the learner never waits, and how many workers that is.

    Exit code 1: the broadcast takes the whole period; the remedy is on stderr.
    """
    return answer(output, lambda scenario: _capacity(payload, links, period, pool, living, scenario))


def _capacity(
    payload: PayloadKeys,
    links: LinkKeys,
    period: PeriodKeys,
    pool: PoolKeys,
    living: Living,
    scenario: Scenario,
) -> Answer:
    pool = scenario.merge(pool)
    loop = read_loop(payload, links, period, scenario, living=living)
    required = loop.required()
    workers = loop.workers(pool)
    suffices = _fleet_that_suffices(loop, pool, scenario.merge(links))
    found: dict[str, Any] = {
        "t_train_s": loop.t_train_s,
        "t_bcast_s": loop.t_bcast_s,
        "t_bcast_source": loop.broadcast.source,
        "kappa": loop.kappa,
        "batch": loop.batch,
        "gamma": pool.gamma,
        "slack_s": slack_s(loop.t_train_s, loop.t_bcast_s, loop.kappa),
        "required_rollouts_per_s": required,
        "workers": workers,
        "workers_without_headroom": loop.workers(pool.model_copy(update={"gamma": 1.0})),
        "workers_that_suffice_for_their_own_broadcast": suffices,
        "by_kappa": loop.by_kappa(pool, _kappas(loop.kappa)),
        "bubble_by_share": [{"share": s, "bubble": loop.bubble(s * required)} for s in SHARES],
    }
    rows = [
        ("T_train", seconds(loop.t_train_s)),
        ("T_bcast", f"{seconds(loop.t_bcast_s)}, {loop.broadcast.source}"),
        ("period", f"{seconds(loop.kappa * loop.t_train_s)}: kappa {loop.kappa}"),
        ("slack for rollouts", seconds(found["slack_s"])),
        ("required", f"{required:.3f} rollouts/s"),
    ]
    if workers is not None:
        bare = found["workers_without_headroom"]
        rows.append(
            ("workers", f"{workers} of {pool.rollouts_per_s:g} rollouts/s (gamma {pool.gamma:g}; {bare} without)")
        )
    if suffices is not None and workers is not None and suffices != workers:
        rows.append(("", f"{suffices} when the broadcast goes to exactly so many"))
    if pool.pool_rollouts_per_s is not None:
        rows += _pool(loop, pool.pool_rollouts_per_s, found)
    kappas = grid(
        ("kappa", "slack", "rollouts/s", "workers"),
        (
            (
                str(row["kappa"]),
                f"{row['slack_s']:.0f} s",
                "infeasible" if row["required_rollouts_per_s"] is None else f"{row['required_rollouts_per_s']:.3f}",
                "" if row["workers"] is None else str(row["workers"]),
            )
            for row in found["by_kappa"]
        ),
    )
    bubbles = grid(
        ("pool of the required", *(f"{s:.0%}" for s in SHARES)),
        [("learner waits", *(f"{row['bubble']:.1%}" for row in found["bubble_by_share"]))],
    )
    return found, stack(facts(rows), kappas, bubbles), _drawing(loop, pool)


def _kappas(kappa: int) -> tuple[int, ...]:
    return tuple(sorted({*KAPPAS, kappa}))


def _pool(loop: Loop, mu_pool: float, found: dict[str, Any]) -> list[tuple[str, str]]:
    """The pool as it is: the bubble, and what would end it."""
    bubble = loop.bubble(mu_pool)
    kappa = smallest_kappa(loop.t_train_s, loop.t_bcast_s, loop.batch, mu_pool=mu_pool)
    longest = largest_t_bcast_s(loop.t_train_s, loop.kappa, loop.batch, mu_pool=mu_pool)
    found["pool"] = {
        "rollouts_per_s": mu_pool,
        "bubble": bubble,
        "kappa_min": kappa,
        "t_bcast_max_s": max(0.0, longest) if longest > 0 else None,
    }
    if bubble <= 0:
        return [("pool", f"{mu_pool:g} rollouts/s: enough, the learner never waits")]
    remedies = [
        *([f"kappa {kappa}"] if kappa is not None else []),
        *([f"a broadcast of {seconds(longest)}"] if longest > 0 else []),
        f"{loop.required():.3f} rollouts/s",
    ]
    return [
        ("pool", f"{mu_pool:g} rollouts/s: the learner waits {bubble:.1%} of the time"),
        ("what ends it", " or ".join(remedies)),
    ]


def _fleet_that_suffices(loop: Loop, pool: PoolKeys, links: LinkKeys) -> int | None:
    """The fewest equal workers whose own broadcast leaves time enough; None where there are none, or no equal links."""
    broadcast = loop.broadcast
    payload, fleet = broadcast.payload, broadcast.fleet
    if payload is None or fleet is None or fleet.equal_bytes_per_s is None or pool.rollouts_per_s is None:
        return None
    rate, b0 = fleet.equal_bytes_per_s, fleet.b0_bytes_per_s

    def t_bcast(workers: int) -> float:
        resized = Fleet(b0, equal_links(workers, rate, rate), rate, fleet.source)
        return forecast(payload, resized, links).at(links.fraction)

    try:
        return smallest_fleet(
            loop.t_train_s, t_bcast, loop.kappa, loop.batch, mu_worker=pool.rollouts_per_s, gamma=pool.gamma
        )
    except Infeasible:  # the fleet as it is has its answer already
        return None


def _drawing(loop: Loop, pool: PoolKeys) -> Callable[[Path], None]:
    def draw(path: Path) -> None:
        from chappe.cli.planplot import plot_capacity

        rows = loop.by_kappa(pool, tuple(range(min(2, loop.kappa), max(12, loop.kappa + 2) + 1)))
        shares = [0.3 + 0.01 * i for i in range(141)]
        required = loop.required()
        plot_capacity(path, rows, loop.kappa, [(s, loop.bubble(s * required)) for s in shares], pool.gamma)

    return draw
