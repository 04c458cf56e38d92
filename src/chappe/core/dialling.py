"""Who can be dialled: declared, tried by the coordinator at every join, or proved by a child that did it.

Hello ──declared no──▶ no                    what works is believed: a child that has dialled a node outranks the
  └─ else as last known for this address     coordinator's failed attempt, until the node's address changes
        └─ DialedBack ──▶ yes / no
"""

from __future__ import annotations

from chappe.core.context import Context
from chappe.core.events import DialedBack, Hello
from chappe.core.placement import Placement
from chappe.core.workers import Worker


class Dialling:
    def __init__(self, context: Context, placement: Placement) -> None:
        self._context = context
        self._placement = placement
        self._proved: set[str] = set()

    def joined(self, worker: Worker, event: Hello, *, moved: bool) -> None:
        """`moved`: its address is another one than before."""
        if moved:
            self._proved.discard(worker.worker_id)
        if event.no_dial_in:
            self._set(worker, False)
        elif moved or worker.dialable is None:
            self._set(worker, None)

    def dialed_back(self, event: DialedBack) -> None:
        worker = self._context.of_session(event.worker_id, event.session)
        if worker is None or worker.dialable is event.reachable:
            return
        if not event.reachable and worker.worker_id in self._proved:
            return
        self._context.log("dialled_back", "yes" if event.reachable else "no", relay=worker.name, address=worker.address)
        self._set(worker, event.reachable)

    def proved(self, worker: Worker) -> None:
        """A child has opened a connection to it."""
        if worker.worker_id not in self._proved and worker.dialable is not False:
            self._proved.add(worker.worker_id)
            self._set(worker, True)

    def _set(self, worker: Worker, dialable: bool | None) -> None:
        if worker.dialable is dialable:
            return
        turned = False in (worker.dialable, dialable)
        worker.dialable = dialable
        self._context.persist_worker(worker)
        if not turned:
            return
        if dialable is False:
            self._context.undialable.add(worker.worker_id)
        else:
            self._context.undialable.discard(worker.worker_id)
        for publication in self._context.active():
            if worker.worker_id in publication.layout:
                self._context.touch(publication, publication.layout.near(worker.worker_id))
            elif publication.origin_id == worker.worker_id:
                self._context.touch_all(publication)
            else:
                continue
            self._placement.heal(publication)
