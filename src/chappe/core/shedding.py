"""A worker whose uplink carries less than its places in the stripes ask for: it loses inner places, not its membership.

Hops of stripes share links, so one slow hop is no evidence. A sender whose hops are all slow at once, to two receivers
or more, with something to send on each, is: what they carry together is its uplink.

    report of a sender ──▶ every hop below its share? ──▶ for SHED_S busy seconds in a row
                                     │ no: from the beginning             ├──▶ uplink settled at the sum
                                                                          └──▶ as many stripes as it cannot carry:
                                                                               behind another tail there

Only what a node says of its own sending counts, and it can only lower itself: at most as many moves as it has inner
places. A single receiver could as well be the limit itself, and is left alone. The next plan starts from
the new figure.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from chappe.core.chain import Place
from chappe.core.context import Context
from chappe.core.events import LinkSample, Role
from chappe.core.placement import Placement
from chappe.core.publication import Publication
from chappe.core.rates import uplink
from chappe.core.reasons import RebuildReason
from chappe.core.striped import describe, hop_bytes_per_s, sends_bytes_per_s
from chappe.core.workers import Worker
from chappe.units import format_rate

SLOW_SHARE = 0.7
SHED_S = 4.0
RECEIVERS_MIN = 2


@dataclass(slots=True)
class _Seen:
    bytes: float = 0.0
    busy_s: float = 0.0


class Shedding:
    def __init__(self, context: Context, placement: Placement) -> None:
        self._context = context
        self._placement = placement
        self._seen: dict[tuple[str, str], _Seen] = {}  # object, sender

    def sent(self, sender: Worker, samples: list[LinkSample]) -> None:
        """What a node says of its sending since its last report."""
        if sender.role is not Role.RELAY:
            return
        striped = [p for p in self._context.active() if not p.stripes.plain and sender.worker_id in p.layout]
        if len(striped) != 1:
            return  # none, or two at once, which share the link, too
        (publication,) = striped
        key = (publication.object_id, sender.worker_id)
        total, busy_s = self._together(publication, sender, samples)
        if total is None:
            self._seen.pop(key, None)
            return
        seen = self._seen.setdefault(key, _Seen())
        seen.bytes += total * busy_s
        seen.busy_s += busy_s
        if seen.busy_s >= SHED_S:
            del self._seen[key]
            self._shed(publication, sender, seen.bytes / seen.busy_s)

    @staticmethod
    def _feeds(publication: Publication, sender: Worker) -> list[tuple[Place, str]]:
        """Its places with a child that still lacks something."""
        layout = publication.layout
        found = [(place, layout.child(place)) for place in layout.places(sender.worker_id)]
        return [(place, child) for place, child in found if child and publication.members[child].level == 0]

    def _together(
        self, publication: Publication, sender: Worker, samples: list[LinkSample]
    ) -> tuple[float | None, float]:
        """What its hops carry at the same time (bytes per second), and for how long; None when that is no evidence."""
        streams: Counter[str] = Counter()
        wanted: Counter[str] = Counter()
        for place, child in self._feeds(publication, sender):
            streams[child] += 1
            wanted[child] += round(hop_bytes_per_s(publication, place.chain.stripe))
        heard = {s.peer: s for s in samples if s.sending and s.peer in streams and s.bytes_per_s > 0}
        if len(heard) < RECEIVERS_MIN or len(heard) < len(streams):
            return None, 0.0
        slow = all(s.bytes_per_s * streams[peer] < SLOW_SHARE * wanted[peer] for peer, s in heard.items())
        busy_s = min(s.busy_s / streams[peer] for peer, s in heard.items())
        if not slow or busy_s <= 0:
            return None, 0.0
        return sum(s.bytes_per_s * streams[peer] for peer, s in heard.items()), busy_s

    def _shed(self, publication: Publication, sender: Worker, carried_bytes_per_s: float) -> None:
        sender.links.up.settle(carried_bytes_per_s, self._context.now)
        self._context.persist_worker(sender)
        feeds = self._feeds(publication, sender)
        keeps = math.floor(carried_bytes_per_s / publication.stripe_bytes_per_s)
        self._context.log(
            "uplink_short",
            RebuildReason.SLOW_SENDER.value,
            version=publication.version,
            relay=sender.name,
            uplink=format_rate(carried_bytes_per_s),
            stripes=len(feeds),
            keeps=keeps,
        )
        for place, _ in feeds[keeps:]:
            self._give_up(publication, place, sender)
        places = describe(publication.layout, sender.worker_id)
        why = f"{places}: its uplink carries {format_rate(carried_bytes_per_s)}"
        publication.members[sender.worker_id].why = why

    def _give_up(self, publication: Publication, place: Place, sender: Worker) -> None:
        """Behind the tail of this stripe that has the most to spare, in another chain where there is one."""
        stripe = place.chain.stripe
        others = [
            chain
            for chain in publication.layout.of_stripe(stripe)
            if chain is not place.chain and chain.members and self._placement.takes(publication, chain, sender)
        ]
        if others:
            onto = max(others, key=lambda c: (self._spare(publication, c.members[-1]), -c.slot))
            self._placement.move_aside(publication, place, onto, RebuildReason.SLOW_SENDER)
        else:
            self._placement.move_to_end(publication, place, RebuildReason.SLOW_SENDER)

    def _spare(self, publication: Publication, member: str) -> float:
        worker = self._context.state.workers.get(member)
        if worker is None:
            return -math.inf
        figure = uplink(worker, self._context.config.assumed_bytes_per_s, self._context.now)
        return figure.bytes_per_s - sends_bytes_per_s(publication, member)
