"""Stripes that lag hand their chunks to stripes that lead: the rest is laid out anew, for the links as they are seen.

A striped plan is as good as the rates that it was made of. Once a second, while holdings are told:

    a sender whose hops are all limited ──▶ what its children get of it together is its uplink
    all other links                     ──▶ as measured or declared
    the rest of the payload             ──▶ a plan of its own: other stripes, other weights, other chains
          ──▶ laid, if it ends sooner by more than `WORTH_S` and `WORTH_SHARE`, twice in a row

A new map says for every chunk whose stripe it is now, so chunks go from one stripe to another in whole runs, and
nothing that is held is sent again. Every edge is a new one; a child takes what its old parent has on its way, and asks
anew for what it lacks. Segments that lag are `rebalance`'s, which needs somebody who has everything: this needs nobody.

What happens when somebody dies, stalls, restarts or lies (each row is a test in tests/core/test_restriping.py):

  r1  a worker has lost its session         nothing is laid anew until it is back, or out
  r2  a worker waits for room, or failed    nothing: its pace says nothing of links
  r3  a worker says less than it holds      it seems to be the last: the rest is laid anew for nothing, ever more rarely
  r4  a worker says more than it holds      it seems done: the others' ends decide
  r5  reports are late, or there are none   nothing
  r6  the origin is gone                    nothing: there is nobody to send the rest of some stripe to its heads
  r7  the coordinator restarts              the map and chains are stored; when it was, and how often, is forgotten
  r8  a worker joins while it is decided    it has no pace yet: nothing, until it has
  r9  a worker dies just after              repair, as ever
  r10 everything goes as was promised       nothing, and little is planned
  r11 it does not help                      the next time comes after twice the wait
  r12 two versions are on their way         they share links: nothing
  r13 a worker of a release without stripes the stripes are given up (`striped.give_up`), there is nothing to lay anew
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from chappe.core.chain import SOURCE
from chappe.core.context import Context
from chappe.core.laggards import View
from chappe.core.laying import Laying
from chappe.core.placement import Placement
from chappe.core.publication import Publication
from chappe.core.reasons import RebuildReason
from chappe.planning.stripes import HEADER_SHARE
from chappe.planning.striping import Judged
from chappe.planning.topology import Link

CHANGE_S = 1.0
"""To be told, to take what is on its way, to dial, and to get up to speed, everybody at once."""
WORTH_S, WORTH_SHARE = 3.0, 0.15
LATE = 1.1
"""Times what the rest takes as promised: less is noise, and is not planned for."""
COOL_S = 8.0
"""And twice as long after each time: where it does not help, that is all it costs."""
PLAN_S = 4.0
"""Between two plans that were no better: one of thousands of workers takes a while."""
LOOKS = 2
"""In a row, before anything is done: a report is of whole chunks, and of a second."""


@dataclass(slots=True)
class _Kept:
    """Of one publication; gone when the coordinator restarts."""

    times: int = 0
    laid_s: float = -math.inf
    looks: int = 0
    next_plan_s: float = -math.inf
    seen: dict[str, float] = field(default_factory=dict)  # uplinks that were a limit, bytes per second


class Restriping:
    def __init__(self, context: Context, placement: Placement, laying: Laying) -> None:
        self._context = context
        self._placement = placement
        self._laying = laying
        self._of: dict[str, _Kept] = {}  # by object

    def keep(self, object_ids: set[str]) -> None:
        """Forget all others."""
        self._of = {object_id: kept for object_id, kept in self._of.items() if object_id in object_ids}

    def look(self, publication: Publication, view: View) -> bool:
        """Whether the rest has been laid anew. `publication` is striped, open, and the only one on its way."""
        kept = self._of.setdefault(publication.object_id, _Kept())
        if self._context.now - kept.laid_s < COOL_S * 2 ** (kept.times - 1):
            return False
        judged = self._better(kept, publication, view)
        kept.looks = 0 if judged is None else kept.looks + 1
        if judged is None or kept.looks < LOOKS:
            return False
        kept.times, kept.laid_s, kept.looks = kept.times + 1, self._context.now, 0
        self._lay(publication, judged)
        return True

    def _better(self, kept: _Kept, publication: Publication, view: View) -> Judged | None:
        """A plan of the rest that would end sooner by far."""
        end_s, rest_bytes = view.end_s(), view.rest_bytes()
        promised = publication.grounds.rate_bytes_per_s
        if end_s is None or not promised or not self._placement.origin_usable(publication):
            return None
        if end_s <= LATE * rest_bytes * (1 + HEADER_SHARE) / promised + WORTH_S:
            return None
        links = self._links(kept, publication, view)
        if links is None or self._context.now < kept.next_plan_s:
            return None
        judged = self._laying.judge_rest(publication, links, rest_bytes, kept.seen.get(SOURCE))
        planned_s = math.inf if judged.striping is None else judged.striping.plan.t_all_s + CHANGE_S
        if end_s - planned_s <= max(WORTH_S, WORTH_SHARE * end_s):
            kept.next_plan_s = self._context.now + PLAN_S
            return None
        return judged

    def _links(self, kept: _Kept, publication: Publication, view: View) -> list[Link] | None:
        """Of all that have a place, as they are seen; None when one of them cannot be given another one now.

        Who has been given less to send is no limit any more: what was seen of it stays, until it is one again.
        """
        here = set(publication.layout.workers())
        links = [link for link in self._laying.links() if link.worker_id in here]
        if len(links) != len(here) or not all(view.works(worker_id) for worker_id in here):
            return None
        for member in (SOURCE, *here):
            seen = view.uplink_seen(member)
            if seen is not None:
                kept.seen[member] = seen
        return [
            replace(link, uplink_bytes_per_s=min(link.uplink_bytes_per_s, kept.seen.get(link.worker_id, math.inf)))
            for link in links
        ]

    def _lay(self, publication: Publication, judged: Judged) -> None:
        before = len(publication.stripes.weights)
        publication.edges.main.clear()
        publication.edges.fallback.clear()
        self._laying.lay_rest(publication, judged, self._elapsed_s(publication))
        self._context.touch_all(publication)
        self._context.count("segment_rebuilds_total", reason=RebuildReason.RESTRIPED.value)
        self._context.log(
            "restriped",
            publication.grounds.why,
            version=publication.version,
            stripes=len(publication.stripes.weights),
            before=before,
        )
        self._placement.heal(publication)

    def _elapsed_s(self, publication: Publication) -> float:
        return max(0.0, self._context.now - publication.started_s)
