"""`python -m bench loop`: a small RL loop whose weights travel through Chappe, beside what was predicted of it.

    namespace "trainer": coordinator; the learner (bench/looplearner.py), also the origin          tbf: its uplink
    namespace "wN":      relayd; a rollout worker (bench/loopworker.py) that reads what it landed  tbf: both ways

Parts, each an option of `--only`: pools (the bubble of pools at 0.7 to 1.5 of what is required), kappa (one pool,
several periods), fault (a worker dies, at gamma 1.0 and 1.1), rewards (GRPO by the age of its rollouts, beside a
co-located learner; in one process, no fleet), activation (random choice beside rho; arithmetic). Rates of workers and
the step of the learner are paced: two cores are no fleet. T_train, T_bcast and mu are measured before each run, and the
prediction from them is printed before the run begins.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from bench import scratch
from bench.fleet import COORDINATOR_PORT, DATA_PORT, ShapedFleet, Worker
from bench.links import Link
from bench.looplearner import WARM_UP
from bench.loopshow import bubble_of, final, show
from bench.results import RESULTS, earlier_runs, write_results
from chappe.cli.process import FleetError
from chappe.cli.settings import Duration, Flat, Rate, Settings
from chappe.errors import UsageError
from chappe.planning.activation import Candidate, by_rho, cheapest_prefix, order_prices

PARTS = ("pools", "kappa", "fault", "rewards", "activation")
DESK_PORT = 7410
RATIOS = (0.7, 1.0, 1.1, 1.5)
KAPPAS = (3, 2, 5)
"""The pool is that which the first of them requires."""
GAMMAS = (1.0, 1.1)
FAULT_WORKERS = 11
FAULT_STEP_S = 2.0
STALENESS = (0, 3, 6, 11)
"""Steps that every rollout is old; 0 is the co-located learner."""
SEEDS = (1, 2, 3)
ONE_THREAD = ("OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1")  # of each worker: more would take the others' cores
Run = dict[str, Any]


class LoopSettings(Settings):
    """What runs, and how large."""

    only: tuple[str, ...] = PARTS
    """pools, kappa, fault, rewards or activation. May be repeated."""
    workers: int = 4
    """Of the parts pools and kappa."""
    link: Rate = 60e6 / 8
    """Of each worker, both ways; the trainer's uplink is twice that."""
    step: Duration = 1.0
    """T_train: the least that a training step takes (its computation is in it)."""
    batch: int = 32
    """R: rollouts for each step."""
    periods: int = 8
    """Of each run; the first two are not counted."""
    steps: int = 200
    """Training steps of a reward curve."""
    seed: int = 7
    short: Annotated[bool, Parameter(negative="")] = False
    """One pool, one period more than the warm-up, short curves."""
    add: Annotated[bool, Parameter(negative="")] = False
    """Keep the parts that --output has and this does not run."""
    output: Path = RESULTS / "loop.json"
    directory: Path | None = None
    """For stores and logs."""


_DEFAULTS = LoopSettings()


def loop(*, settings: Annotated[LoopSettings, Flat] = _DEFAULTS) -> int:
    """A small RL loop through Chappe, beside what the planner predicted (root, namespaces, tc)."""
    unknown = set(settings.only) - set(PARTS)
    if unknown:
        raise UsageError(f"--only {min(unknown)}: the parts are {', '.join(PARTS)}")
    if settings.batch % 8 or settings.periods <= WARM_UP or settings.steps < 1:
        raise UsageError(f"--batch is a multiple of 8, --periods more than {WARM_UP}, --steps at least 1")
    if find_spec("torch") is None:
        raise UsageError("the learner trains with torch, which is not installed (pip install '.[torch]')")
    if settings.short:
        settings = settings.model_copy(update={"periods": WARM_UP + 2, "steps": 20})
    parameters = settings.model_dump(mode="json", exclude={"output", "directory", "only", "add", "short"})
    kept = earlier_runs(settings.output, parameters) if settings.add else []
    runs = [run for run in kept if run["part"] not in settings.only]
    for part in settings.only:
        runs += asyncio.run(_PARTS[part](settings))
    write_results(settings.output, "loop", parameters, runs)
    show(runs)
    return 0


# ---- runs over a fleet ---------------------------------------------------------------------------------------------


async def _pools(settings: LoopSettings) -> list[Run]:
    ratios = (1.0,) if settings.short else RATIOS
    orders = [{"kappa": 2, "batch": settings.batch, "ratio": r, "periods": settings.periods} for r in ratios]
    return await _fleet_runs(settings, "pools", orders, settings.workers, settings.step)


async def _kappa(settings: LoopSettings) -> list[Run]:
    orders: list[Run] = [
        {"kappa": k, "batch": settings.batch, "ratio": 1.0, "periods": settings.periods, "same_pace": k != KAPPAS[0]}
        for k in (KAPPAS[:2] if settings.short else KAPPAS)
    ]
    return await _fleet_runs(settings, "kappa", orders, settings.workers, settings.step)


