"""Making a layout better by small steps: hill climbing over moves of single workers and of whole ends of chains.

    relocate   a worker to another place, or to a chain of its own
    exchange   two workers
    cross      the ends of two chains, each possibly empty: one chain behind another one, too

The first step that is better is taken. Where no step is, or when the budget is used up, it ends: rules of thumb find
good layouts for fleets of any size, and are far off now and then for a handful of workers, where steps matter most.
Pure, and the same for the same input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from chappe.planning.fluid import Host

Chains = list[list[Host]]
Score = tuple[float, ...]

REFINED_MAX = 128
"""Workers: a larger fleet has too many steps for the budget."""
BUDGET = 12_000
"""Completion times that may be computed: less than a tenth of a second."""


def refine(
    chains: Chains,
    judge: Callable[[Chains], Score],
    allowed: Callable[[Sequence[Host]], bool],
    *,
    keep_count: bool,
    budget: int = BUDGET,
) -> tuple[Score, Chains]:
    """The best of what steps lead to from these chains, none of them empty, and its score.

    `judge` tells how good chains are, less is better; `allowed` whether one chain may be at all. `keep_count` leaves
    their number as it is. `budget` counts completion times: a look at N workers costs N.
    """
    best = judge(chains)
    hosts = sum(map(len, chains))
    looks = budget // hosts
    better = True
    while better and looks > 0:
        better = False
        for changed in _steps(chains, keep_count=keep_count):
            if not all(allowed(changed[c]) for c in changed):
                continue
            tried = [changed.get(c, chain) for c, chain in enumerate(chains)] + [
                chain for c, chain in changed.items() if c >= len(chains)
            ]
            tried = [chain for chain in tried if chain]
            if keep_count and len(tried) != len(chains):
                continue
            looks -= 1
            score = judge(tried)
            if score < best:
                best, chains, better = score, tried, True
                break
            if looks <= 0:
                break
    return best, chains


def _steps(chains: Chains, *, keep_count: bool) -> Iterator[dict[int, list[Host]]]:
    """What a step makes of the chains that it changes, by their number; one number more is a new chain."""
    yield from _crossings(chains, keep_count=keep_count)
    yield from _relocations(chains, keep_count=keep_count)
    yield from _exchanges(chains)


def _crossings(chains: Chains, *, keep_count: bool) -> Iterator[dict[int, list[Host]]]:
    for a, one in enumerate(chains):
        for b in range(a + 1, len(chains)):
            other = chains[b]
            for i in range(len(one) + 1):
                for j in range(len(other) + 1):
                    yield {a: one[:i] + other[j:], b: other[:j] + one[i:]}
        if not keep_count:
            for i in range(1, len(one)):
                yield {a: one[:i], len(chains): one[i:]}


def _relocations(chains: Chains, *, keep_count: bool) -> Iterator[dict[int, list[Host]]]:
    for a, one in enumerate(chains):
        for i, host in enumerate(one):
            rest = one[:i] + one[i + 1 :]
            for j in range(len(rest) + 1):
                if j != i:
                    yield {a: [*rest[:j], host, *rest[j:]]}
            for b, other in enumerate(chains):
                if b != a:
                    for j in range(len(other) + 1):
                        yield {a: rest, b: [*other[:j], host, *other[j:]]}
            if not keep_count and rest:
                yield {a: rest, len(chains): [host]}


def _exchanges(chains: Chains) -> Iterator[dict[int, list[Host]]]:
    places = [(c, i) for c, chain in enumerate(chains) for i in range(len(chain))]
    for at, (a, i) in enumerate(places):
        for b, j in places[at + 1 :]:
            if a == b:
                chain = list(chains[a])
                chain[i], chain[j] = chain[j], chain[i]
                yield {a: chain}
            else:
                one, other = list(chains[a]), list(chains[b])
                one[i], other[j] = other[j], one[i]
                yield {a: one, b: other}
