"""Whether a period of kappa steps covers the broadcast and its rollouts, from what the coordinator knows of its fleet.

    publications' starts, what trainers tell ──▶ T_train ─┐
    measured T_bcast(f), payload, links      ──▶ T_bcast ─┼─▶ slack ─▶ required rollouts/s ─┐
    what workers declare, or report          ──▶ pool ────┴─────────────────────────────────┴─▶ verdict and why

The arithmetic is `planning.capacity`'s; its inputs are taken from the state. Reads it, changes nothing. What is not
known stays None and is never guessed: the verdict says what is missing. Times in seconds, rates per second.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations, pairwise

from chappe.core.events import Role
from chappe.core.lanes import of_version
from chappe.core.publication import ENDED, INSTALLED, Phase, Publication
from chappe.core.rates import downlink, link_of, uplink
from chappe.core.state import FleetConfig, FleetState
from chappe.core.training_config import TrainingConfig, Verdict
from chappe.core.workers import Worker, chunks_held
from chappe.planning.capacity import bubble_ratio, largest_t_bcast_s, min_pool_throughput, slack_s, workers_needed
from chappe.planning.errors import Infeasible
from chappe.planning.measured import LAST, Measured, expected_t_bcast_s, usual_overhead
from chappe.planning.topology import broadcast_floor
from chappe.units import format_duration, format_size

AHEAD = 3
"""Versions that a drift is followed into the future."""
DRIFT_SHARE = 0.1  # of T_bcast: what a drift has to add in that time to be one
DRIFT_OVER_MIN = 4  # broadcasts: two of them always have a slope


@dataclass(frozen=True, slots=True)
class Timed:
    seconds: float
    source: str


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Of the next version, or of the one that is on its way: until the target fraction, until all (None: unknown)."""

    at_target_s: float
    tail_s: float | None
    source: str  # expected, running; bound before any broadcast was measured
    why: str
    measured: bool = True  # some broadcast was


@dataclass(frozen=True, slots=True)
class Assessment:
    verdict: Verdict
    reason: str
    t_train: Timed | None
    broadcast: Broadcast | None
    slack_s: float | None
    required_per_s: float | None
    pool_per_s: float | None
    required_workers: int | None
    active: int
    bubble: float | None


# ---- inputs --------------------------------------------------------------------------------------------------------


def rollouts_of(worker: Worker) -> float | None:
    """Rollouts/s: what its engine has reported last, else what was declared."""
    return worker.reported_rollouts_per_s or worker.rollouts_per_second


def usable(state: FleetState) -> list[Worker]:
    """Those that are here, or expected back within their lease: a stream that breaks is no fault yet."""
    return [w for w in state.relays if not (w.lapsed or w.drained or w.leaving)]


def step_time(state: FleetState, training: TrainingConfig) -> Timed | None:
    """T_train: as trainers told it with their last publications, as configured, or the time between starts over kappa.

    Measured, it contains whatever the learner waited: only a trainer can tell the two apart. Medians, so that one night
    off is not a slow step.
    """
    good = sorted((p for p in state.mains if p.phase not in ENDED), key=lambda p: p.started_s)
    told = [p.t_train_s for p in good if p.t_train_s > 0]
    if told:
        return Timed(statistics.median(told[-LAST:]), "told")
    if training.t_train_s is not None:
        return Timed(training.t_train_s, "configured")
    periods = [b.started_s - a.started_s for a, b in pairwise(good) if b.started_s > a.started_s]
    return Timed(statistics.median(periods[-LAST:]) / training.kappa, "measured") if periods else None


def measurements(state: FleetState, fraction: str) -> list[Measured]:
    """The broadcasts that have reached the fraction, oldest first."""
    found = []
    for p in sorted(state.mains, key=lambda p: p.started_s):
        floor_s = max((one.floor_s for one in of_version(state, p) if one.floor_s), default=0.0)
        if p.phase not in ENDED and p.t_bcast.get(fraction, 0.0) > 0 and floor_s > 0:
            found.append(Measured(p.version, p.t_bcast[fraction], floor_s))
    return found


