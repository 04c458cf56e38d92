"""What `python -m bench loop` makes of its runs: tables for the terminal and the report, and the picture."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from bench.looplearner import WARM_UP
from chappe.planning.capacity import bubble_ratio

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Run = dict[str, Any]


def bubble_of(run: Run, first: int = WARM_UP, last: int | None = None) -> float:
    """The share of the counted periods in which the learner waited."""
    measured = run["measured"]
    return sum(measured["waits_s"][first:last]) / sum(measured["periods_s"][first:last])


def final(curve: Sequence[float]) -> float:
    """The mean reward of the last tenth of the steps."""
    return statistics.fmean(curve[-max(1, len(curve) // 10) :])


def rows(runs: Sequence[Run]) -> list[tuple[str, ...]]:
    """Part, what, required and measured pool, T_bcast, predicted and measured bubble, difference in points."""
    found = []
    for run in runs:
        if "measured" not in run:
            continue
        p, order = run["predicted"], run["order"]
        kill = order.get("kill_at")
        spans = [("", WARM_UP, None)]
        if kill is not None:
            spans = [(", before the fault", WARM_UP, kill), (", after it", kill + 1, None)]
        for what, first, last in spans:
            measured = bubble_of(run, first, last)
            predicted = p["bubble"] if not what.endswith("after it") else after_fault(p, order["workers"])
            found.append(
                (
                    run["part"],
                    f"{p['mu_per_s'] / p['required_per_s']:.2f} x, kappa {p['kappa']}{what}",
                    f"{p['required_per_s']:.1f}",
                    f"{p['mu_per_s']:.1f}",
                    f"{p['t_bcast_s']:.2f} / {statistics.median(run['measured']['t_bcast_s']):.2f}",
                    f"{predicted:.1%}",
                    f"{measured:.1%}",
                    f"{100 * (measured - predicted):+.1f}",
                )
            )
    return found


COLUMNS = ("part", "pool", "required/s", "mu/s", "T_bcast s, alone / in the run", "predicted", "measured", "points")


def after_fault(predicted: Run, workers: int) -> float:
    """The bubble with one worker less."""
    mu = predicted["mu_per_s"] * (workers - 1) / workers
    return bubble_ratio(
        predicted["t_train_s"], predicted["t_bcast_s"], predicted["kappa"], predicted["batch"], mu_pool=mu
    )


REWARD_COLUMNS = ("S", "reward at the end, by seed", "mean", "spread", "steps to 0.8")


def reward_rows(runs: Sequence[Run]) -> list[tuple[str, ...]]:
    found = []
    for run in runs:
        if run["part"] == "rewards":
            ends = [final(curve) for curve in run["curves"]]
            reached = [next((i + 1 for i, r in enumerate(c) if r >= 0.8), None) for c in run["curves"]]
            found.append(
                (
                    "co-located" if run["staleness"] == 0 else str(run["staleness"]),
                    " ".join(f"{end:.3f}" for end in ends),
                    f"{statistics.fmean(ends):.3f}",
                    f"{max(ends) - min(ends):.3f}",
                    " ".join("never" if r is None else str(r) for r in reached),
                )
            )
    return found


def activation_line(runs: Sequence[Run]) -> str:
    for run in runs:
        if run["part"] == "activation":
            gaps = sorted(run["random_over_rho"])
            low, high = gaps[len(gaps) // 20], gaps[-len(gaps) // 20]
            return (
                f"Random choice is {statistics.fmean(gaps):.1%} dearer than rho (90 % of the draws: {low:.1%} to "
                f"{high:.1%}), over {run['fleets']} drawn fleets of 40, half of whose rate is needed."
            )
    return ""


def show(runs: Sequence[Run]) -> None:
    console = Console()
    for columns, cells in ((COLUMNS, rows(runs)), (REWARD_COLUMNS, reward_rows(runs))):
        if cells:
            table = Table(*columns)
            for row in cells:
                table.add_row(*row)
            console.print(table)
    if line := activation_line(runs):
        console.print(line)


def draw(report: dict[str, Any]) -> Figure:
    """Predicted against measured bubble of every run; reward by step, with the spread of the seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    bubbles, rewards = figure.subplots(1, 2)
    for part, marker in (("pools", "o"), ("kappa", "s")):
        mine = [run for run in report["runs"] if run["part"] == part]
        if mine:
            points = [(100 * run["predicted"]["bubble"], 100 * bubble_of(run)) for run in mine]
            bubbles.plot(*zip(*points, strict=True), marker, label=part)
            for run, point in zip(mine, points, strict=True):
                p = run["predicted"]
                text = f"{p['mu_per_s'] / p['required_per_s']:.2f} x, kappa {p['kappa']}"
                bubbles.annotate(text, point, xytext=(4, -9), textcoords="offset points", fontsize=7)
    most = max(5.0, *bubbles.get_xlim(), *bubbles.get_ylim())
    bubbles.plot((0, most), (0, most), color="0.6", linewidth=1)
    bubbles.fill_between((0, most), (-5, most - 5), (5, most + 5), color="0.9", label="5 points")
    bubbles.set(xlabel="predicted bubble, per cent", ylabel="measured", title="The learner's wait")
    bubbles.legend(fontsize=8)
    for run in report["runs"]:
        if run["part"] == "rewards":
            smooth = [_smooth(curve) for curve in run["curves"]]
            steps = range(1, len(smooth[0]) + 1)
            mean = [statistics.fmean(values) for values in zip(*smooth, strict=True)]
            label = "co-located" if run["staleness"] == 0 else f"S = {run['staleness']}"
            (line,) = rewards.plot(steps, mean, label=label, linewidth=1.2)
            low, high = ([pick(values) for values in zip(*smooth, strict=True)] for pick in (min, max))
            rewards.fill_between(steps, low, high, color=line.get_color(), alpha=0.15)
    rewards.set(xlabel="training step", ylabel="mean reward", title="GRPO by the age of its rollouts")
    if rewards.lines:
        rewards.legend(fontsize=8)
    return figure


def _smooth(curve: Sequence[float], window: int = 8) -> list[float]:
    return [statistics.fmean(curve[max(0, i - window + 1) : i + 1]) for i in range(len(curve))]
