"""`chappe plan staleness`: how old trajectories become, and what each S asks of the pool."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from chappe.cli.planbroadcast import NOT_LIVING, Living, kappa_of_period, seconds
from chappe.cli.plancapacity import NO_LINKS, NO_PAYLOAD, NO_PERIOD, NO_POOL, read_loop
from chappe.cli.plankeys import LinkKeys, PayloadKeys, PeriodKeys, PoolKeys, Scenario
from chappe.cli.planshow import DEFAULT_OUTPUT, Answer, Output, answer, facts, grid, stack
from chappe.cli.settings import Flat
from chappe.errors import UsageError
from chappe.planning.staleness import STALENESS_MIN, plan_staleness, staleness_of

SHOWN_UP_TO = 12


def staleness(
    *,
    payload: Annotated[PayloadKeys, Flat] = NO_PAYLOAD,
    links: Annotated[LinkKeys, Flat] = NO_LINKS,
    period: Annotated[PeriodKeys, Flat] = NO_PERIOD,
    pool: Annotated[PoolKeys, Flat] = NO_POOL,
    living: Annotated[Living, Flat] = NOT_LIVING,
    output: Annotated[Output, Flat] = DEFAULT_OUTPUT,
) -> int:
    """Say how old trajectories become, whether that was published as stable, and what each S asks of the pool."""
    return answer(output, lambda scenario: _staleness(payload, links, period, pool, living, scenario))


def _staleness(
    payload: PayloadKeys,
    links: LinkKeys,
    period: PeriodKeys,
    pool: PoolKeys,
    living: Living,
    scenario: Scenario,
) -> Answer:
    keys, pool = scenario.merge(period), scenario.merge(pool)
    kappa = kappa_of_period(keys)
    if kappa is None:
        raise UsageError("staleness needs --staleness or --kappa")
    plan = plan_staleness(staleness_of(kappa))
    found: dict[str, Any] = {
        "staleness": plan.staleness,
        "kappa": plan.kappa,
        "oldest_admitted": f"v_t - {plan.staleness}",
        "envelope": plan.envelope.value,
        "warning": plan.warning or None,
    }
    rows = [
        ("staleness S", str(plan.staleness)),
        ("kappa", f"{plan.kappa} (S - 1: a publication every {plan.kappa} training steps)"),
        ("admission", f"a trajectory of version v at a learner at v_t: v >= v_t - {plan.staleness}"),
        ("envelope", plan.warning or "inside what was published as stable"),
    ]
    options = [plan_staleness(s) for s in range(STALENESS_MIN, max(SHOWN_UP_TO, plan.staleness + 1) + 1)]
    if living.coordinator is None and (keys.t_train is None or keys.batch is None):
        return found, facts(rows), _no_picture
    loop = read_loop(payload, links, period, scenario, kappa=kappa, living=living)
    found["by_staleness"] = [
        {"staleness": option.staleness, **row, "envelope": option.envelope.value}
        for option, row in zip(options, loop.by_kappa(pool, tuple(o.kappa for o in options)), strict=True)
    ]
    rows.insert(2, ("T_bcast", f"{seconds(loop.t_bcast_s)}, {loop.broadcast.source}"))
    table = grid(
        ("S", "kappa", "slack", "rollouts/s", "workers", "published as"),
        (
            (
                str(row["staleness"]),
                str(row["kappa"]),
                f"{row['slack_s']:.0f} s",
                "infeasible" if row["required_rollouts_per_s"] is None else f"{row['required_rollouts_per_s']:.3f}",
                "" if row["workers"] is None else str(row["workers"]),
                row["envelope"],
            )
            for row in found["by_staleness"]
        ),
    )
    loop.required()  # infeasible at the asked kappa is the answer, whatever other ones allow

    def draw(path: Path) -> None:
        from chappe.cli.planplot import plot_staleness

        plot_staleness(path, found["by_staleness"], plan.staleness)

    return found, stack(facts(rows), table), draw


def _no_picture(path: Path) -> None:
    raise UsageError(f"--plot {path}: a picture of staleness needs --t-train, --batch and T_bcast")