def payload_bytes(state: FleetState, main: Publication) -> int:
    """The largest object that travels to anybody."""
    objects = [p for p in of_version(state, main) if any(m.counted and not m.via for m in p.members.values())]
    return max((p.payload_bytes for p in objects), default=main.payload_bytes)


def present_floor(state: FleetState, config: FleetConfig, payload: int, origin_id: str, now: float) -> float | None:
    """The physical bound for this payload over the links as they are now; None without an origin or workers."""
    origins = [w for w in state.workers.values() if w.role is Role.ORIGIN]
    origin = state.workers.get(origin_id) or max(origins, key=lambda w: w.heard_s, default=None)
    links = [link_of(w, config.assumed_bytes_per_s, now) for w in usable(state)]
    if origin is None or not links or payload <= 0:
        return None
    b0 = uplink(origin, config.assumed_bytes_per_s, now).bytes_per_s
    return broadcast_floor(payload, b0, [k.uplink_bytes_per_s for k in links], [k.downlink_bytes_per_s for k in links])


def broadcast(state: FleetState, config: FleetConfig, training: TrainingConfig, now: float) -> Broadcast | None:
    """What the next broadcast will take, or the running one at least; None before anything was offered."""
    known = [p for p in state.mains if p.phase not in ENDED and p.phase is not Phase.OPENING and p.payload_bytes]
    newest = max(known, key=lambda p: p.version, default=None)
    if newest is None:
        return None
    payload = payload_bytes(state, newest)
    floor_s = present_floor(state, config, payload, newest.origin_id, now)
    last = max((one.floor_s or 0.0 for one in of_version(state, newest)), default=0.0)
    floor_s = floor_s or last  # its publisher has gone: the links of that day are what is known
    if floor_s <= 0:
        return None
    target, tail = (measurements(state, key) for key in (training.key, "1.0"))
    at_target = expected_t_bcast_s(floor_s, target)
    overhead = usual_overhead(target)
    found = Broadcast(
        floor_s if at_target is None else at_target,
        expected_t_bcast_s(floor_s, tail),
        "bound" if at_target is None else "expected",
        f"at least: the bound for {format_size(payload)}"
        if overhead is None
        else f"expected: floor {format_duration(floor_s)} x {overhead:.3f} as measured",
        at_target is not None,
    )
    running = _running(state, config, newest, training, now)
    if running is None or running <= found.at_target_s:
        return found
    return Broadcast(
        running,
        None,
        "running",
        f"version {newest.version}: {format_duration(now - newest.started_s)} so far, what is left at the links' rate",
        found.measured,
    )


def _running(
    state: FleetState, config: FleetConfig, main: Publication, training: TrainingConfig, now: float
) -> float | None:
    """The least that the open broadcast will have taken: what each still lacks, at its downlink's rate."""
    if main.phase is not Phase.OPEN or training.key in main.t_bcast or not main.targeted:
        return None
    left = sorted(_left_s(state, config, main, worker_id, now) for worker_id, m in main.members.items() if m.counted)
    needed = max(1, math.ceil(training.fraction * len(left) - 1e-9))
    return now - main.started_s + left[min(needed, len(left)) - 1]


def _left_s(state: FleetState, config: FleetConfig, main: Publication, worker_id: str, now: float) -> float:
    member, worker = main.members[worker_id], state.workers.get(worker_id)
    if member.level >= INSTALLED or worker is None or member.failed:
        return 0.0  # who has failed may be mended at any moment: nothing is foretold for it
    carrier = state.publications.get(member.via) or main
    held = chunks_held(worker.holdings.get(carrier.object_id), carrier.chunks_total)
    lacking = 1 - held / carrier.chunks_total if carrier.chunks_total else 1.0
    return lacking * carrier.payload_bytes / downlink(worker, config.assumed_bytes_per_s, now).bytes_per_s


