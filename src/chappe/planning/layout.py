"""Which worker goes where, on unequal links.

What a worker passes on is at most min(uplink, downlink), and everything behind it is throttled to that. So inside a
chain the able come first, and over all chains the n least able are the tails: with n chains the broadcast runs at the
ability of the (n+1)-least able worker or at B0/n, whichever is less. Fewer chains give each more of B0, more chains let
more weak workers be tails; which n is best is found by trying, with the fluid model as the judge: T at the target
fraction first, T(1.0) second, the mean third. What is found is refined by small steps in fleets that are not large.

Demoted workers (not trusted at speed) are placed behind all others, whatever their links: more of them than chains form
the ends and feed each other. Two workers that cannot be dialled are never neighbours, and one only heads a chain of an
origin that can be dialled: every hop has one side that can dial.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chappe.planning.errors import positive
from chappe.planning.fluid import Host, completion_times, quantile_time
from chappe.planning.refine import BUDGET, REFINED_MAX, refine

HYSTERESIS = 1.05
"""floor(1.05 * B0/Bw): a link measured a few percent low must not cost a chain."""
CANDIDATES_MAX = 48
SMALL_FLEET = 12
"""Up to here every split into able and slow is tried."""
STARTS = 3
"""The best layouts with different numbers of chains are refined."""


@dataclass(frozen=True, slots=True)
class Layout:
    """`chains` as names, in order; `unplaced` have no neighbour that they can talk to."""

    chains: tuple[tuple[str, ...], ...]
    t_target_s: float
    t_all_s: float
    unplaced: tuple[str, ...] = ()


def _ranked(hosts: Sequence[Host], demoted: frozenset[str]) -> list[Host]:
    """Most able first, then the better downlink, then the name: the order of the input does not matter."""
    return sorted(
        hosts, key=lambda h: (h.name in demoted, -h.pass_through_bytes_per_s, -h.downlink_bytes_per_s, h.name)
    )


def _chain_counts(hosts: Sequence[Host], b0_bytes_per_s: float) -> list[int]:
    """Numbers of chains worth trying: all when they are few, else those that a link's own rate suggests."""
    if len(hosts) <= CANDIDATES_MAX:
        return list(range(1, len(hosts) + 1))
    rates = sorted({h.downlink_bytes_per_s for h in hosts} | {h.pass_through_bytes_per_s for h in hosts})
    picked = {rates[round(i * (len(rates) - 1) / 7)] for i in range(8)}
    counts = {min(max(1, math.floor(HYSTERESIS * b0_bytes_per_s / rate)), len(hosts)) for rate in picked}
    grown = {min(max(1, round(count * factor)), len(hosts)) for count in counts for factor in (0.5, 2)}
    return sorted(counts | grown | {1})[:CANDIDATES_MAX]


def _deal(ranked: Sequence[Host], dealt: list[list[Host]], *, origin_dialable: bool) -> list[Host]:
    """Deal the ranked workers behind the given chains (empty or not), layer by layer; returns who cannot be placed.

    The first layer is the short one when N is no multiple of the number of chains, so that the last one, the tails, is
    whole. A chain takes the most able worker that it can talk to.
    """
    by_length = sorted(range(len(dealt)), key=lambda c: len(dealt[c]))
    turn = by_length[: len(ranked) % len(dealt) or len(dealt)]
    if all(host.dialable for host in ranked):  # they can stand anywhere
        for host, c in zip(ranked, itertools.chain(turn, itertools.cycle(by_length)), strict=False):
            dealt[c].append(host)
        return []
    waiting = {True: deque(h for h in ranked if h.dialable), False: deque(h for h in ranked if not h.dialable)}
    position = {host.name: i for i, host in enumerate(ranked)}
    while waiting[True] or waiting[False]:
        placed = False
        for c in turn:
            can_dial_up = dealt[c][-1].dialable if dealt[c] else origin_dialable
            queues = [q for dialable, q in waiting.items() if q and (dialable or can_dial_up)]
            if queues:
                dealt[c].append(min(queues, key=lambda q: position[q[0].name]).popleft())
                placed = True
        if not placed and len(turn) == len(dealt):
            break
        turn = by_length
    return [*waiting[True], *waiting[False]]


Arrangement = tuple[list[list[Host]], list[Host]]


