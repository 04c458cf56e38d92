"""The best that chains can do, by trying all of them. Shares no code with `chappe.planning`.

For every set of heads, every way to divide the others among them and every order behind each: exact under the fluid
model, by two facts that the planner does not use.

* A hop of constant capacity c delivers D(t) = min over s <= t of P(s) + c (t - s) of what its parent has, P. Hops in a
  row are one hop of the smallest capacity. So whoever stands behind a head is done at max over s of s + (F - P(s)) / c,
  c the smallest capacity on the way; heads' progress is piecewise linear, so only its corners count.
* How many are done at a time t: a best division of the others, subset by subset. T(f) is the smallest completion time
  at which enough are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

Corners = list[tuple[float, float]]  # (time, amount): a head's progress


@dataclass(frozen=True, slots=True)
class Worker:
    up: float
    down: float
    dialable: bool = True


def bound(payload: float, b0: float, workers: Sequence[Worker], fraction: float = 1.0) -> float:
    """No topology is faster: all the origin can give, the slowest link that counts, all uplinks together."""
    copies = max(1, math.ceil(fraction * len(workers) - 1e-9))
    slowest = sorted(w.down for w in workers)[len(workers) - copies]
    return max(payload / b0, payload / slowest, copies * payload / (b0 + sum(w.up for w in workers)))


def best_time(payload: float, b0: float, workers: Sequence[Worker], fraction: float = 1.0) -> float:
    """T(fraction) of the best set of chains over which everybody can be reached (the origin can be dialled)."""
    everybody = range(len(workers))
    needed = max(1, math.ceil(fraction * len(workers) - 1e-9))
    best = math.inf
    for n in range(1, len(workers) + 1):
        for heads in combinations(everybody, n):
            best = min(best, _best_with(payload, b0, workers, heads, needed, best))
    return best


def _best_with(
    payload: float, b0: float, workers: Sequence[Worker], heads: Sequence[int], needed: int, below: float
) -> float:
    others = [i for i in range(len(workers)) if i not in heads]
    full = (1 << len(others)) - 1
    ways = [_orders(payload, progress, workers, head, others) for head, progress in _heads(payload, b0, workers, heads)]
    times = sorted({t for way in ways for options in way.values() for option in options for t in option if t < below})
    if not times or not _enough(ways, full, times[-1], needed):
        return math.inf
    low, high = 0, len(times) - 1
    while low < high:
        middle = (low + high) // 2
        if _enough(ways, full, times[middle], needed):
            high = middle
        else:
            low = middle + 1
    return times[low]


def _heads(payload: float, b0: float, workers: Sequence[Worker], heads: Sequence[int]) -> list[tuple[int, Corners]]:
    """What each head has when, the origin's uplink shared by water-filling among those that are not done."""
    held = dict.fromkeys(heads, 0.0)
    corners: dict[int, Corners] = {h: [(0.0, 0.0)] for h in heads}
    now = 0.0
    while True:
        wanting = [h for h in heads if held[h] < payload * (1 - 1e-12)]
        if not wanting:
            return [(h, corners[h]) for h in heads]
        level = _water_level(b0, [workers[h].down for h in wanting])
        rates = {h: min(level, workers[h].down) for h in wanting}
        step = min((payload - held[h]) / rates[h] for h in wanting)
        now += step
        for h in wanting:
            held[h] += step * rates[h]
            corners[h].append((now, held[h]))


def _water_level(supply: float, caps: Sequence[float]) -> float:
    """The level at which min(level, cap) adds up to the supply; infinite when all caps together are less."""
    rest = sorted(caps)
    while rest:
        level = supply / len(rest)
        if rest[0] >= level:
            return level
        supply -= rest.pop(0)
    return math.inf


def _orders(
    payload: float, progress: Corners, workers: Sequence[Worker], head: int, others: Sequence[int]
) -> dict[int, list[tuple[float, ...]]]:
    """For every subset of the others (a bit mask), the completion times of each order behind this head, head first."""
    found: dict[int, list[tuple[float, ...]]] = {}

    def extend(mask: int, last: int, capacity: float, times: tuple[float, ...]) -> None:
        found.setdefault(mask, []).append(times)
        for bit, i in enumerate(others):
            if mask >> bit & 1 or not (workers[last].dialable or workers[i].dialable):
                continue
            narrow = min(capacity, workers[last].up, workers[i].down)
            done = max(t + (payload - held) / narrow for t, held in progress)
            extend(mask | 1 << bit, i, narrow, (*times, done))

    extend(0, head, math.inf, (progress[-1][0],))
    return found


def _enough(ways: Sequence[dict[int, list[tuple[float, ...]]]], full: int, by: float, needed: int) -> bool:
    """Whether some division of the others has so many done by then."""
    most = {0: 0}  # by the subset that has been given out
    limit = by * (1 + 1e-12)
    for way in ways:
        done = {mask: max(sum(t <= limit for t in times) for times in options) for mask, options in way.items()}
        following: dict[int, int] = {}
        for used, count in most.items():
            for mask, more in done.items():
                if not used & mask:
                    key = used | mask
                    following[key] = max(following.get(key, -1), count + more)
        most = following
    return most.get(full, -1) >= needed
