"""Measuring hosts without history while the fleet is idle: who probes whom, and when again.

    something may be due ──▶ idle? ──▶ for each relay without figures (or demoted): an idle peer ──▶ StartProbe
         ▲                                                                                             │
         └──── a minute later, two, ... at most an hour ◀── error, or nothing for 15 s ◀───────────────┤
                                                            measured: never again while figures last ◀─┘

Idle is a fleet that is delivering nothing to anybody. A publication is never delayed: nodes give up a probe when they
are assigned an edge, and no order is given until it is over. The one with a history reports and dials, since nobody's
word about itself counts for much; one that cannot be dialled has to dial.
"""

from __future__ import annotations

from dataclasses import dataclass

from chappe.core.context import Context
from chappe.core.deadlines import Deadlines
from chappe.core.demotion import Demotions
from chappe.core.effects import StartProbe
from chappe.core.events import ProbeEnded, Role
from chappe.core.measuring import Measuring
from chappe.core.publication import LIVE
from chappe.core.rates import link_of
from chappe.core.workers import Worker
from chappe.units import format_rate

BYTES_MAX = 8 << 20
SECONDS_MAX = 2.0
LAPSE_S = 15.0  # both directions, dialling, and a slow control stream
SETTLE_S = 2.0  # after a join: many come at once, and the dial-back comes first
LOOK_S = 5.0
RETRY_S = 60.0
RETRY_MAX_S = 3600.0
AT_ONCE_MAX = 8
WINDOW = 512  # relays that are looked at each time
PROBE_CREDIT_S = 2.5
"""What a probe counts towards the trust of a demoted relay: it is short, but it has the link to itself."""
KEY = "probe "


@dataclass(frozen=True, slots=True)
class Order:
    reporter: str
    session: int
    dialled: str
    about: str  # who is to be measured
    until_s: float


@dataclass(slots=True)
class Tries:
    failures: int = 0
    next_s: float = 0.0
    measured: bool = False