def _arrangements(
    ranked: Sequence[Host], counts: Sequence[int], needed: int, demoted: frozenset[str], *, origin_dialable: bool
) -> Iterator[Arrangement]:
    """Layers over n chains; the same with the least able alone in one chain; the `needed` best receivers in front."""
    small = len(ranked) <= SMALL_FLEET

    def deal(*groups: tuple[Sequence[Host], list[list[Host]]]) -> list[Host]:
        return [h for hosts, chains in groups for h in _deal(hosts, chains, origin_dialable=origin_dialable)]

    by_downlink = sorted(ranked, key=lambda h: (h.name in demoted, -h.downlink_bytes_per_s))
    front = {h.name for h in by_downlink[:needed]}
    wanted = [h for h in ranked if h.name in front]
    others = [h for h in ranked if h.name not in front]
    for n in counts:
        chains: list[list[Host]] = [[] for _ in range(n)]
        left = deal((ranked, chains))
        yield chains, left
        if others:
            chains = [[] for _ in range(n)]
            left = deal((wanted, chains), (others, chains))
            yield chains, left
        slow_most = len(ranked) - n + 1
        for slow in range(1, slow_most + 1) if small else (1, slow_most // 16, slow_most // 4):
            if n >= 2 and slow >= 1:
                chains = [[] for _ in range(n)]
                at = len(ranked) - slow
                left = deal((ranked[:at], chains[:-1]), (ranked[at:], chains[-1:]))
                yield chains, left


def plan_layout(
    payload_bytes: float,
    b0_bytes_per_s: float,
    hosts: Sequence[Host],
    *,
    fraction: float = 1.0,
    demoted: frozenset[str] = frozenset(),
    fill_s: float = 0.0,
    origin_dialable: bool = True,
    counts: Sequence[int] | None = None,
) -> Layout:
    """The best layout found for T(fraction), then T(1.0), then the mean. Raises PlanInputError for rates that are none.

    `counts` restricts the numbers of chains that are tried. Times are of the fluid model; workers that cannot be placed
    are named and count as never done.
    """
    positive("payload_bytes", payload_bytes)
    positive("b0_bytes_per_s", b0_bytes_per_s)
    for host in hosts:
        positive(f"uplink of {host.name!r}", host.uplink_bytes_per_s)
        positive(f"downlink of {host.name!r}", host.downlink_bytes_per_s)
    if not hosts:
        return Layout((), 0.0, 0.0)
    ranked = _ranked(hosts, demoted)
    restricted = counts is not None
    counts = _chain_counts(hosts, b0_bytes_per_s) if counts is None else counts
    needed = max(1, math.ceil(fraction * len(hosts) - 1e-9))

    def judge(chains: Sequence[Sequence[Host]]) -> tuple[float, ...]:
        times = completion_times(payload_bytes, b0_bytes_per_s, chains, fill_s=fill_s)
        flat = [t for row in times for t in row]
        target, whole = quantile_time(times, fraction), max(flat, default=math.inf)
        # Compare in steps of 0.1 %: what the model cannot tell apart is decided by the next criterion.
        return _coarse(target), _coarse(whole), math.fsum(flat)

    def allowed(chain: Sequence[Host]) -> bool:
        if chain and not (chain[0].dialable or origin_dialable):
            return False
        if any(not (a.dialable or b.dialable) for a, b in itertools.pairwise(chain)):
            return False
        return not any(a.name in demoted and b.name not in demoted for a, b in itertools.pairwise(chain))

    best: dict[int, Found] = {}  # by number of chains
    for dealt, unplaced in _arrangements(ranked, counts, needed, demoted, origin_dialable=origin_dialable):
        chains = [chain for chain in dealt if chain]
        found = Found((len(unplaced), *judge(chains)), chains, unplaced)
        if len(chains) not in best or found.score < best[len(chains)].score:
            best[len(chains)] = found
    candidates = sorted(best.values(), key=lambda f: f.score)
    chosen = candidates[0]
    if len(hosts) <= REFINED_MAX and not chosen.unplaced:
        starts = [f for f in candidates if not f.unplaced][:STARTS]
        for start in starts:
            score, chains = refine(start.chains, judge, allowed, keep_count=restricted, budget=BUDGET // len(starts))
            if (0, *score) < chosen.score:
                chosen = Found((0, *score), chains, [])
    times = completion_times(payload_bytes, b0_bytes_per_s, chosen.chains, fill_s=fill_s)
    return Layout(
        tuple(tuple(h.name for h in chain) for chain in chosen.chains),
        quantile_time(times, fraction),
        max((t for row in times for t in row), default=math.inf),
        tuple(h.name for h in chosen.unplaced),
    )


@dataclass(frozen=True, slots=True)
class Found:
    score: tuple[float, ...]
    chains: list[list[Host]]
    unplaced: list[Host]


def _coarse(seconds: float) -> float:
    return round(math.log(seconds) * 1000) if 0 < seconds < math.inf else seconds


def equal_chain_count(b0_bytes_per_s: float, bw_bytes_per_s: float, workers: int) -> int:
    """floor(B0/Bw) chains with hysteresis, at least one, never more than workers."""
    count = math.floor(
        HYSTERESIS * positive("b0_bytes_per_s", b0_bytes_per_s) / positive("bw_bytes_per_s", bw_bytes_per_s)
    )
    return max(1, min(count, workers))


def bound_s(payload_bytes: float, b0_bytes_per_s: float, hosts: Sequence[Host], *, fraction: float = 1.0) -> float:
    """The physical bound max(F/B0, F/d_q, N*F/(B0 + sum u)); d_q is the downlink at the target fraction, fastest first.

    For a fraction below one the third term counts the ceil(fraction * N) copies that are needed by then.
    """
    if not hosts:
        return 0.0
    copies = max(1, math.ceil(fraction * len(hosts) - 1e-9))
    d_q = sorted((h.downlink_bytes_per_s for h in hosts), reverse=True)[copies - 1]
    supply = b0_bytes_per_s + math.fsum(h.uplink_bytes_per_s for h in hosts)
    return max(payload_bytes / b0_bytes_per_s, payload_bytes / d_q, copies * payload_bytes / supply)
