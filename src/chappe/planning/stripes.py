"""Stripes: the physical bound on unequal links, with one parent and one child in each stripe.

The payload is cut into G equal parts. In each of them every worker stands once, in one of the part's chains, and
worker i is a *tail* in k_i of the G parts: it sends in the others only, so that it receives R and sends

    (G - k_i)/G * R  +  a * R          a: the ACKs of what it receives, a share of the downlink's rate

A part has as many chains as tails, and the origin sends R/G into each chain. So a rate R is possible when

    sum_i k_i <= G * B0/R,     k_i >= G * t_i,     t_i = min(1, max(0, 1 + a - u_i/R))       (tail shares)

and the tails are dealt like shifts around a clock (McNaughton's rule): worker after worker takes the next k_i parts,
beginning again at the first one after the last, so that no part has more than one tail more than another one and
nobody is twice in one. Without whole numbers (G -> infinity), with a = 0 and no uplink above R, this is
N*R = B0 + sum u, the bound. Whole numbers cost less than R/G for each worker that is tail in some of the parts.

Parts with the same tails are one *stripe*, with their number as its weight. One part differs from the one before it
only where somebody's shift ends, so there are at most as many stripes as workers, however fine the parts.

Workers whose downlink is below R would throttle what is behind them: they are tails everywhere, at their own rate, as
are demoted ones. At which downlink that begins is found by trying. Uplinks above R gain nothing: a second child in a
stripe would use them, and is not planned.

A node sends a few chunks at a time, whichever stripes they are of (`chappe.hop.turns`), so a chunk takes about as long
as it would on a plain hop. Rates in bytes per second, sizes in bytes, times in seconds. Pure.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from chappe.planning.errors import at_least, positive
from chappe.planning.fluid import Host

ACK_SHARE = 0.03
"""Of the rate at which a worker receives, from its uplink: 2 to 5 % measured at MTU 1500, one ACK for two segments."""
HEADER_SHARE = 0.046
"""Of what passes a link, more than the payload: 66 bytes for each 1448 at MTU 1500 with time stamps."""
STRIPES_MAX = 16
ORIGIN_STREAMS_MAX = 256
"""Of all stripes together: each is a socket, a thread and a cursor at the publisher."""
SMALL = 128
"""Up to so many workers every number of stripes is tried, in a larger fleet some."""
CUTS_MAX = 5
TURNS = 3
"""So many chunks a node sends at a time: each takes so many times as long as one alone would on its uplink."""
_FINE = (20, 24, 32, 48, 64)
"""More parts than this gain less than a per cent."""
_SOME = (2, 3, 4, 6, 8, 12, 16)
_EPSILON = 1e-9
_BISECTIONS = 30


@dataclass(frozen=True, slots=True)
class Stripe:
    """`weight` is its share of the chunks, relative to the others'. In each chain, head first, tail last."""

    weight: int
    chains: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class StripedPlan:
    """`tails`: the weight of the stripes in which each worker sends nothing. Times count headers and `fill_s`.

    `fill_s`: until the first chunk has come to the last of the deepest chain; it grows with the size of a chunk.
    """

    rate_bytes_per_s: float
    stripes: tuple[Stripe, ...]
    tails: dict[str, int]
    fill_s: float
    t_target_s: float
    t_all_s: float

    @property
    def parts(self) -> int:
        """The weight of all stripes together."""
        return sum(stripe.weight for stripe in self.stripes)


@dataclass(frozen=True, slots=True)
class _Choice:
    count: int  # of equal parts
    tails: dict[str, int]
    rate: float
    score: tuple[float, ...]


def tail_share(host: Host, rate: float, ack_share: float = ACK_SHARE) -> float:
    """In which share of the stripes this host may not send, when everybody receives at `rate`."""
    return min(1.0, max(0.0, 1.0 + ack_share - host.uplink_bytes_per_s / rate))


def striped_rate(
    b0_bytes_per_s: float,
    hosts: Sequence[Host],
    *,
    count: int | None = None,
    tails: frozenset[str] = frozenset(),
    ack_share: float = ACK_SHARE,
) -> float:
    """The greatest R at which everybody can receive, over `count` stripes; without one, over as many as it takes.

    `tails` send nothing, and may have downlinks below R. Raises PlanInputError for rates that are none.
    """
    positive("b0_bytes_per_s", b0_bytes_per_s)
    inner = [h for h in hosts if h.name not in tails]
    for host in hosts:
        positive(f"uplink of {host.name!r}", host.uplink_bytes_per_s)
        positive(f"downlink of {host.name!r}", host.downlink_bytes_per_s)
    cap = min([b0_bytes_per_s, *(h.downlink_bytes_per_s for h in inner)])
    uplinks = [h.uplink_bytes_per_s for h in inner]
    fixed = len(hosts) - len(inner)
    low, high = min(cap, b0_bytes_per_s / max(1, len(hosts))), cap
    if _possible(high, b0_bytes_per_s, uplinks, fixed, count, ack_share):
        return high
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if _possible(middle, b0_bytes_per_s, uplinks, fixed, count, ack_share):
            low = middle
        else:
            high = middle
    return low