async def _fault(settings: LoopSettings) -> list[Run]:
    found: list[Run] = []
    for gamma in GAMMAS[1:] if settings.short else GAMMAS:
        order = {"kappa": 2, "batch": 110, "ratio": gamma, "periods": settings.periods + 2, "kill_at": WARM_UP + 2}
        found += await _fleet_runs(settings, "fault", [order], FAULT_WORKERS, FAULT_STEP_S)
    return found


async def _fleet_runs(
    settings: LoopSettings, part: str, orders: Sequence[Run], workers: int, step_s: float
) -> list[Run]:
    directory = scratch.make("loop", settings.directory)
    link = Link(settings.link, settings.link)
    names = [f"w{i}" for i in range(1, workers + 1)]
    group = 10 if part == "fault" else 8
    try:
        async with ShapedFleet(directory, Link(2 * settings.link), [Worker(name, link) for name in names]) as fleet:
            trainer = fleet.host("trainer").address
            said = {
                "coordinator": f"{trainer}:{COORDINATOR_PORT}",
                "listen": f"{trainer}:{DATA_PORT}",
                "uplink": 2 * settings.link,
                "host": trainer,
                "port": DESK_PORT,
                "workers": workers,
                "step_s": step_s,
                "group": group,
                "seed": settings.seed,
                "runs": list(orders),
            }
            with (directory / "logs" / "learner.log").open("wb") as log:
                learner = fleet.host("trainer").popen(
                    [sys.executable, "-m", "bench.looplearner", json.dumps(said)], stdout=subprocess.PIPE, stderr=log
                )
                for number, name in enumerate(names):
                    await _start_worker(fleet, name, trainer, settings.seed + number)
                return await _listen(fleet, learner, part, directory, workers)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def _start_worker(fleet: ShapedFleet, name: str, trainer: str, seed: int) -> None:
    """It dials the learner's desk, which listens once torch is imported."""
    command = [
        "env",
        *ONE_THREAD,
        sys.executable,
        "-m",
        "bench.loopworker",
        str(fleet.store(name)),
        trainer,
        str(DESK_PORT),
        str(seed),
    ]
    with (fleet.directory / "logs" / f"{name}-worker.log").open("wb") as log:
        fleet.host(name).popen(command, stderr=log)


async def _listen(
    fleet: ShapedFleet, learner: subprocess.Popen[bytes], part: str, directory: Path, workers: int
) -> list[Run]:
    assert learner.stdout is not None
    runs: list[Run] = []
    while text := await asyncio.to_thread(learner.stdout.readline):
        line = json.loads(text)
        if "predicted" in line:
            line["order"]["workers"] = workers
            runs.append({"part": part, **line})
            print(_predicted(part, line), file=sys.stderr, flush=True)
        elif "kill" in line:
            await _kill(fleet, "w1")
        else:
            runs[-1] |= line
            print(f"  measured {bubble_of(runs[-1]):.1%}", file=sys.stderr, flush=True)
    if await asyncio.to_thread(learner.wait) != 0:
        logs = sorted((directory / "logs").glob("*.log"))
        tails = "\n".join(
            f"{log.name}: {log.read_text(errors='replace')[-600:]}" for log in logs if not log.name.startswith("w")
        )
        raise FleetError(f"the learner failed:\n{tails}")
    return runs


async def _kill(fleet: ShapedFleet, name: str) -> None:
    """Relay and rollout worker of one host, at once."""
    await fleet.processes[name].kill()
    for process in fleet.host(name).processes:
        process.kill()


def _predicted(part: str, line: Run) -> str:
    p = line["predicted"]
    return (
        f"{part}: kappa {p['kappa']}, R {p['batch']}: T_train {p['t_train_s']:.3f} s, T_bcast {p['t_bcast_s']:.3f} s, "
        f"required {p['required_per_s']:.1f}/s, pool {p['mu_per_s']:.1f}/s; predicted bubble {p['bubble']:.1%}"
    )


# ---- rewards and activation ----------------------------------------------------------------------------------------


async def _rewards(settings: LoopSettings) -> list[Run]:
    from bench.looppolicy import reward_curve

    found: list[Run] = []
    for lag in STALENESS:
        curves = [reward_curve(lag, seed, settings.steps, settings.batch, 8) for seed in SEEDS]
        found.append({"part": "rewards", "staleness": lag, "curves": curves})
        print(f"rewards: S = {lag}: {[round(final(c), 3) for c in curves]}", file=sys.stderr, flush=True)
    return found


async def _activation(settings: LoopSettings) -> list[Run]:
    """Fleets as they are rented: prices and rates within a factor of four, without any relation between the two."""
    dice, gaps = random.Random(settings.seed), []
    for _ in range(200):
        fleet = [Candidate(f"w{i}", dice.uniform(0.2, 0.8), dice.uniform(0.2, 0.8)) for i in range(40)]
        needed = 0.5 * sum(c.rollouts_per_s for c in fleet) / 1.1
        rho = cheapest_prefix(fleet, needed).price_per_hour
        orders = [dice.sample(by_rho(fleet), len(fleet)) for _ in range(20)]
        gaps += [price / rho - 1 for price in order_prices(orders, needed)]
    return [{"part": "activation", "fleets": 200, "random_over_rho": gaps}]


_PARTS = {"pools": _pools, "kappa": _kappa, "fault": _fault, "rewards": _rewards, "activation": _activation}