class Probing:
    def __init__(self, context: Context, measuring: Measuring, demotions: Demotions, deadlines: Deadlines) -> None:
        self._context = context
        self._measuring = measuring
        self._demotions = demotions
        self._deadlines = deadlines
        self._orders: dict[str, Order] = {}
        self._tries: dict[str, Tries] = {}
        self._turn = 0
        self._unseen = 0  # workers, until all have been looked at since something was to be done

    def wake(self, delay_s: float = SETTLE_S) -> None:
        """Something has changed: a relay has joined, or a publication is over."""
        if self._context.config.probes:
            self._unseen = len(self._context.state.workers)
            self._deadlines.at(KEY, self._context.now + delay_s)

    def look(self) -> None:
        """Give what orders can be given now."""
        now = self._context.now
        for name, order in list(self._orders.items()):
            if order.until_s <= now + 1e-9:
                del self._orders[name]
                self._failed(order.about, "nothing was heard of it")
        if not self._idle():
            self._deadlines.at(KEY, now + LOOK_S)
            return
        relays = self._window()
        wanting = [w for w in relays if self._wants(w)]
        if wanting and len(relays) >= 2:
            self._order(wanting, relays)
            self._unseen = len(self._context.state.workers)
        if self._unseen > 0:
            self._deadlines.at(KEY, now + LOOK_S)

    def _window(self) -> list[Worker]:
        """The next relays in turn, all of them in a fleet that is not large: thousands are not sorted at once for the
        few orders that are given at a time."""
        workers = list(self._context.state.workers.values())
        if len(workers) > WINDOW:
            start = self._turn % len(workers)
            self._turn = start + WINDOW
            workers = (workers[start:] + workers[:start])[:WINDOW]
        self._unseen -= len(workers)
        return [w for w in workers if w.placeable and w.connected]

    def _wants(self, worker: Worker) -> bool:
        tries = self._tries.get(worker.worker_id)
        if worker.demoted:
            return True
        unknown = not (worker.links.up.known(self._context.now) and worker.links.down.known(self._context.now))
        return unknown and not (tries is not None and tries.measured)

    def _idle(self) -> bool:
        if any(p.phase in LIVE and not p.settled for p in self._context.state.mains):
            return False  # one that is settled waits for hosts that failed: nothing flows, perhaps for days
        workers = self._context.state.workers
        for publication in self._context.active():
            for worker_id, member in publication.members.items():
                worker = workers.get(worker_id)
                if member.level == 0 and not member.failed and worker is not None and worker_id in publication.layout:
                    return False
        return True

    def _order(self, wanting: list[Worker], relays: list[Worker]) -> None:
        now, assumed = self._context.now, self._context.config.assumed_bytes_per_s
        busy = {w for order in self._orders.values() for w in (order.reporter, order.dialled)}
        by_history = sorted(
            (w for w in relays if w.worker_id not in busy),
            key=lambda w: (w.demoted, not w.links.up.known(now), -link_of(w, assumed, now).hop_bytes_per_s, w.name),
        )
        for worker in wanting:
            if len(self._orders) >= AT_ONCE_MAX:
                return
            tries = self._tries.get(worker.worker_id, Tries())
            if worker.worker_id in busy or tries.next_s > now:
                continue
            peers = [w for w in by_history if w is not worker and w.worker_id not in busy and _talk(w, worker)]
            if not peers:
                continue
            peer = peers[tries.failures % len(peers)]  # the last one may have been to blame for the failure
            busy |= {worker.worker_id, peer.worker_id}
            reporter, dialled = (worker, peer) if worker.dialable is False else (peer, worker)
            self._send(worker, reporter, dialled)

    def _send(self, about: Worker, reporter: Worker, dialled: Worker) -> None:
        epoch = self._context.next_epoch()
        name = f"probe-{epoch}"
        assert reporter.session is not None
        until_s = self._context.now + LAPSE_S
        self._orders[name] = Order(reporter.worker_id, reporter.session, dialled.worker_id, about.worker_id, until_s)
        self._deadlines.at(KEY, until_s)
        self._context.send(
            StartProbe(
                reporter.worker_id,
                reporter.session,
                reporter.generation,
                name,
                dialled.peer,
                epoch,
                BYTES_MAX,
                SECONDS_MAX,
            )
        )
        why = "demoted" if about.demoted else "no history"
        self._context.log("probe", why, relay=about.name, reporter=reporter.name, dialled=dialled.name)

    def ended(self, event: ProbeEnded) -> None:
        order = self._orders.get(event.order)
        worker = self._context.of_session(event.worker_id, event.session)
        if worker is None or order is None or (order.reporter, order.session) != (event.worker_id, event.session):
            return
        del self._orders[event.order]
        self._deadlines.at(KEY, self._context.now)
        dialled = self._context.state.workers.get(order.dialled)
        rates = event.up_bytes_per_s, event.down_bytes_per_s
        if event.error or dialled is None or dialled.role is not Role.RELAY or None in rates:
            self._failed(order.about, event.error or "nothing was measured")
            return
        up, down = rates
        assert up is not None
        assert down is not None
        busy_s = max(0.1, event.seconds / 2)
        self._measuring.probed(worker, dialled, up, busy_s)
        self._measuring.probed(dialled, worker, down, busy_s)
        if not worker.demoted:
            self._demotions.sent(dialled, down, max(PROBE_CREDIT_S, busy_s))
        self._tries[order.about] = Tries(0, self._context.now + RETRY_S, measured=True)
        self._context.log(
            "probed", "", reporter=worker.name, dialled=dialled.name, up=format_rate(up), down=format_rate(down)
        )

    def _failed(self, about: str, why: str) -> None:
        tries = self._tries.setdefault(about, Tries())
        delay_s = min(RETRY_MAX_S, RETRY_S * 2 ** min(tries.failures, 16))
        tries.failures, tries.next_s = tries.failures + 1, self._context.now + delay_s
        self._context.log("probe_failed", why, relay=self._context.name(about))


def _talk(one: Worker, other: Worker) -> bool:
    return one.dialable is not False or other.dialable is not False