def _possible(
    rate: float, b0: float, uplinks: Sequence[float], fixed: int, count: int | None, ack_share: float
) -> bool:
    if count is None:
        shares = (min(1.0, max(0.0, 1.0 + ack_share - uplink / rate)) for uplink in uplinks)
        return fixed + math.fsum(shares) <= b0 / rate * (1 + _EPSILON)
    left = math.floor(count * b0 / rate + _EPSILON) - fixed * count
    whole, per_byte = count * (1.0 + ack_share) - _EPSILON, count / rate
    for uplink in uplinks:
        if left < 0:
            return False
        needed = math.ceil(whole - per_byte * uplink)
        left -= count if needed > count else max(0, needed)
    return left >= 0


def plan_stripes(
    payload_bytes: float,
    b0_bytes_per_s: float,
    hosts: Sequence[Host],
    *,
    fraction: float = 1.0,
    demoted: frozenset[str] = frozenset(),
    origin_dialable: bool = True,
    chunk_bytes: int = 1 << 16,
    stripes_max: int = STRIPES_MAX,
    ack_share: float = ACK_SHARE,
) -> StripedPlan | None:
    """The best plan for T(fraction), T(1.0), then with the fewest stripes: one where the same are tails everywhere.

    None where there is none: fewer than two workers, or two that cannot be dialled would have to be neighbours. Plain
    chains (one stripe) are `chappe.planning.layout`'s, who compares is `chappe.planning.striping`.
    Raises PlanInputError for numbers that mean nothing.
    """
    positive("payload_bytes", payload_bytes)
    at_least("stripes_max", stripes_max, 1)
    if len(hosts) < 2:
        return None
    ordered = sorted(hosts, key=lambda h: (-h.uplink_bytes_per_s, -h.downlink_bytes_per_s, h.name))
    model = _Model(payload_bytes, b0_bytes_per_s, ordered, fraction, demoted, chunk_bytes, ack_share)
    for choice in sorted(model.choices(stripes_max), key=lambda c: c.score):
        plan = model.lay(choice, origin_dialable)
        if plan is not None:
            return plan
    return None


