"""Peer chains against object storage: what a broadcast costs and how long it takes, and where one overtakes the other.

The store: the trainer uploads one copy, every worker downloads it. The chains: n streams leave the trainer, each worker
but the last of a chain passes the payload on. Either way N copies arrive, so the difference is who is paid for them.

    store, per publication   F * (p_origin + N * p_store)                     one copy in, N copies out
    chains, per publication  F * (min(n, N) * p_origin + max(0, N - n) * p_worker)
    per hour                 publication * 3600 / period + what each costs standing still

    T(i), whole object       F/U + F/d_i          nobody can read an object before its upload is complete
    T(i), in parts of p      max(F/U + p/d_i, p/U + F/d_i)    a pipeline of two stages; workers ask for each part

Sources: arithmetic on what providers bill (GB of 10^9 bytes that leave a network; what enters is taken as free); the
pipeline is the usual sum over stages and parts, with parts of one size. Requests are left out: they are priced by the
thousand, and one fetches megabytes. Prices in any one currency, all the user's; times in seconds, rates in bytes per
second.
"""

from __future__ import annotations

from dataclasses import dataclass

from chappe.planning.cost import SECONDS_PER_HOUR
from chappe.planning.errors import at_least, not_negative, positive

HOURS_PER_MONTH = 730.0


@dataclass(frozen=True, slots=True)
class Prices:
    """Per GB (10^9 bytes) leaving the store, the trainer and a worker; and per hour, of what each way keeps running."""

    store_egress_per_gb: float
    origin_egress_per_gb: float = 0.0
    worker_egress_per_gb: float = 0.0
    store_per_hour: float = 0.0
    chains_per_hour: float = 0.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            not_negative(name, getattr(self, name))


@dataclass(frozen=True, slots=True)
class Dissemination:
    """Who has to be paid for: N workers, n chains, one payload of F bytes every period."""

    payload_bytes: float
    workers: int
    chains: int
    period_s: float

    def __post_init__(self) -> None:
        positive("payload_bytes", self.payload_bytes)
        at_least("workers", self.workers, 1)
        at_least("chains", self.chains, 1)
        positive("period_s", self.period_s)

    @property
    def payload_gb(self) -> float:
        return self.payload_bytes / 1e9


@dataclass(frozen=True, slots=True)
class Crossover:
    """From this many workers on (a real number) `winner` is the cheaper one."""

    workers: float
    winner: str  # "chains" or "store"


def storage_per_hour(payload_bytes: float, versions_kept: float, price_per_gb_month: float) -> float:
    """What the store charges for keeping versions; a month is 730 hours."""
    volume_gb = positive("payload_bytes", payload_bytes) * not_negative("versions_kept", versions_kept) / 1e9
    return volume_gb * not_negative("price_per_gb_month", price_per_gb_month) / HOURS_PER_MONTH


def store_per_publication(what: Dissemination, prices: Prices) -> float:
    """F * (p_origin + N * p_store)."""
    return what.payload_gb * (prices.origin_egress_per_gb + what.workers * prices.store_egress_per_gb)


def chains_per_publication(what: Dissemination, prices: Prices) -> float:
    """F * (min(n, N) * p_origin + max(0, N - n) * p_worker)."""
    from_origin = min(what.chains, what.workers)
    from_workers = what.workers - from_origin
    return what.payload_gb * (from_origin * prices.origin_egress_per_gb + from_workers * prices.worker_egress_per_gb)


def store_per_hour(what: Dissemination, prices: Prices) -> float:
    return store_per_publication(what, prices) * SECONDS_PER_HOUR / what.period_s + prices.store_per_hour


def chains_per_hour(what: Dissemination, prices: Prices) -> float:
    return chains_per_publication(what, prices) * SECONDS_PER_HOUR / what.period_s + prices.chains_per_hour


def store_time_s(
    payload_bytes: float, upload_bytes_per_s: float, downlink_bytes_per_s: float, *, part_bytes: float | None = None
) -> float:
    """When one worker has everything: the whole object after its upload, or parts as they come."""
    upload_s = positive("payload_bytes", payload_bytes) / positive("upload_bytes_per_s", upload_bytes_per_s)
    download_s = payload_bytes / positive("downlink_bytes_per_s", downlink_bytes_per_s)
    if part_bytes is None:
        return upload_s + download_s
    share = min(1.0, positive("part_bytes", part_bytes) / payload_bytes)
    return max(upload_s + share * download_s, share * upload_s + download_s)


def break_even_store_price(what: Dissemination, prices: Prices) -> float:
    """The store's egress price per GB at which both cost the same per hour: below it the store is cheaper.

    Solves store_per_hour = chains_per_hour for p_store. Negative: the chains are dearer even than free egress.
    """
    fixed = (prices.chains_per_hour - prices.store_per_hour) * what.period_s / SECONDS_PER_HOUR
    per_publication = chains_per_publication(what, prices) + fixed
    return (per_publication / what.payload_gb - prices.origin_egress_per_gb) / what.workers


def break_even_period_s(what: Dissemination, prices: Prices) -> float | None:
    """The period at which both cost the same per hour; None when one is cheaper whatever the period.

    With period P the difference per hour is 3600 * (store - chains) / P - (chains_fixed - store_fixed): zero at
    P = 3600 * (store - chains) / (chains_fixed - store_fixed), where that is above zero.
    """
    saved = store_per_publication(what, prices) - chains_per_publication(what, prices)
    fixed = prices.chains_per_hour - prices.store_per_hour
    if fixed == 0 or saved / fixed <= 0:
        return None
    return SECONDS_PER_HOUR * saved / fixed


def fleet_crossovers(what: Dissemination, prices: Prices) -> list[Crossover]:
    """The sizes of fleet, one worker or more, at which the cheaper one changes, smallest first: none, one or two.

    chains - store per publication is linear in N up to n (slope p_origin - p_store) and beyond it (p_worker -
    p_store); each piece has at most one root.
    """
    fixed = (prices.chains_per_hour - prices.store_per_hour) * what.period_s / SECONDS_PER_HOUR / what.payload_gb
    at_none = fixed - prices.origin_egress_per_gb  # chains - store per GB of payload, extended to N = 0
    inner = prices.origin_egress_per_gb - prices.store_egress_per_gb
    outer = prices.worker_egress_per_gb - prices.store_egress_per_gb
    n = what.chains
    found = []
    if inner and 1 <= (root := -at_none / inner) <= n:
        found.append(Crossover(root, "store" if inner > 0 else "chains"))
    if outer and (root := n - (at_none + inner * n) / outer) > n:
        found.append(Crossover(root, "store" if outer > 0 else "chains"))
    return found


def upload_that_ties_bytes_per_s(payload_bytes: float, chains_s: float, downlink_bytes_per_s: float) -> float | None:
    """How fast the upload of a whole object must be for the store to take as long as the chains: F/(T_chains - F/d).

    None when the chains take no longer than one download and a thousandth: no upload is quick enough then.
    """
    download_s = positive("payload_bytes", payload_bytes) / positive("downlink_bytes_per_s", downlink_bytes_per_s)
    spare_s = positive("chains_s", chains_s) - download_s
    return payload_bytes / spare_s if spare_s > download_s * 1e-3 else None