def slope_s(times_s: Iterable[float]) -> float:
    """Seconds by which each broadcast is longer than the one before: the median of all pairs' slopes (Theil, Sen)."""
    slopes = [(b - a) / (j - i) for (i, a), (j, b) in combinations(enumerate(times_s), 2)]
    return statistics.median(slopes) if slopes else 0.0


# ---- the verdict ---------------------------------------------------------------------------------------------------


def assess(
    state: FleetState, config: FleetConfig, training: TrainingConfig, now: float, spare: float = 1.0
) -> Assessment:
    """The verdict and all its figures; `spare` divides the pool (for hysteresis)."""
    t_train, sent = step_time(state, training), broadcast(state, config, training, now)
    workers = [w for w in usable(state) if not w.standby]
    rates = [rate for rate in map(rollouts_of, workers) if rate]
    pool = sum(rates) / spare if rates else None
    silent = len(workers) - len(rates)

    def answer(verdict: Verdict, reason: str, **rest: float | None) -> Assessment:
        needed = rest.get("needed")
        return Assessment(
            verdict,
            reason,
            t_train,
            sent,
            rest.get("slack"),
            rest.get("required"),
            pool,
            None if needed is None else int(needed),
            len(workers),
            rest.get("bubble"),
        )

    if t_train is None:
        return answer(Verdict.UNKNOWN, "T_train is not known: two publications measure it, or tell it")
    if sent is None:
        return answer(Verdict.UNKNOWN, "T_bcast is not known before something is published")
    k, r, step, bcast = training.kappa, training.batch, t_train.seconds, sent.at_target_s
    slack = slack_s(step, bcast, k)
    terms = (
        f"{k} x T_train {format_duration(step)} ({t_train.source}) - T_bcast({training.key}) {format_duration(bcast)} "
        f"({sent.why})"
    )
    try:
        required = min_pool_throughput(step, bcast, k, r)
    except Infeasible as error:
        waits = None if not pool else bubble_ratio(step, bcast, k, r, mu_pool=pool)
        return answer(Verdict.INFEASIBLE, f"{terms}: {error}", slack=slack, bubble=waits)
    mean = statistics.fmean(rates) if rates else None
    needed = None if mean is None else workers_needed(step, bcast, k, r, mu_worker=mean, gamma=training.gamma)
    figures = {"slack": slack, "required": required, "needed": needed}
    terms += f" leaves {format_duration(slack)}: {required:.4g} rollouts/s are needed"
    if not workers:
        return answer(Verdict.SHORT, f"{terms}, and no worker is here", bubble=1.0, **figures)
    if pool is None:
        return answer(Verdict.UNKNOWN, f"{terms}; no worker has declared or reported what it makes", **figures)
    bubble = bubble_ratio(step, bcast, k, r, mu_pool=pool)
    figures["bubble"] = bubble
    terms += f", {pool:.4g} are there" + (f" ({silent} workers have not said what they make)" if silent else "")
    if pool < required * (1 - 1e-9):
        return answer(Verdict.SHORT, f"{terms}: the learner waits {bubble:.1%} of the time", **figures)
    if pool < training.gamma * required * (1 - 1e-9):
        return answer(
            Verdict.THIN, f"{terms}: less than {training.gamma:g} times that, a fault will be felt", **figures
        )
    times = [m.t_bcast_s for m in measurements(state, training.key)[-LAST:]]
    drift, limit = slope_s(times), largest_t_bcast_s(step, k, r, mu_pool=pool)
    grows = len(times) >= DRIFT_OVER_MIN and AHEAD * drift > DRIFT_SHARE * bcast
    if grows and max(bcast, times[-1]) + AHEAD * drift > limit:
        return answer(
            Verdict.DRIFTING,
            f"{terms}; each broadcast takes {format_duration(drift)} more than the one before: more than the "
            f"{format_duration(limit)} that this pool can hide within {AHEAD} versions",
            **figures,
        )
    return answer(Verdict.ENOUGH, terms, **figures)