@dataclass(frozen=True, slots=True)
class _Model:
    payload_bytes: float
    b0: float
    hosts: Sequence[Host]  # the ablest uplink first
    fraction: float
    demoted: frozenset[str]
    chunk_bytes: int
    ack_share: float

    # ---- how many stripes, and at which rate ----

    def choices(self, stripes_max: int) -> Iterator[_Choice]:
        counts = [*range(2, stripes_max + 1), *_FINE] if len(self.hosts) <= SMALL else _SOME
        for throttling in self._cuts():
            for count in counts:
                rate = striped_rate(
                    self.b0, self.hosts, count=count, tails=throttling | self.demoted, ack_share=self.ack_share
                )
                tails = self._tails(count, rate, throttling | self.demoted)
                stripes = self._stripes(count, tails)
                if stripes > stripes_max:
                    continue
                chains = sum(tails.values()) / count
                if chains * stripes > max(ORIGIN_STREAMS_MAX, 2 * len(self.demoted | throttling)):
                    continue
                depth = math.ceil(len(self.hosts) / chains)
                sent = sum(h.uplink_bytes_per_s * (count - tails[h.name]) for h in self.hosts)
                whole = sum(count - t for t in tails.values())
                fill_s = (depth - 1) * self._hop_s(sent / whole, rate / stripes) if whole else 0.0
                times = sorted(self._own_s(host, rate) for host in self.hosts)
                target = times[max(0, math.ceil(self.fraction * len(times) - _EPSILON) - 1)]
                score = (_coarse(target + fill_s), _coarse(times[-1] + fill_s), stripes)
                yield _Choice(count, tails, rate, score)

    def _stripes(self, count: int, tails: Mapping[str, int]) -> int:
        """How many different sets of tails there are among so many parts: one more where a shift of tails ends."""
        ends, at = set(), 0
        for host in self.hosts:
            at = (at + tails[host.name]) % count
            ends.add(at)
        return len(ends | {0}) if at else len(ends)

    def _hop_s(self, uplink: float, rate: float) -> float:
        """Of a chunk, on a hop of this rate, from a node that sends `TURNS` of them at a time."""
        return self.chunk_bytes / max(rate, uplink / TURNS)

    def _cuts(self) -> list[frozenset[str]]:
        """Whose downlink is not waited for: nobody's, or those below one of the downlinks that there are."""
        downlinks = sorted({h.downlink_bytes_per_s for h in self.hosts if h.name not in self.demoted})
        if len(downlinks) > CUTS_MAX:
            downlinks = [downlinks[round(i * (len(downlinks) - 1) / (CUTS_MAX - 1))] for i in range(CUTS_MAX)]
        cuts = [frozenset(h.name for h in self.hosts if h.downlink_bytes_per_s < least) for least in downlinks]
        return list(dict.fromkeys(cuts)) or [frozenset()]

    def _own_s(self, host: Host, rate: float) -> float:
        return self.payload_bytes * (1 + HEADER_SHARE) / min(rate, host.downlink_bytes_per_s)

    # ---- who is tail where ----

    def lay(self, choice: _Choice, origin_dialable: bool) -> StripedPlan | None:
        tails = choice.tails
        of_part: list[set[str]] = [set() for _ in range(choice.count)]
        at = 0
        for host in self.hosts:
            for _ in range(tails[host.name]):
                of_part[at % choice.count].add(host.name)
                at += 1
        stripes: list[Stripe] = []
        for names, weight in Counter(map(frozenset, of_part)).items():
            inner = [h for h in self.hosts if h.name not in names]
            chains = _chains(inner, [h for h in self.hosts if h.name in names], origin_dialable)
            if chains is None:
                return None
            stripes.append(Stripe(weight, tuple(tuple(h.name for h in chain) for chain in chains)))
        return StripedPlan(choice.rate, tuple(stripes), tails, *self._times(choice, stripes))

    def _tails(self, count: int, rate: float, always: frozenset[str]) -> dict[str, int]:
        """As few as uplinks allow; then, while the origin can feed more chains, for those who have the least to spare.

        A part needs one at least: that much the origin always has.
        """
        tails = {
            h.name: count if h.name in always else math.ceil(count * tail_share(h, rate, self.ack_share) - _EPSILON)
            for h in self.hosts
        }
        spare = math.floor(count * self.b0 / rate + _EPSILON) - sum(tails.values())

        def left(host: Host) -> float:
            return host.uplink_bytes_per_s - (count - tails[host.name]) / count * rate

        heap = [(left(h), h.name, h) for h in self.hosts if tails[h.name] < count]
        heapq.heapify(heap)
        while spare > 0 and heap:
            _, _, host = heapq.heappop(heap)
            tails[host.name] += 1
            spare -= 1
            if tails[host.name] < count:
                heapq.heappush(heap, (left(host), host.name, host))
        return tails

    def _times(self, choice: _Choice, stripes: Sequence[Stripe]) -> tuple[float, float, float]:
        """The fill, T(fraction), T(1.0)."""
        uplinks = {h.name: h.uplink_bytes_per_s for h in self.hosts}
        latest: dict[str, float] = {}
        for stripe in stripes:
            rate = choice.rate * stripe.weight / choice.count
            for chain in stripe.chains:
                at_s = 0.0
                for above, name in zip(("", *chain), chain, strict=False):
                    at_s += self._hop_s(uplinks[above], rate) if above else 0.0
                    latest[name] = max(at_s, latest.get(name, 0.0))
        times = sorted(self._own_s(h, choice.rate) + latest[h.name] for h in self.hosts)
        target_s = times[max(0, math.ceil(self.fraction * len(times) - _EPSILON) - 1)]
        return max(latest.values()), target_s, times[-1]


def _chains(inner: Sequence[Host], tails: Sequence[Host], origin_dialable: bool) -> list[list[Host]] | None:
    """A chain for each tail, the able in front, lengths within one. None when somebody cannot be reached.

    Built from the tails upwards, so that every hop gets a side that can dial: those that cannot come first, wherever
    the one below them can.
    """
    upwards: list[list[Host]] = [[tail] for tail in tails]
    waiting = [h for h in reversed(inner) if h.dialable]
    hidden = [h for h in reversed(inner) if not h.dialable]
    turn = [(1, at) for at in range(len(upwards))]
    for _ in inner:
        _, at = heapq.heappop(turn)
        chain = upwards[at]
        if hidden and chain[-1].dialable:
            chain.append(hidden.pop(0))
        elif waiting:
            chain.append(waiting.pop(0))
        else:
            open_ends = [c for c in upwards if c[-1].dialable]
            if not open_ends:
                return None
            chain = min(open_ends, key=len)
            chain.append(hidden.pop(0))
        heapq.heappush(turn, (len(upwards[at]), at))
    if not origin_dialable and not all(chain[-1].dialable for chain in upwards):
        return None
    return [chain[::-1] for chain in upwards]


def _coarse(seconds: float) -> float:
    """In steps of half a per cent: what a model cannot promise does not decide for more stripes."""
    return round(math.log(seconds) * 200)
