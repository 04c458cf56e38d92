"""How fast each worker gets on in each stripe, by what it tells of its holdings once a second.

It keeps a few reports of each worker and counts; what follows is `rebalance`'s. A figure is of whole chunks, and of
the time between two reports: nothing is known of a worker before its second one, nor of one that has been silent.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from chappe.core.publication import Publication
from chappe.core.stripemap import StripeMap
from chappe.core.workers import Worker

WINDOW_S = 5.0
"""Longer, and a change is seen late; shorter, and a stripe of a chunk a second says nothing."""
KNOWN_S = 1.9
SILENT_S = 3.5


@dataclass(frozen=True, slots=True)
class Pace:
    """`held` chunks and chunks a second, by stripe."""

    held: list[int]
    per_s: list[float]


@dataclass(slots=True)
class _Seen:
    stripes: StripeMap
    reports: deque[tuple[float, list[int]]] = field(default_factory=deque)


class Paces:
    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], _Seen] = {}  # object, worker

    def note(self, publication: Publication, worker: Worker, now: float) -> None:
        """A worker has said what it holds."""
        holding = worker.holdings.get(publication.object_id)
        if holding is None:
            return
        key = (publication.object_id, worker.worker_id)
        seen = self._seen.get(key)
        if seen is None or seen.stripes != publication.stripes:
            seen = self._seen[key] = _Seen(publication.stripes)
        counts = publication.stripes.counts(holding.chunks, publication.chunks_total)
        reports = seen.reports
        if reports and any(new < old for new, old in zip(counts, reports[-1][1], strict=True)):
            reports.clear()  # it has lost some: begins anew
        reports.append((now, counts))
        while len(reports) > 2 and reports[1][0] <= now - WINDOW_S:
            reports.popleft()

    def keep(self, object_ids: set[str]) -> None:
        """Forget all others."""
        self._seen = {key: seen for key, seen in self._seen.items() if key[0] in object_ids}

    def held(self, publication: Publication, worker_id: str) -> list[int] | None:
        """What it held when it said so last, by stripe."""
        seen = self._seen.get((publication.object_id, worker_id))
        return None if seen is None or seen.stripes != publication.stripes else seen.reports[-1][1]

    def of(self, publication: Publication, worker_id: str, now: float) -> Pace | None:
        seen = self._seen.get((publication.object_id, worker_id))
        if seen is None or seen.stripes != publication.stripes:
            return None
        (first_s, first), (last_s, last) = seen.reports[0], seen.reports[-1]
        if last_s - first_s < KNOWN_S or now - last_s > SILENT_S:
            return None
        return Pace(last, [(b - a) / (last_s - first_s) for a, b in zip(first, last, strict=True)])
