"""The pictures of `chappe plan --plot`. Each takes what its command worked out; matplotlib is an extra."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from chappe.errors import UsageError
from chappe.planning.activation import Activation, Candidate
from chappe.planning.broadcast import EqualFleet, chain_pipelined_s, floor_s, star_limited_s
from chappe.planning.cost import HostGroup
from chappe.planning.objectstore import Dissemination, Prices, chains_per_hour, store_per_hour
from chappe.planning.staleness import DIVERGED_STALENESS, STABLE_STALENESS_MAX
from chappe.units import format_rate, format_size

CHAINS, OTHER, FLOOR, MARK = "#1f6f8b", "#c8553d", "#555555", "#e0a030"
_STYLES: tuple[Literal["-", "--", ":"], ...] = ("-", "--", ":")


@contextmanager
def _figure(path: Path, columns: int = 1) -> Iterator[Any]:
    """Axes to draw on, saved at the end. Raises UsageError without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError("--plot needs matplotlib: pip install 'chappe[plan]'") from None
    figure = Figure(figsize=(6.4 * columns, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, columns)
    for one in [axes] if columns == 1 else axes:
        one.grid(visible=True, color="#dddddd", linewidth=0.6)
        one.set_axisbelow(True)
        one.spines[["top", "right"]].set_visible(False)
    yield axes
    figure.savefig(path, dpi=150)


def _arrive(axes: Any, times_s: Sequence[float], colour: str, name: str) -> None:
    """A step for every worker; those that never arrive keep the curve below one."""
    done = sorted(t for t in times_s if math.isfinite(t))
    shares = [(i + 1) / len(times_s) for i in range(len(done))]
    axes.step([0.0, *done], [0.0, *shares], where="post", color=colour, label=name)


def _whole_numbers(axes: Any) -> None:
    axes.xaxis.get_major_locator().set_params(integer=True)


def plot_topology(
    path: Path, payloads: Sequence[tuple[str, float]], b0_bytes_per_s: float, bw_bytes_per_s: float, workers: int
) -> None:
    """T_bcast against N for equal links: star, chains and floor (colours) of each payload (kinds of line)."""
    from matplotlib.lines import Line2D  # present: the figure needs it

    counts = range(1, max(20, 2 * workers) + 1)
    lines = (
        ("floor", FLOOR, 2.4, floor_s),
        ("star", OTHER, 1.4, star_limited_s),
        ("chains", CHAINS, 1.4, chain_pipelined_s),
    )
    with _figure(path) as axes:
        for style, (_, size) in zip(_STYLES, payloads, strict=False):
            fleets = [EqualFleet(size, b0_bytes_per_s, bw_bytes_per_s, n) for n in counts]
            for _, colour, width, t_bcast_s in lines:
                axes.plot(counts, [t_bcast_s(f) for f in fleets], style, color=colour, linewidth=width)
        axes.axvline(workers, color=MARK, linewidth=1, zorder=0)
        if len(payloads) > 1:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.set_xlabel(f"workers N (line: {workers})")
        _whole_numbers(axes)
        axes.set_ylabel("T_bcast(1.0), s")
        axes.set_title(f"trainer {format_rate(b0_bytes_per_s)}, workers {format_rate(bw_bytes_per_s)}", fontsize=10)
        keys = [Line2D([], [], color=colour, linewidth=width, label=name) for name, colour, width, _ in lines]
        keys += [
            Line2D([], [], color="black", linestyle=style, label=f"{kind}, {format_size(size)}")
            for style, (kind, size) in zip(_STYLES, payloads, strict=False)
        ]
        axes.figure.legend(handles=keys, fontsize=8, frameon=False, loc="outside right upper")


def plot_arrivals(
    path: Path, chains_s: Sequence[Sequence[float]], star_s: Sequence[Sequence[float]], floor_s: dict[str, float]
) -> None:
    """Share of the workers that have everything against time, for unequal links."""
    with _figure(path) as axes:
        _arrive(axes, [t for row in star_s for t in row], OTHER, "star")
        _arrive(axes, [t for row in chains_s for t in row], CHAINS, "chains")
        fractions = sorted(floor_s, key=float)
        axes.plot(
            [floor_s[q] for q in fractions],
            [float(q) for q in fractions],
            "|",
            color=FLOOR,
            markersize=12,
            label="floor at " + ", ".join(fractions),
        )
        axes.set_xlim(left=0)
        axes.set_ylim(0, 1.03)
        axes.set_xlabel("time, s")
        axes.set_ylabel("share of workers that have everything")
        axes.figure.legend(fontsize=8, frameon=False, loc="outside upper center", ncols=3)


def plot_capacity(
    path: Path, rows: Sequence[dict[str, Any]], kappa: int, bubbles: Sequence[tuple[float, float]], gamma: float
) -> None:
    """Workers (or rollouts/s) against kappa, and the bubble against the pool."""
    key = "workers" if any(row["workers"] is not None for row in rows) else "required_rollouts_per_s"
    label = f"workers (gamma {gamma:g})" if key == "workers" else "required rollouts/s"
    with _figure(path, 2) as (left, right):
        known = [row for row in rows if row[key] is not None]
        left.plot([r["kappa"] for r in known], [r[key] for r in known], "o-", color=CHAINS)
        asked = [r for r in known if r["kappa"] == kappa]
        left.plot([r["kappa"] for r in asked], [r[key] for r in asked], "o", color=MARK, markersize=9)
        missing = [row["kappa"] for row in rows if row[key] is None]
        left.plot(missing, [0] * len(missing), "x", color=OTHER, label="infeasible")
        left.set_xticks([row["kappa"] for row in rows])
        left.set_ylim(bottom=0)
        left.set_xlabel("kappa, training steps in a period")
        left.set_ylabel(label)
        if missing:
            left.legend(fontsize=8, frameon=False)
        right.plot([100 * s for s, _ in bubbles], [100 * b for _, b in bubbles], color=CHAINS)
        right.axvline(100, color=FLOOR, linewidth=0.8)
        right.axvline(100 * gamma, color=MARK, linewidth=0.8, label=f"gamma {gamma:g}")
        right.set_ylim(bottom=0)
        right.set_xlabel(f"pool, % of the required throughput (kappa {kappa})")
        right.set_ylabel("bubble: the learner waits, % of the time")
        right.legend(fontsize=8, frameon=False)


def plot_staleness(path: Path, rows: Sequence[dict[str, Any]], staleness: int) -> None:
    """Required rollouts/s against S, over what was published about it."""
    with _figure(path) as axes:
        known = [row for row in rows if row["required_rollouts_per_s"] is not None]
        last = rows[-1]["staleness"]
        axes.axvspan(2.5, STABLE_STALENESS_MAX + 0.5, color=CHAINS, alpha=0.1, label="published as stable")
        if last >= DIVERGED_STALENESS:
            axes.axvspan(
                DIVERGED_STALENESS - 0.5, last + 0.5, color=OTHER, alpha=0.12, label="published as diverged (S = 11)"
            )
        axes.plot([r["staleness"] for r in known], [r["required_rollouts_per_s"] for r in known], "o-", color=CHAINS)
        asked = [r for r in known if r["staleness"] == staleness]
        axes.plot(
            [staleness] * len(asked), [r["required_rollouts_per_s"] for r in asked], "o", color=MARK, markersize=9
        )
        axes.set_xticks([row["staleness"] for row in rows])
        axes.set_xlim(2.5, last + 0.5)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("staleness S (kappa = S - 1)")
        axes.set_ylabel("required rollouts/s")
        axes.legend(fontsize=8, frameon=False)


def plot_activation(
    path: Path,
    ranked: Sequence[Candidate],
    target: float,
    chosen: Activation,
    best: Activation,
    random_prices: Sequence[float],
) -> None:
    """Price against throughput as workers are activated by rho; the exact set and random choice beside it."""
    with _figure(path) as axes:
        rates, prices = [0.0], [0.0]
        for candidate in ranked:
            rates.append(rates[-1] + candidate.rollouts_per_s)
            prices.append(prices[-1] + candidate.price_per_hour)
        axes.plot(rates, prices, ".-", color=CHAINS, label="by price per rollout")
        axes.plot([chosen.rollouts_per_s], [chosen.price_per_hour], "o", color=MARK, markersize=9, label="activated")
        axes.plot([best.rollouts_per_s], [best.price_per_hour], "k+", markersize=11, label="exact cheapest set")
        dearest = sorted(random_prices)
        low, high = dearest[len(dearest) // 20], dearest[-1 - len(dearest) // 20]
        mean = math.fsum(random_prices) / len(random_prices)
        axes.errorbar(
            [target], [mean], [[mean - low], [high - mean]], fmt="s", color=OTHER, capsize=3, label="at random, 5-95 %"
        )
        axes.axvline(target, color=FLOOR, linewidth=0.8)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("rollouts/s (line: what is needed, headroom included)")
        axes.set_ylabel("price per hour")
        axes.legend(fontsize=8, frameon=False)


def plot_cost(path: Path, affordable: float, fixed: float, kind: HostGroup, break_even: float | None) -> None:
    """Price per hour against the number of the candidate's last kind, with the break-even."""
    most = max(2 * kind.count, round(1.25 * (break_even or 0.0)), 4)
    counts = range(most + 1)
    with _figure(path) as axes:
        axes.plot(counts, [fixed + n * kind.price_per_hour for n in counts], color=CHAINS, label="candidate")
        axes.axhline(affordable, color=OTHER, label="baseline's price per step, by the candidate's hour")
        axes.plot([kind.count], [fixed + kind.count * kind.price_per_hour], "o", color=MARK, markersize=9)
        if break_even is not None and break_even > 0:
            axes.axvline(break_even, color=FLOOR, linewidth=0.8, label=f"break-even {break_even:.1f}")
        axes.set_xlim(0, most)
        axes.set_ylim(bottom=0)
        axes.set_xlabel(f"number of {kind.name}")
        _whole_numbers(axes)
        axes.set_ylabel("price per hour")
        axes.legend(fontsize=8, frameon=False)


def plot_compare(
    path: Path,
    what: Dissemination,
    prices: Prices,
    chains_s: Sequence[Sequence[float]],
    store_s: Sequence[float],
) -> None:
    """Price per hour against N, and arrivals against time, of chains and object storage."""
    counts = range(1, max(20, 2 * what.workers) + 1)
    with _figure(path, 2) as (left, right):
        spreads = [replace(what, workers=n) for n in counts]
        left.plot(counts, [store_per_hour(s, prices) for s in spreads], color=OTHER, label="object storage")
        left.plot(
            counts,
            [chains_per_hour(s, prices) for s in spreads],
            color=CHAINS,
            clip_on=False,
            label=f"{what.chains} chains",
        )
        left.axvline(what.workers, color=MARK, linewidth=1)
        left.set_ylim(bottom=0)
        left.set_xlabel(f"workers N (line: {what.workers})")
        _whole_numbers(left)
        left.set_ylabel("price per hour, workers not included")
        left.legend(fontsize=8, frameon=False)
        _arrive(right, store_s, OTHER, "object storage")
        _arrive(right, [t for row in chains_s for t in row], CHAINS, "chains")
        right.set_xlim(left=0)
        right.set_ylim(0, 1.03)
        right.set_xlabel("time, s")
        right.set_ylabel("share of workers that have everything")
        right.legend(fontsize=8, frameon=False, loc="center left")
